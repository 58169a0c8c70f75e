"""What a service tells of itself: observers, feeds, statistics."""

from __future__ import annotations

import dataclasses
import logging

import msgspec
import pytest
import trio
import trio.testing

from cog_trio import (
    AtCapacity,
    EventsLost,
    HealthChanged,
    Mode,
    NotOffered,
    PredictionCreated,
    PredictionFinished,
    PredictionRefused,
    PredictionStarted,
    QueueTimedOut,
    ServiceEvent,
    Settings,
    Statistics,
    Status,
    WorkerDescribed,
    WorkerEnded,
    WorkerReady,
    WorkerStarted,
    open_service,
)
from cog_trio.state.prediction import utcnow
from cog_trio.state.service_events import CAPACITY, ServiceEvents
from cog_trio.testing.fakes import FakeWorker, exit_9, open_fake_worker, stall
from tests.service.test_python_api import finish_after_two
from tests.service.test_service import DIED, Clock, ended, no_threads, serving, temporary_folder

__all__ = ["no_threads", "temporary_folder"]


def told(event: ServiceEvent) -> tuple[object, ...]:
    """Its kind and what it says, without the time stamp."""
    return (type(event), *(getattr(event, field.name) for field in msgspec.structs.fields(event)[1:]))


async def test_the_life_of_a_service_from_spawn_to_grave(autojump_clock: Clock) -> None:
    worker = FakeWorker()
    events: list[ServiceEvent] = []
    async with open_service("m.py", worker=worker) as service:
        service.observe(events.append)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(2)
        await worker.set_up()
        await service.wait_ready()
    assert [told(event) for event in events] == [
        (WorkerStarted, 0, None),
        (WorkerDescribed, 0),
        (WorkerReady, 0, 2.0),
        (HealthChanged, "READY", False, None),
        (HealthChanged, "READY", True, None),
        (WorkerEnded, 0, None),
    ]
    assert all(event.at.tzinfo is not None for event in events)


async def test_the_life_of_a_prediction(autojump_clock: Clock) -> None:
    async with serving(finish_after_two, settings=Settings(queue=1)) as (service, _):
        events: list[ServiceEvent] = []
        service.observe(events.append)
        await service.submit(id="a")
        await ended(service, id="b")
        assert [told(event) for event in events] == [
            (PredictionCreated, "a", Mode.PREDICT, False),
            (PredictionStarted, "a", Mode.PREDICT, 0.0),
            (PredictionCreated, "b", Mode.PREDICT, True),
            (PredictionFinished, "a", Mode.PREDICT, Status.SUCCEEDED, None, None, 2.0, 2.0),
            (PredictionStarted, "b", Mode.PREDICT, 2.0),
            (PredictionFinished, "b", Mode.PREDICT, Status.SUCCEEDED, None, None, 4.0, 2.0),
        ]


async def test_an_observer_finds_the_prediction_that_it_hears_of(autojump_clock: Clock) -> None:
    async with serving(settings=Settings(retain=0)) as (service, _):
        seen: list[tuple[type, object]] = []

        def look(event: ServiceEvent) -> None:
            assert isinstance(event, (PredictionCreated, PredictionStarted, PredictionFinished))
            prediction = service.get(event.id)
            seen.append((type(event), prediction and prediction.status.value))

        service.observe(look)
        await service.predict()
        assert seen == [
            (PredictionCreated, "starting"),
            (PredictionStarted, "processing"),
            (PredictionFinished, "succeeded"),
        ]


async def test_why_predictions_end_and_are_refused(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(queue=1, queue_timeout=1.0, predict_timeout=3.0)) as (service, _):
        events: list[ServiceEvent] = []
        service.observe(events.append)
        prediction = await service.submit(id="a")
        with pytest.raises(QueueTimedOut):
            await service.predict(id="b")
        await service.submit(id="c")
        with pytest.raises(AtCapacity):
            await service.submit(id="d")
        with pytest.raises(NotOffered):
            await service.submit(mode=Mode.TRAIN)
        service.cancel("c")
        await prediction.wait_finished()
        ends = [(event.id, event.reason, event.ran) for event in events if isinstance(event, PredictionFinished)]
        assert ends == [
            ("b", "QueueTimedOut", None),
            ("c", "PredictionCanceled", None),
            ("a", "PredictionTimedOut", 3.0),
        ]
        refusals = [(event.id, event.mode, event.reason) for event in events if isinstance(event, PredictionRefused)]
        assert refusals == [("d", Mode.PREDICT, "AtCapacity"), (None, Mode.TRAIN, "NotOffered")]


