"""The time limit of a prediction: from dispatch; it has failed when its work has stopped, and then its slot is free."""

from __future__ import annotations

import functools

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Cancel, Predict, RunCancelled
from cog_trio.config.settings import Settings
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.status import Blame
from cog_trio.testing.fakes import FakeWorker, deaf, exit_9, proof_of, stall
from tests.bench import opened, outcome_of
from tests.service.test_service import Clock, ended, finish_after, no_threads, serving, shown, temporary_folder

__all__ = ["no_threads", "temporary_folder"]
LATE = "Prediction timed out after 3 s"
limited = functools.partial(Settings, predict_timeout=3.0)


async def test_a_prediction_over_its_limit_has_failed_and_its_slot_is_free(autojump_clock: Clock) -> None:
    async with serving(stall, settings=limited()) as (service, worker):
        prediction = service.create(NewPrediction(id="a"))
        await prediction.wait_finished()
        assert (prediction.status.value, prediction.error, prediction.predict_time) == ("failed", LATE, 3.0)
        assert service.health().status == "READY"
        assert worker.kills == 0
        assert (await ended(service, id="a")).error == LATE, "and the next one has its own"


async def test_one_that_ends_in_time_is_not_touched(autojump_clock: Clock) -> None:
    async with serving(functools.partial(finish_after, 2.5), settings=limited()) as (service, _):
        prediction = await ended(service)
        await trio.sleep(10)
        assert (prediction.status.value, prediction.predict_time) == ("succeeded", 2.5)
        assert (await ended(service)).status.value == "succeeded"


async def test_failed_is_said_only_when_the_work_has_stopped(autojump_clock: Clock) -> None:
    async def slow_to_stop(worker: FakeWorker, run: Predict) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(4)

    async with serving(slow_to_stop, settings=limited()) as (service, _):
        prediction = service.create(NewPrediction())
        await trio.sleep(6)
        assert (prediction.status.value, service.health().status) == ("processing", "BUSY")
        await prediction.wait_finished()
        assert (prediction.error, prediction.predict_time) == (LATE, 7.0)


async def test_a_model_that_swallows_the_stop_has_failed_with_what_it_put_out(autojump_clock: Clock) -> None:
    async def survive(worker: FakeWorker, run: Predict) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        worker.finish(run, b'"survived"')

    async with serving(survive, settings=limited()) as (service, _):
        snapshot = shown(await ended(service))
        assert (snapshot["status"], snapshot["error"], snapshot["output"]) == ("failed", LATE, "survived")


@pytest.mark.covers("D28")
async def test_D28_with_a_grace_the_worker_is_killed(autojump_clock: Clock) -> None:
    async with serving(deaf, settings=limited(cancel_grace=4.0)) as (service, worker):
        prediction = await ended(service)
        assert (prediction.status.value, prediction.predict_time) == ("failed", 7.0)
        assert prediction.error == "Worker killed: a prediction over its time limit did not stop within 4 s"
        assert (service.health().status, bool(worker.kills)) == ("DEFUNCT", True)


async def test_cancelled_before_the_limit_is_canceled_also_after_it(autojump_clock: Clock) -> None:
    async def slow_to_stop(worker: FakeWorker, run: Predict) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        worker.finish(run)

    async with serving(slow_to_stop, settings=limited()) as (service, _):
        prediction = service.create(NewPrediction(id="a"))
        await trio.sleep(2)
        service.cancel("a")
        await prediction.wait_finished()
        assert (prediction.status.value, prediction.predict_time) == ("canceled", 5.0)


async def test_cancelled_after_the_limit_has_failed(autojump_clock: Clock) -> None:
    """And the worker is asked once: the run is being stopped already."""
    async with opened(predict_timeout=3.0) as bench:
        run, predict = await bench.begin()
        await trio.sleep(4)
        run.prediction.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert await bench.worker.next_control(Cancel) == Cancel(predict.slot, predict.id, predict.run)
        assert not bench.worker.wire.down.data
        bench.worker.send(RunCancelled(proof_of(predict)))
        await run.over.wait()
        assert run.outcome == outcome_of(LATE, Blame.LIMIT)


async def test_a_crash_while_it_stops_is_told_as_a_crash(autojump_clock: Clock) -> None:
    async def die(worker: FakeWorker, run: Predict) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(4)
        await exit_9(worker, run)

    async with serving(die, settings=limited()) as (service, _):
        assert "Worker died: signal 9" in str((await ended(service)).error)
