"""Setup that fails, takes too long, or never gets that far: SETUP_FAILED with the cause, and HTTP lives."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from cog_trio.testing import ServeModel, Server
from cog_trio.testing.processes import nothing_left
from scenarios.processes import children_of


async def _failed(server: Server) -> dict[str, Any]:
    """The setup of a server whose start failed; predictions are refused with a text that says so."""
    health = await server.until("SETUP_FAILED", 30)
    reply = await server.predict(id="refused")
    assert reply.status_code == 503
    assert reply.json()["status"] == "failed"
    assert reply.json()["id"] == "refused"
    assert "Setup has not finished" not in reply.json()["error"]
    setup = health["setup"]
    assert setup["status"] == "failed"
    assert setup["completed_at"] >= setup["started_at"]
    assert isinstance(setup, dict)
    return {**setup, "error": reply.json()["error"]}


@pytest.mark.covers("http:W8")
async def test_W8_setup_that_raises_shows_its_logs_and_the_traceback(serve_model: ServeModel) -> None:
    """Given a setup that prints and raises, when the server starts, then SETUP_FAILED, the logs have what it wrote
    and the traceback, predictions get 503 with the cause, and no worker stays."""
    with trio.fail_after(60):
        async with serve_model("bad_setup.py", status=None, env={"STORY": "raise"}) as server:
            setup = await _failed(server)
            assert server.process.returncode is None
    assert "loading weights" in setup["logs"]
    assert "from the descriptor" in setup["logs"]
    assert "Traceback" in setup["logs"]
    assert "ValueError: bad weights" in setup["logs"]
    assert "bad weights" in setup["error"]


@pytest.mark.covers("http:W7")
@pytest.mark.parametrize(("how", "cause"), [("exit", "no more"), ("leave", "7")])
async def test_W7_setup_that_ends_the_worker(serve_model: ServeModel, how: str, cause: str) -> None:
    """Given a setup that exits or takes its process down, when the server starts, then SETUP_FAILED says how it
    ended, with the last lines it wrote."""
    with trio.fail_after(60):
        async with serve_model("bad_setup.py", status=None, env={"STORY": how}) as server:
            setup = await _failed(server)
    assert "loading weights" in setup["logs"]
    assert cause in setup["logs"]


@pytest.mark.covers("D38")
async def test_import_error_is_a_failed_setup(serve_model: ServeModel) -> None:
    """Given a model that can't be imported, when the server starts, then SETUP_FAILED with the traceback."""
    with trio.fail_after(60):
        async with serve_model("bad_import.py", status=None) as server:
            setup = await _failed(server)
    assert "ModuleNotFoundError" in setup["logs"]
    assert "no_such_module" in setup["logs"]


@pytest.mark.covers("D38")
async def test_missing_class_is_a_failed_setup(serve_model: ServeModel) -> None:
    """Given the name of a class that is not there, when the server starts, then SETUP_FAILED names it."""
    with trio.fail_after(60):
        async with serve_model("echo.py:Nobody", status=None) as server:
            setup = await _failed(server)
    assert "Nobody" in setup["logs"]


@pytest.mark.covers("D33")
async def test_D33_sync_model_with_two_slots_is_a_failed_setup(serve_model: ServeModel) -> None:
    """Given a sync model and --max-concurrency 2, when the server starts, then SETUP_FAILED says what it takes."""
    with trio.fail_after(60):
        async with serve_model("echo.py", "--max-concurrency", "2", status=None) as server:
            setup = await _failed(server)
    assert "async" in setup["logs"]


@pytest.mark.covers("http:W10")
async def test_setup_timeout_ends_the_worker(serve_model: ServeModel) -> None:
    """Given a setup of a minute and --setup-timeout 5, when the server starts, then STARTING with the logs so far,
    after 5 s SETUP_FAILED, and the worker is gone."""
    with trio.fail_after(60):
        async with serve_model("slow_setup.py", "--setup-timeout", "5", status="STARTING") as server:
            reply = await server.predict()
            assert reply.status_code == 503
            assert "Setup has not finished yet" in reply.json()["error"]
            setup = await _failed(server)
            assert "fetching weights" in setup["logs"]
            assert "timed out" in setup["error"]
            with trio.fail_after(20):
                while server.process.returncode is None and children_of(server):
                    await trio.sleep(0.02)


@pytest.mark.covers("D17")
async def test_setup_logs_show_while_it_runs_and_a_signal_ends_it(serve_model: ServeModel) -> None:
    """Given a setup of a minute, when it runs, then its logs show and the schema is there; SIGTERM ends both
    processes at once with 0."""
    with trio.fail_after(60):
        async with serve_model("slow_setup.py", status="STARTING") as server:
            with trio.fail_after(20):
                while "fetching weights" not in (await server.health())["setup"].get("logs", ""):
                    await trio.sleep(0.02)
            for path, status in (("/openapi.json", 200), ("/livez", 200), ("/readyz", 503)):
                assert (await server.client.get(path)).status_code == status
            assert await server.stop() == 0
            await nothing_left(server.mark)
