"""What a trivial prediction costs the parent, by counts: they are the same on a busy machine."""

from __future__ import annotations

import gc
import json
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import pytest
import trio

import cog_trio

pytestmark = pytest.mark.process

COUNT: Final = 50
MODEL: Final = "def run(text: str) -> str:\n    return text\n"
BODY: Final = b'{"input": {"text": "hello"}}'
REQUEST: Final = b"POST /predictions HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b"
MOST: Final = {  # of each, for one sync prediction
    "calls": 590,  # of Python and C functions, in the parent's thread
    "starts": 0,  # of tasks
    "steps": 2.1,  # of tasks: the connection's reader, and the slot's task
    "passes": 3.1,  # of the loop, with the one that finds nothing
    "garbage": 2.0,  # objects that only the collector can free; those of the connection itself are divided by COUNT
}


class Steps(trio.abc.Instrument):
    """Counts what trio does."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.counts["starts"] += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts["steps"] += 1

    def before_io_wait(self, timeout: float) -> None:
        self.counts["passes"] += 1


def ask(address: tuple[str, int], count: int, more: bytes, started: Callable[[], None]) -> None:
    """So many requests, one after the other on one connection; the first tenth of them is not counted."""
    with socket.create_connection(address, timeout=20) as sock:
        for number in range(count + count // 10):
            if number == count // 10:
                started()
            sock.sendall(REQUEST % (more, len(BODY), BODY))
            reply = sock.recv(2**16)
            assert reply.startswith(b"HTTP/1.1 20"), reply
            if not more:
                assert json.loads(reply.partition(b"\r\n\r\n")[2])["output"] == "hello"


async def measure(folder: Path, more: bytes = b"") -> dict[str, float]:
    """The counts of one request."""
    (folder / "model.py").write_text(MODEL)
    steps = Steps()
    calls = [0]

    def profile(frame: FrameType, event: str, value: object) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1

    settings = cog_trio.Settings(port=0, host="127.0.0.1", access_log=False, queue=100, retain=1)
    with trio.fail_after(60):
        async with (
            cog_trio.open_service(folder / "model.py:run", settings=settings) as service,
            trio.open_nursery() as nursery,
        ):
            await service.wait_ready()
            (url,) = await nursery.start(cog_trio.serve_http, service, settings)
            host, _, port = url.removeprefix("http://").rpartition(":")

            def start() -> None:
                gc.collect()
                gc.disable()
                trio.lowlevel.add_instrument(steps)
                sys.setprofile(profile)

            def begin() -> None:
                trio.from_thread.run_sync(start)

            await trio.to_thread.run_sync(ask, (host, int(port)), COUNT, more, begin)
            sys.setprofile(None)
            gc.enable()
            steps.counts["garbage"] = gc.collect()
            trio.lowlevel.remove_instrument(steps)
            nursery.cancel_scope.cancel()
    return {"calls": calls[0] / COUNT, **{name: count / COUNT for name, count in steps.counts.items()}}


async def test_a_trivial_sync_prediction(tmp_path: Path) -> None:
    counts = await measure(tmp_path)
    print(counts)
    assert {name: count for name, count in counts.items() if count > MOST[name] + 5 / COUNT} == {}
