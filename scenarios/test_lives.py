"""Life and death of workers whose model has an event loop; sync ones: ``test_crash.py``, ``test_shutdown.py``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.processes import GONE, POLL, marked, nothing_left
from scenarios.processes import worker_of


def _named_sockets(*pids: int) -> list[list[str]]:
    """Unix sockets of these processes that have a name which others could open."""
    sockets = set()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    ours = [line for line in lines if line[6] in sockets]
    assert len(ours) >= 4  # both ends of two slots
    return [line for line in ours if line[7:]]


@pytest.mark.covers("worker:W3", "worker:W9", "worker:W13", "worker:W20")
@pytest.mark.parametrize(
    ("model", "how", "cause"), [("lives.py:Async", "leave", "exit code 9"), ("lives.py:Trio", "kill", "signal 9")]
)
async def test_W3_W9_a_worker_that_dies_fails_all_that_runs_in_it(
    serve_model: ServeModel, model: str, how: str, cause: str
) -> None:
    """Given two runs, one of them with children, when the worker dies by the other, then both fail with the cause and
    keep their logs, health is DEFUNCT, creates get 503, and no child is left."""
    with trio.fail_after(60):
        async with serve_model(model) as server:
            worker = worker_of(server)
            assert worker.cmdline()[0] == sys.executable  # W13
            assert _named_sockets(server.process.pid, worker.pid) == []  # W20
            await server.start("other", {"how": "children"})
            await server.until_logs("other", "started")
            reply = (await server.predict({"how": how})).json()
            other = await server.finished("other")
            refused = await server.predict()
            with trio.fail_after(GONE):
                while marked(server.mark) != [server.process.pid]:
                    await trio.sleep(POLL)
            assert (await server.health())["status"] == "DEFUNCT"
    for seen in (reply, other):
        assert seen["status"] == "failed"
        assert f"Worker died: {cause}" in seen["error"]
        assert seen["logs"] == "started\n"
    assert refused.status_code == 503
    assert cause in refused.json()["error"]


@pytest.mark.covers("worker:W10", "D30")
async def test_W10_D30_shutdown_cancels_what_is_left_and_runs_atexit(serve_model: ServeModel) -> None:
    """Given two runs of a minute, when SIGTERM comes, then both are canceled after the grace, their clean-up runs and
    is heard, and so are the model's atexit handlers."""
    replies = []
    with trio.fail_after(60):
        async with serve_model("lives.py:Trio", "--drain-grace", "1") as server, trio.open_nursery() as nursery:

            async def ask() -> None:
                replies.append((await server.predict()).json())

            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await server.until("BUSY")
            assert await server.stop() == 0
            await nothing_left(server.mark)
    assert [reply["status"] for reply in replies] == ["canceled", "canceled"]
    assert [reply["logs"] for reply in replies] == ["started\ncleaned up\n"] * 2
    assert any(entry.get("message") == "bye" for entry in server.log)


@pytest.mark.covers("worker:W8", "D29")
@pytest.mark.parametrize(("model", "how"), [("lives.py:Async", "children"), ("lives.py:Trio", "children block")])
async def test_W8_D29_killed_parent_leaves_nothing(serve_model: ServeModel, model: str, how: str) -> None:
    """Given a run with children that waits, or blocks the loop, when the parent is killed, then
    worker and children are gone at once."""
    with trio.fail_after(60):
        async with serve_model(model) as server:
            server.expected = None
            await server.start("orphan", {"how": how})
            await server.until_logs("orphan", "started")
            server.process.kill()
            await server.ended()
            await nothing_left(server.mark)


@pytest.mark.covers("worker:W8", "D29")
async def test_W8_D29_parent_killed_during_setup_with_children_leaves_nothing(serve_model: ServeModel) -> None:
    """Given a setup that has started children and goes on for a minute, when the parent is killed, then nothing is
    left."""
    with trio.fail_after(60):
        async with serve_model("lives.py:Trio", env={"STORY_SETUP": "children"}, status="STARTING") as server:
            server.expected = None
            while "started" not in (await server.health())["setup"].get("logs", ""):
                await trio.sleep(POLL)
            server.process.kill()
            await server.ended()
            await nothing_left(server.mark)
