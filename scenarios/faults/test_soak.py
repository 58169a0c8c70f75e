"""Thousands of predictions, and the server holds no more than before.

``COG_TRIO_SOAK`` sets how many; ``make soak`` makes it 100,000.
"""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Final

import pytest
import trio

from cog_trio.testing import ServeModel, Server
from scenarios.faults.clients import Connection, kept, request
from scenarios.faults.usage import MIB, settled, usage

COUNT: Final = int(os.environ.get("COG_TRIO_SOAK") or 1_500)
WARM: Final = max(COUNT // 10, 2000)  # until each thread that reads files has had its share of them
PART: Final = 100  # predictions between two looks
LIMIT: Final = (2 if COUNT > 10_000 else 4) * MIB  # of a short one a good part is chance


async def some(connection: Connection, first: int, count: int) -> None:
    """So many predictions, of four kinds in turn."""
    for number in range(first, first + count):
        name = f"@{number}@"
        data = f"data:text/plain;base64,{base64.b64encode(name.encode()).decode()}"
        kinds: tuple[dict[str, object], ...] = ({}, {"lines": 5}, {"steps": 5, "size": 100}, {"file": data, "files": 1})
        status, body = await connection.ask(
            request("POST", "/predictions", {"input": {"name": name, **kinds[number % 4]}})
        )
        reply = json.loads(body)
        assert (status, reply["status"]) == (200, "succeeded"), body
        assert reply["logs"].startswith(f"{name} begins")
        assert len(reply["output"]) == (0, 0, 5, 2)[number % 4]


async def many(server: Server, slots: int, first: int, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for slot in range(slots):

            async def ask(slot: int = slot) -> None:
                async with kept(server) as connection:
                    for begin in range(0, count // slots, PART):
                        await some(
                            connection, first + slot * (count // slots) + begin, min(PART, count // slots - begin)
                        )
                        server.log.clear()  # of each prediction there are some lines

            nursery.start_soon(ask)


@pytest.mark.timeout(120 + COUNT // 50)
@pytest.mark.parametrize(("model", "slots"), [("chaos.py", 1), ("chaos_async.py", 4), ("chaos_async.py:Trio", 4)])
async def test_soak(serve_model: ServeModel, tmp_path: Path, model: str, slots: int) -> None:
    """Given thousands of predictions with logs, streams, files in and out, then after warming up neither the server nor
    the worker grows by more than that, and there are no more descriptors, threads, processes or files."""
    with trio.fail_after(100 + COUNT / 50):
        flags = ("--retain", "100", "--no-access-log")
        async with serve_model(model, *flags, env={"CHAOS_FOLDER": str(tmp_path)}) as server:
            await many(server, slots, 0, WARM)
            base = usage(server)
            began = time.monotonic()
            await many(server, slots, WARM, COUNT)
            took = time.monotonic() - began
            now, more = await settled(server, base, 5)
            grown = now.growth(base)
            print(
                f"{model}: {COUNT} in {took:.1f} s; server {grown[0] / MIB:+.2f} MiB, worker {grown[1] / MIB:+.2f} MiB"
            )
            assert more == []
            assert max(grown) < LIMIT, (grown, base, now)
