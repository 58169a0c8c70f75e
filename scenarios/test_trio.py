"""Trio-native models on a real server: nurseries, cancel by the scope, and tasks that last as long as the worker."""

from __future__ import annotations

import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.server_process import SOON

NAMES = ("one", "two", "three")


async def test_one_child_of_three_fails(serve_model: ServeModel) -> None:
    """Given a run whose nursery has three children, when one fails, then the prediction fails with that error named,
    the other two were cancelled, and the logs and metrics of all three are there; the next one succeeds."""
    with trio.fail_after(60):
        async with serve_model("nursery.py") as server:
            seen = (await server.predict({"how": "fail"})).json()
            fine = (await server.predict({"how": "none"})).json()
            health = await server.health()
    assert (seen["status"], seen["error"]) == ("failed", "ValueError: two gives up")
    lines = seen["logs"].splitlines()
    assert sorted(line for line in lines if line.endswith("begins")) == sorted(f"{name} begins" for name in NAMES)
    assert sorted(line for line in lines if line.endswith("cancelled")) == ["one cancelled", "three cancelled"]
    assert "two in a thread" in lines
    assert 'raise ValueError("two gives up")' in seen["logs"]
    assert seen["metrics"]["children"] == 3
    assert (fine["status"], fine["output"]) == ("succeeded", "done")
    assert health["status"] == "READY"


@pytest.mark.covers("D52")
async def test_cancel_is_the_scope_and_hits_only_the_named_one(serve_model: ServeModel) -> None:
    """Given two runs at once, one of them perhaps with a child that blocks the loop, when that one is cancelled, then
    all of its children are, it is canceled soon, and the other one goes on until it is cancelled too."""
    with trio.fail_after(60):
        async with serve_model("nursery.py") as server:
            await server.start("b", {"how": "wait", "name": "b "})
            await server.until_logs("b", "begins")
            for how, said in (("wait", "three in a thread"), ("block", "blocking")):
                await server.start(how, {"how": how})
                await server.until_logs(how, said)
                began = trio.current_time()
                assert await server.cancel(how) == 200
                seen = await server.finished(how)
                assert trio.current_time() - began < SOON
                assert seen["status"] == "canceled"
                begun = {line.split()[0] for line in seen["logs"].splitlines() if line.endswith("begins")}
                assert all(f"{name} cancelled" in seen["logs"] for name in begun)
                assert (await server.look("b"))["status"] == "processing"
            assert await server.cancel("b") == 200
            other = await server.finished("b")
            assert (await server.health())["status"] == "READY"
            assert (await server.predict({"how": "none"})).json()["output"] == "done"
    assert other["status"] == "canceled"


@pytest.mark.covers("D52")
async def test_a_background_task_that_fails_is_no_healthy_worker(serve_model: ServeModel) -> None:
    """Given a task in the worker's nursery, when it fails, then the run of the moment fails by its error, health is
    DEFUNCT, and predictions get 503 with the cause."""
    with trio.fail_after(60):
        async with serve_model("batches.py") as server:
            assert (await server.predict({"number": 21})).json()["output"] == 42
            seen = (await server.predict({"number": -1})).json()
            await server.until("DEFUNCT")
            refused = await server.predict({"number": 1})
    assert seen["status"] == "failed"
    assert seen["error"] == "ConnectionError: the backend is gone (in a background task of the model)"
    assert refused.status_code == 503
    assert "ConnectionError: the backend is gone" in refused.text
