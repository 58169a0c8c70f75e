"""Cancel: wherever the code is stuck, it ends, its clean-up runs, and only then the prediction is canceled."""

from __future__ import annotations

import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.server_process import SOON
from scenarios.processes import worker_of


async def test_cancel_sync_prediction(serve_model: ServeModel) -> None:
    """Given sync code that is stuck for 30 s, in one way after the other, when it is cancelled, then it is canceled
    soon, its finally block ran and was heard, the slot is free, and the next prediction runs in the same worker."""
    with trio.fail_after(60):
        async with serve_model("stuck.py") as server:
            worker = worker_of(server).pid
            for how in ("sleep", "busy", "lock", "subprocess", "yields", "deaf"):
                await server.start(how, {"how": how})
                await server.until_logs(how, "started")
                began = trio.current_time()
                assert await server.cancel(how) == 200
                seen = await server.finished(how)
                assert trio.current_time() - began < SOON, how
                assert seen["status"] == "canceled", how
                assert "cleaned up" in seen["logs"], how
                assert (await server.health())["status"] == "READY"
                assert (await server.predict({"how": "none"})).json()["output"] == ["end"]
            assert worker_of(server).pid == worker


async def test_cancel_sync_prediction_keeps_partial_output(serve_model: ServeModel) -> None:
    """Given a generator that has yielded, when it is cancelled, then what it yielded is kept."""
    with trio.fail_after(60):
        async with serve_model("stuck.py") as server:
            await server.start("some", {"how": "yields"})
            while not (await server.look("some")).get("output"):
                await trio.sleep(0.02)
            await server.cancel("some")
            seen = await server.finished("some")
    assert seen["status"] == "canceled"
    assert seen["output"][:1] == ["0"]


async def test_cancel_async_prediction_hits_only_the_named_one(serve_model: ServeModel) -> None:
    """Given two async runs at once, when one is cancelled, then it cleans up and is canceled, the other succeeds."""
    with trio.fail_after(60):
        async with serve_model("waits.py") as server:
            await server.start("one", {"name": "one", "seconds": 30})
            await server.start("two", {"name": "two", "seconds": 1})
            await server.until_logs("one", "one started")
            await server.until_logs("two", "two started")
            assert await server.cancel("one") == 200
            seen = await server.finished("one")
            assert seen["status"] == "canceled"
            assert seen["logs"] == "one started\none cleaned up\n"
            other = await server.finished("two")
    assert other["status"] == "succeeded"
    assert other["logs"] == "two started\ntwo cleaned up\n"


async def test_cancel_async_prediction_between_yields(serve_model: ServeModel) -> None:
    """Given an async generator, when it is cancelled, then it ends soon and keeps what it yielded."""
    with trio.fail_after(60):
        async with serve_model("waits.py") as server:
            await server.start("some", {"name": "some", "yields": 5000})
            while not (await server.look("some")).get("output"):
                await trio.sleep(0.02)
            assert await server.cancel("some") == 200
            seen = await server.finished("some")
    assert seen["status"] == "canceled"
    assert seen["output"][0] == "some 0"
    assert "some cleaned up" in seen["logs"]


async def test_cancel_swallowed_by_the_model_is_still_canceled(serve_model: ServeModel) -> None:
    """Given a model that catches the cancel and returns, when it is cancelled, then the status is canceled."""
    with trio.fail_after(60):
        async with serve_model("swallow.py") as server:
            await server.start("tough")
            await server.until_logs("tough", "started")
            await server.cancel("tough")
            seen = await server.finished("tough")
            assert (await server.health())["status"] == "READY"
    assert seen["status"] == "canceled"
    assert "swallowed" in seen["logs"]


async def test_cancel_of_a_sync_request_answers_it(serve_model: ServeModel) -> None:
    """Given a sync request that waits, when its prediction is cancelled, then it gets 200 with status canceled."""
    with trio.fail_after(60):
        async with serve_model("stuck.py") as server, trio.open_nursery() as nursery:

            async def cancel() -> None:
                with trio.fail_after(SOON):
                    while await server.cancel("waiting") == 404:
                        await trio.sleep(0.02)

            nursery.start_soon(cancel)
            reply = await server.client.put("/predictions/waiting", json={"input": {"how": "sleep"}})
            assert reply.status_code == 200
            assert reply.json()["status"] == "canceled"


async def test_cancel_of_unknown_is_404_and_can_be_repeated_as_long_as_it_can_be_read(serve_model: ServeModel) -> None:
    """Given one prediction, when it is cancelled before, twice during, and twice after, then 404, and then 200."""
    with trio.fail_after(60):
        async with serve_model("stuck.py") as server:
            unknown = await server.client.post("/predictions/x/cancel")
            assert (unknown.status_code, unknown.json()) == (404, {})
            await server.start("x", {"how": "sleep"})
            await server.until_logs("x", "started")
            assert [await server.cancel("x") for _ in range(2)] == [200, 200]
            assert (await server.finished("x"))["status"] == "canceled"
            assert [await server.cancel("x") for _ in range(2)] == [200, 200]


@pytest.mark.covers("http:W48")
async def test_W48_cancel_right_after_acceptance_always_works(serve_model: ServeModel) -> None:
    """Given an async creation, when the cancel is sent at once, 40 times, then each is canceled, no run goes on to
    its end, and no slot is lost."""
    with trio.fail_after(60):
        async with serve_model("stuck.py") as server:
            for number in range(40):
                await server.start(f"p{number}", {"how": "sleep", "seconds": 30})
                assert await server.cancel(f"p{number}") == 200
                assert (await server.finished(f"p{number}"))["status"] == "canceled"
            assert (await server.predict({"how": "none"})).status_code == 200


@pytest.mark.covers("http:W48", "D28")
async def test_D28_cancelled_code_that_never_stops_is_killed_after_the_grace(serve_model: ServeModel) -> None:
    """Given a call that holds the interpreter and --cancel-grace, when it is cancelled, then the worker is killed
    after the grace, the prediction fails with the reason, health is DEFUNCT, and HTTP answers."""
    with trio.fail_after(60):
        async with serve_model("holds_gil.py", "--cancel-grace", "1") as server:
            await server.start("held", {"millions": 1_000_000})
            await server.until_logs("held", "started")
            await server.cancel("held")
            seen = await server.finished("held")
            assert seen["status"] == "failed"
            assert (await server.health())["status"] == "DEFUNCT"
            assert (await server.predict()).status_code == 503
