"""The events of one prediction as a program gets them, on a fake worker and a fake clock."""

from __future__ import annotations

import msgspec
import pytest
import trio

from cog_trio import (
    AtCapacity,
    Completed,
    Log,
    LogSource,
    Lost,
    Metric,
    MetricMode,
    Output,
    PredictionFailed,
    PredictionStream,
    QueueTimedOut,
    Settings,
    Start,
    StreamEvent,
    WorkerDied,
)
from cog_trio.bridge.protocol import LogLine, OutputChunk, Predict
from cog_trio.bridge.protocol import Metric as Recorded
from cog_trio.state.event_log import LAG, PATIENCE
from cog_trio.testing.fakes import FakeWorker, exit_9, stall
from tests.service.test_python_api import fail, finish_after_two, slow_to_stop
from tests.service.test_service import Clock, no_threads, scripted, serving, temporary_folder

__all__ = ["no_threads", "temporary_folder"]


async def rest(stream: PredictionStream, seen: list[StreamEvent] | None = None) -> list[StreamEvent]:
    """What it still gives; in ``seen`` also when it raises."""
    events = [] if seen is None else seen
    async for event in stream:
        events.append(event)
    return events


async def test_two_readers_of_one_stream_share_its_events(autojump_clock: Clock) -> None:
    """Also where one takes the last of them while the other waits."""
    behaviour = scripted(*(OutputChunk(msgspec.Raw(b"1"), index) for index in range(3)))
    async with serving(behaviour) as (service, _), service.stream() as stream:
        seen: list[StreamEvent] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rest, stream, seen)
            nursery.start_soon(rest, stream, seen)
    assert seen == [Start(), *(Output(index, 1) for index in range(3)), Completed(stream.prediction)]


async def test_a_stream_gives_typed_events_with_decoded_values(autojump_clock: Clock) -> None:
    behaviour = scripted(
        LogLine(LogSource.STDOUT, "hello\n"),
        OutputChunk(msgspec.Raw(b'{"a": [1]}'), 0),
        Recorded("n", msgspec.Raw(b"2"), MetricMode.INCREMENT),
        OutputChunk(msgspec.Raw(b'"b"'), 1),
    )
    async with serving(behaviour) as (service, _):
        async with service.stream({"x": 1}, id="a") as stream:
            assert stream.prediction.id == "a"
            events = await rest(stream)
            assert await rest(stream) == [], "and then it is over"
        assert events == [
            Start(),
            Log(LogSource.STDOUT, "hello\n"),
            Output(0, {"a": [1]}),
            Metric("n", 2, MetricMode.INCREMENT),
            Output(1, "b"),
            Completed(stream.prediction),
        ]
        assert stream.prediction.result() == [{"a": [1]}, "b"]


async def test_a_stream_of_a_model_that_fails_ends_with_completed(autojump_clock: Clock) -> None:
    async with serving(fail) as (service, _):
        async with service.stream() as stream:
            last = (await rest(stream))[-1]
        assert last == Completed(stream.prediction)
        assert isinstance(stream.prediction.failure, PredictionFailed)


async def test_a_stream_of_a_worker_that_dies_raises_after_what_came(autojump_clock: Clock) -> None:
    async with serving(exit_9) as (service, _):
        seen: list[StreamEvent] = []
        async with service.stream() as stream:
            with pytest.raises(WorkerDied):
                await rest(stream, seen)
        assert seen == [Start()]


async def test_a_stream_that_is_refused_after_a_wait_raises(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(queue=1, queue_timeout=2.0)) as (service, _):
        await service.submit()
        async with service.stream() as stream:
            with pytest.raises(QueueTimedOut):
                await rest(stream)


async def test_a_stream_that_is_refused_raises_at_once(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        await service.submit()
        with pytest.raises(AtCapacity):
            async with service.stream():
                raise AssertionError("never reached")


@pytest.mark.parametrize("grace", [0.0, 60.0])
async def test_leaving_a_stream_cancels_and_waits_for_the_stop(autojump_clock: Clock, grace: float) -> None:
    """Whatever the grace for connections that break: who leaves a block does not come back."""
    async with serving(slow_to_stop, settings=Settings(stream_grace=grace)) as (service, _):
        async with service.stream() as stream:
            async for _ in stream:
                break
        assert (stream.prediction.status.value, trio.current_time()) == ("canceled", 3.0)
        with trio.move_on_after(1):
            async with service.stream() as stream:
                await rest(stream)
        assert (stream.prediction.status.value, trio.current_time()) == ("canceled", 7.0)


async def test_a_stream_that_somebody_joined_goes_on_without_the_one_who_left(autojump_clock: Clock) -> None:
    """D4: the one who came later keeps it alive."""
    async with serving(finish_after_two) as (service, _):
        async with service.stream() as stream:
            other = service.follow(stream.prediction)
        with other:
            await stream.prediction.wait_finished()
        assert stream.prediction.status.value == "succeeded"


@pytest.mark.covers("D12")
async def test_D12_a_slow_reader_slows_the_model_and_at_last_loses_events(autojump_clock: Clock) -> None:
    chunk = msgspec.Raw(b'"' + b"x" * (LAG // 4) + b'"')
    sent: list[float] = []

    async def pour(worker: FakeWorker, run: Predict) -> None:
        for index in range(1500):
            while worker.slots[run.slot].up.data:  # noqa: ASYNC110 (a socket that is full)
                await trio.sleep(0.5)
            sent.append(trio.current_time())
            worker.send(OutputChunk(chunk if index < 12 else msgspec.Raw(b"1"), index), run.slot)
        worker.finish(run)

    async with serving(pour) as (service, _):
        async with service.stream() as stream:
            assert await stream.__anext__() == Start()
            await trio.sleep(PATIENCE / 2)
            assert len(sent) < 10, "it waits"
            assert isinstance(await stream.__anext__(), Output)
            await stream.prediction.wait_finished()
            events = await rest(stream)
        lost = [event for event in events if isinstance(event, Lost)]
        assert len(lost) == 1
        assert lost[0].count + len(events) - 1 + 2 == 1500 + 2, "no event but those that were told is missing"
        assert len(stream.prediction.outputs) == 1500, "the prediction has them all"
