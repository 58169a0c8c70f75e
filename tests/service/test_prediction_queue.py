"""The queue (D5) on a fake worker and a fake clock: order, bounds, and every way out of it."""

from __future__ import annotations

import functools
import json

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Predict
from cog_trio.config.settings import Settings
from cog_trio.service.service import PredictionService
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import AlreadyRunning, AtCapacity, NotReady, QueueTimedOut
from cog_trio.testing.fakes import GARBAGE, FakeWorker, deaf, exit_9, stall
from tests.service.test_service import DIED, Clock, finish_after, no_threads, serving, shown, temporary_folder

__all__ = ["no_threads", "temporary_folder"]
with_queue = functools.partial(Settings, queue=3)
one_second = functools.partial(finish_after, 1)


def queued(service: PredictionService) -> int | None:
    shown: dict[str, int] = json.loads(service.health().json())
    return shown.get("queued")


async def test_first_come_first_served(autojump_clock: Clock) -> None:
    begun: list[tuple[str, float]] = []

    async def note(worker: FakeWorker, run: Predict) -> None:
        begun.append((run.id, trio.current_time() - start))
        await one_second(worker, run)

    async with serving(note, settings=with_queue()) as (service, _):
        start = trio.current_time()
        predictions = [service.create(NewPrediction(id=id)) for id in "abcd"]
        for prediction in predictions:
            await prediction.wait_finished()
        assert begun == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
        assert {prediction.status.value for prediction in predictions} == {"succeeded"}


@pytest.mark.covers("D5")
async def test_a_queued_prediction_is_registered_and_starting(autojump_clock: Clock) -> None:
    async with serving(one_second, settings=with_queue()) as (service, _):
        service.create(NewPrediction(id="a"))
        with trio.testing.assert_no_checkpoints():
            prediction = service.create(NewPrediction(id="b"))
        await trio.testing.wait_all_tasks_blocked()
        assert service.running("b") is service.get("b") is prediction
        assert (shown(prediction)["status"], prediction.queued) == ("starting", True)
        assert "started_at" not in shown(prediction)
        with pytest.raises(AlreadyRunning):
            service.create(NewPrediction(id="b"))
        await prediction.wait_finished()
        assert (prediction.status.value, prediction.queued) == ("succeeded", False)


@pytest.mark.covers("D5")
async def test_a_full_queue_refuses(autojump_clock: Clock) -> None:
    async with serving(stall, settings=with_queue(), slots=2) as (service, _):
        for _ in range(5):
            service.create(NewPrediction())
        with pytest.raises(AtCapacity) as refused:
            service.create(NewPrediction(id="x"))
        assert (refused.value.text, refused.value.id) == ("At capacity - all prediction slots busy", "x")
        assert service.running("x") is None


async def test_health_counts_who_waits(autojump_clock: Clock) -> None:
    async with serving(stall, settings=with_queue()) as (service, _):
        seen = [(queued(service), service.health().status)]
        for _ in range(3):
            service.create(NewPrediction())
            seen.append((queued(service), service.health().status))
        assert seen == [(0, "READY"), (0, "BUSY"), (1, "BUSY"), (2, "BUSY")]