async def test_a_worker_that_is_lost(autojump_clock: Clock) -> None:
    async with serving(exit_9) as (service, _):
        events: list[ServiceEvent] = []
        service.observe(events.append)
        await ended(service, id="a")
        assert [told(event) for event in events[2:]] == [
            (WorkerEnded, 0, DIED),
            (HealthChanged, "DEFUNCT", False, DIED),
            (PredictionFinished, "a", Mode.PREDICT, Status.FAILED, DIED, "WorkerDied", 0.0, 0.0),
        ]
        await trio.sleep(1)
    assert [type(event) for event in events[5:]] == [HealthChanged], "its end is told once, then the draining"


async def test_an_observer_that_has_left_hears_nothing(autojump_clock: Clock) -> None:
    async with serving() as (service, _):
        events: list[ServiceEvent] = []
        stop = service.observe(events.append)
        await service.predict()
        stop()
        stop()
        count = len(events)
        await service.predict()
        assert len(events) == count == 3


async def test_an_observer_that_raises_breaks_nothing_and_is_called_no_more(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (service, _):
        calls: list[ServiceEvent] = []
        others: list[ServiceEvent] = []

        def raising(event: ServiceEvent) -> None:
            calls.append(event)
            raise KeyError("mine")

        service.observe(raising)
        service.observe(others.append)
        with caplog.at_level(logging.ERROR):
            assert (await service.predict()).result() == {}
        assert (len(calls), len(others)) == (1, 3)
        assert [record.message for record in caplog.records] == [
            "an observer of the service failed and is called no more"
        ]


# Feeds.


async def test_a_feed_gives_what_happens_and_ends_with_the_service(autojump_clock: Clock) -> None:
    kinds: list[str] = []

    async def read(task_status: trio.TaskStatus[None]) -> None:
        async with service.events() as feed:
            task_status.started()
            async for event in feed:
                kinds.append(type(event).__name__)

    async with trio.open_nursery() as nursery, open_fake_worker() as worker:
        worker.inputs = None
        async with open_service("m.py", worker=worker) as service:
            await service.wait_ready()
            await nursery.start(read)
            await service.predict()
        await trio.testing.wait_all_tasks_blocked()
        assert kinds == [
            "PredictionCreated",
            "PredictionStarted",
            "PredictionFinished",
            "HealthChanged",
            "WorkerEnded",
        ]
        assert not nursery.child_tasks
        async with service.events() as late:
            assert [event async for event in late] == [], "a service that has ended has no news"


async def test_who_reads_too_slowly_is_told_how_much_it_lost() -> None:
    service_events = ServiceEvents(utcnow)
    async with service_events.feed() as feed:
        for number in range(CAPACITY + 7):
            service_events.has_refused(str(number), Mode.PREDICT, KeyError())
        lost = await feed.__anext__()
        assert isinstance(lost, EventsLost)
        assert lost.count == 7
        first = await feed.__anext__()
        assert isinstance(first, PredictionRefused)
        assert first.id == "7"
        service_events.close()
        assert len([event async for event in feed]) == CAPACITY - 1
    assert not service_events.observed


async def test_a_reader_that_is_cancelled_loses_nothing(autojump_clock: Clock) -> None:
    service_events = ServiceEvents(utcnow)
    async with service_events.feed() as feed:
        with trio.move_on_after(1) as scope:
            await feed.__anext__()
        assert scope.cancelled_caught
        service_events.health_is("READY", False, None)
        assert told(await feed.__anext__()) == (HealthChanged, "READY", False, None)


def test_without_observers_no_record_is_made() -> None:
    def now() -> None:
        raise AssertionError("a record was made")

    service_events = ServiceEvents(now)  # type: ignore[arg-type]
    service_events.has_refused(None, Mode.PREDICT, KeyError())
    service_events.health_is("READY", False, None)
    assert service_events.refused == 1


# Statistics.


async def test_statistics_count_what_is_and_what_was(autojump_clock: Clock) -> None:
    async with serving(stall, slots=2, settings=Settings(queue=1, retain=0)) as (service, _):
        nothing = dict.fromkeys((field.name for field in dataclasses.fields(Statistics)), 0)
        start = {**nothing, "slots": 2, "idle": 2, "workers": 1}
        assert dataclasses.asdict(service.statistics()) == start
        predictions = [await service.submit() for _ in range(3)]
        with pytest.raises(AtCapacity):
            await service.submit()
        full = {**start, "idle": 0, "running": 2, "queued": 1, "created": 3, "refused": 1}
        assert dataclasses.asdict(service.statistics()) == full
        for prediction in predictions:
            prediction.cancel()
            await prediction.wait_finished()
        assert dataclasses.asdict(service.statistics()) == {**start, "created": 3, "canceled": 3, "refused": 1}


async def test_statistics_of_a_service_whose_worker_is_gone(autojump_clock: Clock) -> None:
    async with serving(exit_9) as (service, _):
        await ended(service)
        seen = service.statistics()
        assert (seen.slots, seen.idle, seen.workers, seen.failed, seen.retained) == (0, 0, 0, 1, 1)
        assert seen.retained_bytes > 0
