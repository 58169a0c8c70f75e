"""Ends that nobody asked for: of a run, of the worker, of the parent."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.processes import GONE, POLL, marked, nothing_left
from scenarios.processes import worker_of


@pytest.mark.parametrize(("how", "error"), [("raise", "boom"), ("exit", "SystemExit"), ("interrupt", "Keyboard")])
async def test_a_run_that_fails_leaves_the_worker_alive(serve_model: ServeModel, how: str, error: str) -> None:
    """Given a model that raises or exits, when it runs, then that prediction fails with the type named, its logs
    are kept, and the same worker serves the next one."""
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server:
            worker = worker_of(server).pid
            reply = await server.predict({"how": how})
            assert reply.status_code == 200
            assert reply.json()["status"] == "failed"
            assert error in reply.json()["error"]
            assert "started" in reply.json()["logs"]
            assert (await server.predict()).json()["output"] == "return"
            assert worker_of(server).pid == worker


async def _fails_by(server: Any, how: str, words: list[str]) -> None:
    """A running prediction whose worker ends: failed, DEFUNCT, 503, and HTTP is alive."""
    outcome: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            reply = await server.client.put("/predictions/last", json={"input": {"how": how, "seconds": 30}})
            outcome.update(reply.json(), code=reply.status_code)

        nursery.start_soon(ask)
        if how == "return":
            await server.until("BUSY")
            await server.until_logs("last", "started")
            os.kill(worker_of(server).pid, signal.SIGKILL)
    assert outcome["code"] == 200
    assert outcome["status"] == "failed"
    assert all(word in outcome["error"] for word in words), outcome["error"]
    assert "started" in outcome["logs"]
    assert (await server.health())["status"] == "DEFUNCT"
    reply = await server.predict()
    assert reply.status_code == 503
    assert "Setup has not finished" not in reply.json()["error"]
    for path, status in (("/", 200), ("/livez", 503), ("/readyz", 503)):
        assert (await server.client.get(path)).status_code == status
    assert (await server.look("last"))["status"] == "failed"
    with trio.fail_after(GONE):
        while marked(server.mark) != [server.process.pid]:
            await trio.sleep(POLL)


@pytest.mark.covers("http:W6", "D14", "worker:W1")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("return", ["Worker died", "signal 9", "SIGKILL"]),
        ("segfault", ["Worker died", "signal 11", "SIGSEGV"]),
        ("leave", ["Worker died", "9"]),
    ],
)
async def test_W6_worker_that_dies_fails_its_prediction_and_says_so(
    serve_model: ServeModel, how: str, words: list[str]
) -> None:
    """Given a running prediction, when its worker is killed or takes itself down, then the caller gets failed with
    the cause, health is DEFUNCT, creates get 503, HTTP is alive and nothing of the worker is left."""
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server:
            await _fails_by(server, how, words)


@pytest.mark.covers("D29")
@pytest.mark.parametrize("how", ["return", "child"])
async def test_D29_killed_parent_leaves_nothing(serve_model: ServeModel, how: str) -> None:
    """Given a running prediction, with a child that is deaf to SIGTERM, when the parent is killed, then worker and
    child are gone at once."""
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server:
            server.expected = None
            await server.start("orphan", {"how": how, "seconds": 60})
            await server.until_logs("orphan", "started")
            assert len(marked(server.mark)) >= 2
            server.process.kill()
            await server.ended()
            await nothing_left(server.mark)


@pytest.mark.covers("D29")
async def test_D29_killed_parent_leaves_nothing_while_the_interpreter_is_held(serve_model: ServeModel) -> None:
    """Given a model that holds the interpreter, when the parent is killed, then the worker is gone at once."""
    with trio.fail_after(60):
        async with serve_model("holds_gil.py") as server:
            server.expected = None
            await server.start("held", {"millions": 1_000_000})
            await server.until_logs("held", "started")
            server.process.kill()
            await server.ended()
            await nothing_left(server.mark)


@pytest.mark.covers("D29")
async def test_D29_parent_killed_during_setup_leaves_nothing(serve_model: ServeModel) -> None:
    """Given a worker in a long setup, when the parent is killed, then the worker is gone at once."""
    with trio.fail_after(60):
        async with serve_model("slow_setup.py", status="STARTING") as server:
            server.expected = None
            server.process.kill()
            await server.ended()
            await nothing_left(server.mark)
