"""Streams as the service offers them: runs with names of their own, followers, the grace, a drain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import LogLine, LogSource, OutputChunk, Predict
from cog_trio.config.settings import Settings
from cog_trio.service.open_service import open_service
from cog_trio.service.service import PredictionService
from cog_trio.state.event_log import Boundary, Event, LogEvent, OtherRun, Subscription
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.refusals import AtCapacity
from cog_trio.state.status import Status
from cog_trio.testing.fakes import FakeWorker, exit_9, open_fake_worker, stall

Clock = trio.testing.MockClock
Behaviour = Callable[[FakeWorker, Predict], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run_sync(function: Callable[..., Any], *args: Any, **_: Any) -> Any:  # threads know no fake clock
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@asynccontextmanager
async def serving(behaviour: Behaviour, settings: Settings | None = None) -> AsyncIterator[PredictionService]:
    async with open_fake_worker(behaviour) as fake:
        fake.inputs = None
        async with open_service("m.py", worker=fake, settings=settings or Settings()) as service:
            await service.wait_started()
            yield service


async def three(worker: FakeWorker, run: Predict) -> None:
    """An output each second, and a line before the last."""
    for index in range(3):
        await trio.sleep(1)
        if index == 2:
            worker.send(LogLine(LogSource.STDOUT, "almost\n"), run.slot)
        worker.send(OutputChunk(msgspec.Raw(b"%d" % index), index), run.slot)
    worker.finish(run)


async def rest(subscription: Subscription) -> list[Event]:
    events: list[Event] = []
    while not subscription.over:
        await subscription.wait()
        events += subscription.read().events
    return events


def started(service: PredictionService, id: str = "p") -> tuple[Prediction, Subscription]:
    prediction = service.create(NewPrediction(id=id, streamed=True))
    return prediction, service.follow(prediction)


@pytest.mark.covers("http:W1")
async def test_events_come_when_they_happen_and_the_end_when_the_slot_is_free(autojump_clock: Clock) -> None:
    async with serving(three) as service:
        prediction, subscription = started(service)
        times: dict[Event, float] = {}
        began = trio.current_time()
        with subscription:
            while not subscription.over:
                await subscription.wait()
                times |= dict.fromkeys(subscription.read().events, trio.current_time() - began)
        assert list(times) == [Boundary.START, 0, 1, LogEvent(LogSource.STDOUT, "almost\n"), 2, Boundary.COMPLETED]
        assert list(times.values()) == pytest.approx([0, 1, 2, 3, 3, 3])
        assert prediction.status is Status.SUCCEEDED
        service.create(NewPrediction()).cancel()  # W1: nobody who learned of the end meets a 409


async def test_two_runs_of_one_id_have_different_names(autojump_clock: Clock) -> None:
    async with serving(three) as service:
        prediction, subscription = started(service)
        await rest(subscription)
        again, _ = started(service)
        assert again.event_log.run != prediction.event_log.run
        with pytest.raises(OtherRun):
            service.follow(again, f"{prediction.event_log.run}-1")
        assert service.follow(prediction, f"{prediction.event_log.run}-4").read().events[-1] is Boundary.COMPLETED


async def test_the_setting_bounds_what_is_replayed(autojump_clock: Clock) -> None:
    async with serving(three, Settings(stream_history=2)) as service:
        prediction, subscription = started(service)
        await rest(subscription)
        batch = service.follow(prediction).read()
        assert (batch.lost, list(batch.events)) == (4, [2, Boundary.COMPLETED])


@pytest.mark.parametrize("grace", [0.0, 5.0])
async def test_the_last_follower_leaves(autojump_clock: Clock, grace: float) -> None:
    async with serving(stall, Settings(stream_grace=grace)) as service:
        prediction, subscription = started(service)
        await trio.sleep(1)
        began = trio.current_time()
        subscription.close()
        with pytest.raises(AtCapacity):
            service.create(NewPrediction())
        await prediction.wait_finished()
        assert prediction.status is Status.CANCELED
        assert trio.current_time() - began == pytest.approx(grace)
        service.create(NewPrediction()).cancel()


async def test_a_drain_does_not_wait_for_the_grace(autojump_clock: Clock) -> None:
    async with serving(stall, Settings(stream_grace=1000, drain_grace=2)) as service:
        prediction, subscription = started(service)
        await trio.sleep(1)
        subscription.close()
        service.shutdown()
        began = trio.current_time()
        await service.wait_stopped()
        assert trio.current_time() - began == pytest.approx(2)
        assert prediction.status is Status.CANCELED


async def test_a_dead_worker_ends_the_stream(autojump_clock: Clock) -> None:
    async with serving(exit_9) as service:
        prediction, subscription = started(service)
        assert (await rest(subscription))[-1] is Boundary.COMPLETED
        assert prediction.error is not None
        assert prediction.error.startswith("Worker died")
