"""Signals and POST /shutdown: what is in flight gets its time, HTTP answers meanwhile, and the end is exit code 0."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from cog_trio.testing import ServeModel, Server
from scenarios.processes import children_of


@pytest.mark.covers("http:W15", "D38")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_W15_idle_server_leaves_with_0(serve_model: ServeModel, tmp_path: Path, number: signal.Signals) -> None:
    """Given an idle server, when it gets SIGTERM, SIGINT or SIGHUP, then it exits with 0, without a traceback, and the
    model's atexit handlers have run."""
    said = tmp_path / "said"
    with trio.fail_after(60):
        async with serve_model("goodbye.py", env={"STORY_FILE": str(said)}) as server:
            assert await server.stop(number) == 0
    assert said.read_text() == "goodbye"
    assert not [entry for entry in server.log if "Traceback" in str(entry)]


async def test_shutdown_route_ends_the_server(serve_model: ServeModel) -> None:
    """Given an idle server, when POST /shutdown comes, then 200 with an empty object, and exit 0."""
    with trio.fail_after(60):
        async with serve_model("echo.py") as server:
            reply = await server.client.post("/shutdown")
            assert (reply.status_code, reply.json()) == (200, {})
            assert await server.ended() == 0


@pytest.mark.covers("http:W13", "http:W14")
async def test_W13_W14_drain_lets_running_predictions_end_and_answers_meanwhile(
    serve_model: ServeModel, tmp_path: Path
) -> None:
    """Given a sync and an async prediction, when SIGTERM comes, then health says draining, creates get 503, both
    predictions end well and the sync one is answered, then exit 0."""
    outcome: dict[str, Any] = {}
    with trio.fail_after(60):
        async with serve_model("waits.py") as server, trio.open_nursery() as nursery:

            async def ask() -> None:
                reply = await server.client.put("/predictions/sync", json={"input": {"name": "sync", "seconds": 3}})
                outcome.update(reply.json())

            nursery.start_soon(ask)
            await server.start("async", {"name": "async", "seconds": 2})
            await server.until_logs("async", "async started")
            with trio.fail_after(10):
                while (await server.client.get("/predictions/sync")).status_code == 404:
                    await trio.sleep(0.02)
            await server.until_logs("sync", "sync started")
            server.process.send_signal(signal.SIGTERM)
            with trio.fail_after(10):
                while not (await server.health()).get("draining"):
                    await trio.sleep(0.02)
            assert (await server.health())["status"] == "READY"
            reply = await server.predict()
            assert reply.status_code == 503
            assert reply.json()["error"] == "Server is shutting down"
            assert (await server.finished("async"))["status"] == "succeeded"
            assert await server.ended() == 0
    assert outcome["status"] == "succeeded"


async def _drain(server: Server, outcome: dict[str, Any], *, second: bool) -> None:
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            outcome.update((await server.client.put("/predictions/x", json={"input": {"seconds": 60}})).json())

        nursery.start_soon(ask)
        await server.until("BUSY")
        await server.until_logs("x", "started")
        server.process.send_signal(signal.SIGTERM)
        if second:
            with trio.fail_after(10):
                while not (await server.health()).get("draining"):
                    await trio.sleep(0.02)
            server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == 0


@pytest.mark.covers("http:W14", "worker:W11")
@pytest.mark.parametrize("second", [False, True])
async def test_W14_end_of_the_grace_or_a_second_signal_cancels_the_rest(
    serve_model: ServeModel, tmp_path: Path, second: bool
) -> None:
    """Given a prediction of a minute, when the drain grace of 1 s is over, or with a long grace a second SIGTERM
    comes, then it is canceled, its finally block ran, its caller is answered, and exit 0."""
    outcome: dict[str, Any] = {}
    said = tmp_path / "said"
    with trio.fail_after(60):
        async with serve_model(
            "goodbye.py", "--drain-grace", "50" if second else "1", env={"STORY_FILE": str(said)}
        ) as server:
            began = trio.current_time()
            await _drain(server, outcome, second=second)
            assert trio.current_time() - began < 30
    assert outcome["status"] == "canceled"
    assert "cleaned up" in outcome["logs"]
    assert said.read_text() == "goodbye"


@pytest.mark.covers("http:W17")
async def test_W17_signal_to_the_whole_group_does_not_touch_the_worker(serve_model: ServeModel) -> None:
    """Given a running prediction, when SIGTERM goes to every process of the server's group, then it still ends well."""
    outcome: dict[str, Any] = {}
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server, trio.open_nursery() as nursery:

            async def ask() -> None:
                outcome.update((await server.predict({"seconds": 2})).json())

            nursery.start_soon(ask)
            await server.until("BUSY")
            for process in (server.process.pid, *(child.pid for child in children_of(server))):
                os.kill(process, signal.SIGTERM)
            assert await server.ended() == 0
    assert outcome["status"] == "succeeded"


async def test_await_explicit_shutdown_ignores_sigterm(serve_model: ServeModel) -> None:
    """Given --await-explicit-shutdown, when SIGTERM comes, then the server goes on; POST /shutdown ends it."""
    with trio.fail_after(60):
        async with serve_model("echo.py", "--await-explicit-shutdown") as server:
            server.process.send_signal(signal.SIGTERM)
            with trio.fail_after(10):
                while not any("SIGTERM" in entry.get("message", "") for entry in server.log):
                    await trio.sleep(0.02)
            assert (await server.predict({"text": "on"})).json()["output"] == "on"
            await server.client.post("/shutdown")
            assert await server.ended() == 0


async def test_a_closed_listener_refuses(serve_model: ServeModel) -> None:
    """Given a server that has ended, when a client connects, then it is refused."""
    with trio.fail_after(60):
        async with serve_model("echo.py") as server:
            await server.stop()
            with pytest.raises(httpx.ConnectError):
                await server.health()
