"""The user's health check: what it says shows, and what it does never stands in anybody's way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from cog_trio.testing import ServeModel


@pytest.fixture
def says(tmp_path: Path) -> Path:
    file = tmp_path / "says"
    file.write_text("well")
    return file


def _env(says: Path) -> dict[str, Any]:
    return {"env": {"STORY_FILE": str(says)}}


@pytest.mark.parametrize("model", ["health.py", "health_async.py"])
async def test_healthcheck_unhealthy_is_passing_and_predictions_go_on(
    serve_model: ServeModel, says: Path, model: str
) -> None:
    """Given a check that says no, when health is asked, then UNHEALTHY with the reason, predictions still run,
    and as soon as the check says yes, READY."""
    with trio.fail_after(60):
        async with serve_model(model, **_env(says)) as server:
            says.write_text("ill")
            seen = await server.health()
            assert seen["status"] == "UNHEALTHY"
            assert "returned False" in seen["user_healthcheck_error"]
            assert (await server.client.get("/readyz")).status_code == 503
            assert (await server.client.get("/livez")).status_code == 200
            assert (await server.predict()).json()["status"] == "succeeded"
            says.write_text("well")
            assert (await server.health())["status"] == "READY"
            assert (await server.client.get("/readyz")).status_code == 200


async def test_healthcheck_that_raises_shows_the_exception(serve_model: ServeModel, says: Path) -> None:
    """Given a check that raises, when health is asked, then UNHEALTHY and the text of the exception."""
    with trio.fail_after(60):
        async with serve_model("health.py", **_env(says)) as server:
            says.write_text("raise")
            seen = await server.health()
    assert seen["status"] == "UNHEALTHY"
    assert "RuntimeError: hc exploded" in seen["user_healthcheck_error"]


@pytest.mark.covers("http:W27")
@pytest.mark.parametrize("model", ["health.py", "health_async.py"])
async def test_W27_healthcheck_timeout_leaves_the_slots_alone(serve_model: ServeModel, says: Path, model: str) -> None:
    """Given a check that takes 30 s, when health is asked, then UNHEALTHY after 5 s, and a prediction that comes
    meanwhile is served at once."""
    seen: dict[str, Any] = {}
    with trio.fail_after(60):
        async with serve_model(model, **_env(says)) as server:
            says.write_text("sleep")
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    seen.update(await server.health())

                nursery.start_soon(ask)
                began = trio.current_time()
                assert (await server.predict()).status_code == 200
                assert trio.current_time() - began < 4
            took = trio.current_time() - began
    assert seen["status"] == "UNHEALTHY"
    assert "timed out after 5.0 seconds" in seen["user_healthcheck_error"]
    assert took < 15


async def test_healthcheck_runs_while_the_slot_is_busy(serve_model: ServeModel, says: Path) -> None:
    """Given a running prediction on the only slot, when health is asked, then BUSY, or UNHEALTHY if the check says
    so, and the prediction ends well."""
    with trio.fail_after(60):
        async with serve_model("health.py", **_env(says)) as server:
            await server.start("long", {"seconds": 3})
            await server.until_logs("long", "started")
            assert (await server.health())["status"] == "BUSY"
            says.write_text("ill")
            assert (await server.health())["status"] == "UNHEALTHY"
            assert (await server.finished("long"))["status"] == "succeeded"


@pytest.mark.covers("http:W28")
async def test_W28_without_a_check_health_answers_while_the_interpreter_is_held(serve_model: ServeModel) -> None:
    """Given a model without a check in a long call that holds the interpreter, when health is asked, then BUSY
    at once."""
    with trio.fail_after(60):
        async with serve_model("holds_gil.py") as server:
            await server.start("held")
            await server.until_logs("held", "started")
            began = trio.current_time()
            for _ in range(20):
                assert (await server.health())["status"] in ("BUSY", "READY")
            assert trio.current_time() - began < 4
            await server.finished("held")