@pytest.mark.covers("D5")
async def test_without_a_queue_health_is_as_ever(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        assert queued(service) is None


@pytest.mark.covers("D5")
async def test_cancel_leaves_the_queue_at_once(autojump_clock: Clock) -> None:
    async with serving(stall, settings=with_queue()) as (service, worker):
        service.create(NewPrediction(id="runs"))
        waiting = [service.create(NewPrediction(id=id)) for id in "abc"]
        await trio.sleep(2)
        with trio.testing.assert_no_checkpoints():
            assert service.cancel("b")
            assert queued(service) == 2
            service.create(NewPrediction(id="d"))
        await waiting[1].wait_finished()
        assert (waiting[1].status.value, waiting[1].predict_time, waiting[1].refusal) == ("canceled", 2.0, None)
        assert service.get("b") is waiting[1]
        for id in ("runs", "a", "c", "d"):
            assert service.cancel(id)
            await trio.testing.wait_all_tasks_blocked()
        assert service.health().status == "READY"
        assert worker.kills == 0


async def test_one_who_is_cancelled_as_the_slot_comes_free_does_not_take_it(autojump_clock: Clock) -> None:
    """In one step: the queue's first is cancelled, and so is what runs; the second gets the slot."""
    async with serving(stall, settings=with_queue()) as (service, _):
        service.create(NewPrediction(id="runs"))
        first, second = service.create(NewPrediction(id="first")), service.create(NewPrediction(id="second"))
        await trio.testing.wait_all_tasks_blocked()
        service.cancel("runs")
        service.cancel("first")
        await trio.testing.wait_all_tasks_blocked()
        assert (first.status.value, second.status.value) == ("canceled", "processing")


@pytest.mark.parametrize("checkpoints", range(12))
async def test_a_cancel_at_any_step_loses_no_slot(autojump_clock: Clock, checkpoints: int) -> None:
    async with serving(settings=with_queue()) as (service, _):
        for _ in range(4):
            service.create(NewPrediction())
        service.cancel("mine")
        prediction = service.get("mine")
        assert prediction is None
    async with serving(settings=with_queue()) as (service, _):
        service.create(NewPrediction(id="runs"))
        prediction = service.create(NewPrediction(id="mine"))
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        cancelled = service.cancel("mine")
        await prediction.wait_finished()
        assert prediction.status.value == ("canceled" if cancelled else "succeeded")
        for _ in range(3):
            assert (await service.predict()).status.value == "succeeded"
        assert (service.health().status, queued(service)) == ("READY", 0)


async def test_who_waits_too_long_fails_with_its_own_text(autojump_clock: Clock) -> None:
    async with serving(stall, settings=with_queue(queue_timeout=7.0)) as (service, _):
        service.create(NewPrediction(id="runs"))
        prediction = service.create(NewPrediction(id="a"))
        await prediction.wait_finished()
        assert (prediction.status.value, prediction.predict_time) == ("failed", 7.0)
        assert prediction.error == "No prediction slot became free within 7 s"
        assert isinstance(prediction.refusal, QueueTimedOut)
        assert prediction.refusal.id == "a"
        assert (queued(service), service.get("a")) == (0, prediction)
        start = trio.current_time()
        with pytest.raises(QueueTimedOut):
            await service.predict()
        assert trio.current_time() - start == 7.0


async def test_a_slot_that_comes_with_the_timeout_is_used_or_goes_on(autojump_clock: Clock) -> None:
    """Both fall on the same second; whichever is first, no slot is lost."""
    async with serving(functools.partial(finish_after, 7), settings=with_queue(queue_timeout=7.0)) as (service, _):
        service.create(NewPrediction(id="runs"))
        prediction = service.create(NewPrediction(id="a"))
        await prediction.wait_finished()
        assert prediction.status.value in ("succeeded", "failed")
        assert (await service.predict()).status.value == "succeeded"


async def test_the_time_limit_counts_from_dispatch(autojump_clock: Clock) -> None:
    async with serving(one_second, settings=with_queue(predict_timeout=1.5)) as (service, _):
        predictions = [service.create(NewPrediction()) for _ in range(4)]
        for prediction in predictions:
            await prediction.wait_finished()
        assert [prediction.status.value for prediction in predictions] == ["succeeded"] * 4


@pytest.mark.covers("D4")
async def test_D4_the_last_watcher_to_leave_takes_it_out_of_the_queue(autojump_clock: Clock) -> None:
    async with serving(stall, settings=with_queue()) as (service, _):
        service.create(NewPrediction())
        prediction = service.create(NewPrediction(watched=True))
        with service.watch(prediction):
            await trio.sleep(1)
        assert queued(service) == 0
        await prediction.wait_finished()
        assert prediction.status.value == "canceled"


@pytest.mark.covers("D5")
async def test_a_drain_empties_the_queue(autojump_clock: Clock) -> None:
    async with serving(one_second, settings=with_queue()) as (service, _):
        runs, waits = service.create(NewPrediction()), service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        service.shutdown()
        await waits.wait_finished()
        assert (waits.status.value, waits.error, waits.predict_time) == ("failed", "Server is shutting down", 0.0)
        assert isinstance(waits.refusal, NotReady)
        await service.wait_stopped()
        assert runs.status.value == "succeeded"


@pytest.mark.covers("D5")
async def test_a_lost_worker_empties_the_queue(autojump_clock: Clock) -> None:
    async def die(worker: FakeWorker, run: Predict) -> None:
        await trio.sleep(1)
        await exit_9(worker, run)

    async with serving(die, settings=with_queue()) as (service, _):
        runs, *waiting = (service.create(NewPrediction()) for _ in range(3))
        for prediction in waiting:
            await prediction.wait_finished()
            assert prediction.error == f"The worker is gone, predictions can't run: {DIED}"
            assert isinstance(prediction.refusal, NotReady)
        await runs.wait_finished()
        assert (runs.error, runs.refusal, service.health().status) == (DIED, None, "DEFUNCT")


async def test_an_outer_cancellation_ends_those_who_wait(autojump_clock: Clock) -> None:
    with trio.move_on_after(4):
        async with serving(stall, settings=with_queue()) as (service, _):
            predictions = [service.create(NewPrediction()) for _ in range(3)]
            await trio.sleep_forever()
    assert [prediction.terminal for prediction in predictions] == [True] * 3


@pytest.mark.covers("http:W1")
async def test_W1_who_learns_of_an_end_meets_no_409_with_a_queue(autojump_clock: Clock) -> None:
    """Two clients, one slot, one place: each sends its next as soon as it knows of its last."""

    async def client(service: PredictionService) -> None:
        for _ in range(200):
            assert (await service.predict()).status.value == "succeeded"

    async with serving(settings=with_queue(queue=1)) as (service, _), trio.open_nursery() as nursery:
        nursery.start_soon(client, service)
        nursery.start_soon(client, service)


# Without a queue: slots that are being freed.


async def slow_to_stop(worker: FakeWorker, run: Predict) -> None:
    """Runs on for 10 ms after its cancel, then ends."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.01)


@pytest.mark.covers("D5")
async def test_a_create_waits_for_a_slot_whose_run_is_being_cancelled(autojump_clock: Clock) -> None:
    async with serving(slow_to_stop) as (service, _):
        first = service.create(NewPrediction(id="first"))
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        second = service.create(NewPrediction(id="second"))
        assert (second.queued, second.waits_briefly) == (True, True)
        with pytest.raises(AtCapacity):
            service.create(NewPrediction(id="third"))
        decided: list[str] = []
        second.on_decision(lambda prediction: decided.append(prediction.status.value))
        await first.wait_finished()
        await trio.testing.wait_all_tasks_blocked()
        assert (first.status.value, second.status.value, decided) == ("canceled", "processing", ["processing"])
        second.cancel()
        await second.wait_finished()
        assert service.health().status == "READY"


@pytest.mark.covers("D5")
async def test_a_run_that_ignores_its_cancel_still_gives_409(autojump_clock: Clock) -> None:
    async with serving(deaf) as (service, worker):
        first = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        second = service.create(NewPrediction(webhook="http://127.0.0.1:1/"))
        await second.wait_finished()
        assert isinstance(second.refusal, AtCapacity)
        assert second.predict_time == 0.02
        assert service.get(second.id) is None, "it was never created"
        statistics = service.statistics()
        assert (statistics.created, statistics.refused, statistics.failed, statistics.webhooks) == (1, 1, 0, 0)
        worker.exit(-9)


@pytest.mark.covers("D5")
async def test_a_slot_that_is_lost_while_it_stops_is_waited_for_no_longer(autojump_clock: Clock) -> None:
    async with serving(deaf, slots=2) as (service, worker):
        runs = [service.create(NewPrediction()) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked()
        runs[0].cancel()
        await trio.testing.wait_all_tasks_blocked()
        worker.slots[1].up.put(GARBAGE)
        worker.slots[0].up.put(GARBAGE)
        await trio.testing.wait_all_tasks_blocked()
        assert service._worker_pool.permits.stopping == 0
        worker.exit(-9)
