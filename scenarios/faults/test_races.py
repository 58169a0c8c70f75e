"""Cancels and disconnects that race with the end of a run, hundreds of times."""

from __future__ import annotations

import json
import random
from typing import Final

import pytest
import trio

from cog_trio.testing import ServeModel, Server
from scenarios.faults.clients import connect, kept, leave, request
from scenarios.faults.usage import settled, usage

ROUNDS: Final = 300
MODELS: Final = ["chaos.py", "chaos_async.py"]


def put(name: str, **input: object) -> bytes:
    return request("PUT", f"/predictions/{name}", {"input": {"name": name, **input}})


async def status_of(server: Server, raw: bytes) -> int:
    """What a request gets on a connection of its own."""
    async with kept(server) as connection:
        return (await connection.ask(raw))[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("model", MODELS)
async def test_cancel_that_races_with_the_end_never_harms_the_next(
    serve_model: ServeModel, tmp_path: str, model: str
) -> None:
    """Given runs of 5 ms that are cancelled after 0 to 10 ms, then each ends once, and the run that comes at once
    behind it always succeeds with its own output."""
    rng = random.Random(5)
    ends: dict[str, int] = {}
    with trio.fail_after(100):
        async with (
            serve_model(model, "--max-concurrency", "1", env={"CHAOS_FOLDER": str(tmp_path)}) as server,
            kept(server) as one,
            kept(server) as other,
        ):

            async def cancel(id: str, delay: float) -> None:
                await trio.sleep(delay)
                status, body = await other.ask(request("POST", f"/predictions/{id}/cancel"))
                assert (status, body) in ((200, b"{}"), (404, b"{}"))

            for number in range(ROUNDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel, f"a{number}", rng.uniform(0, 0.01))
                    status, body = await one.ask(put(f"a{number}", seconds=0.005))
                    end = json.loads(body)["status"]
                    assert (status, end) in ((200, "succeeded"), (200, "canceled")), body
                    ends[end] = ends.get(end, 0) + 1
                    status, body = await one.ask(put(f"b{number}", steps=1))
                    reply = json.loads(body)
                    assert (status, reply["status"]) == (200, "succeeded"), body
                    assert (reply["output"], reply["logs"]) == (
                        [f"b{number} 0 "],
                        f"b{number} begins\nb{number} ends",
                    )
            assert min(ends["succeeded"], ends["canceled"]) > 10, ends


@pytest.mark.timeout(120)
@pytest.mark.parametrize("model", MODELS)
async def test_posts_that_are_closed_at_any_moment_lose_no_slot(
    serve_model: ServeModel, tmp_path: str, model: str
) -> None:
    """Given 300 sync posts whose connection ends after 0 to 20 ms, then health is READY and every slot is free within
    2 s, and nothing of them is left."""
    rng = random.Random(6)
    slots = 4 if model == "chaos_async.py" else 1
    with trio.fail_after(100):
        async with serve_model(model, env={"CHAOS_FOLDER": str(tmp_path)}) as server:
            for name in ("a", "b", "c"):
                assert await status_of(server, put(name, files=1)) == 200
            base = usage(server)
            for number in range(ROUNDS):
                stream = await connect(server)
                body = {"input": {"name": f"p{number}", "seconds": rng.choice((0, 0.01, 30))}}
                await stream.send_all(request("POST", "/predictions", body))
                await trio.sleep(rng.uniform(0, 0.02))
                await leave(stream, rng)
            replies: list[int] = []

            async def ask(name: str) -> None:
                replies.append(await status_of(server, put(name, seconds=0.2)))

            with trio.fail_after(2):
                await server.until("READY")
                while replies != [200] * slots:  # all at once
                    replies.clear()
                    async with trio.open_nursery() as nursery:
                        for number in range(slots):
                            nursery.start_soon(ask, f"n{number}")
            _, more = await settled(server, base, 10)
            assert more == []
