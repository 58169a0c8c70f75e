"""A slot is read more slowly for the only reader of a stream (D12); nothing else is."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Cancel, Idle, OutputChunk, RunCancelled, SlotId
from cog_trio.state.event_log import LAG, PATIENCE
from cog_trio.testing.fakes import FakeWorker
from tests.bench import CUT, Bench, Flight, opened

Clock = trio.testing.MockClock
LARGE = msgspec.Raw(b'"' + b"x" * (LAG // 4) + b'"')


def flood(bench: Bench, count: int, first: int = 0) -> None:
    for index in range(first, first + count):
        bench.worker.send(OutputChunk(LARGE, index))


def unread(bench: Bench, slot: int = 0) -> int:
    """Bytes that the worker has written and the parent has not read."""
    return len(bench.worker.slots[slot].up.data)


async def streaming(bench: Bench) -> Flight:
    run, _ = await bench.begin(streamed=True)
    run.prediction.event_log.follow()
    return run


@pytest.mark.covers("D12")
async def test_D12_reading_stops_and_goes_on_after_the_patience(autojump_clock: Clock) -> None:
    async with opened() as bench:
        run = await streaming(bench)
        flood(bench, 20)
        await trio.sleep(PATIENCE - 1)
        assert unread(bench) > 10 * LAG // 4
        assert run.prediction.next_index < 10
        await trio.sleep(2)
        assert unread(bench) == 0
        assert run.prediction.next_index == 20


@pytest.mark.covers("D12")
async def test_D12_a_follower_that_takes_keeps_it_going(autojump_clock: Clock) -> None:
    async with opened() as bench:
        run, _ = await bench.begin(streamed=True)
        follower = run.prediction.event_log.follow()
        flood(bench, 20)
        taken = 0
        while taken < 21:
            await follower.wait()
            batch = follower.read()
            assert not batch.lost
            taken += len(batch.events)
            await trio.sleep(0.01)
        assert trio.current_time() < PATIENCE


@pytest.mark.covers("D12")
async def test_D12_other_slots_are_read_on(autojump_clock: Clock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        await streaming(bench)
        other, predict = await bench.begin("q", slot=1)
        flood(bench, 20)
        await trio.sleep(1)
        bench.worker.finish(predict, b"1")
        await other.over.wait()
        assert trio.current_time() == 1
        assert unread(bench) > 0


@pytest.mark.covers("D12")
async def test_D12_a_cancel_ends_the_wait(autojump_clock: Clock) -> None:
    async with opened() as bench:
        run = await streaming(bench)
        flood(bench, 20)
        await trio.sleep(1)
        run.prediction.cancel()
        cancel = await bench.worker.next_control(Cancel)
        bench.worker.send(RunCancelled(Idle(SlotId(0), cancel.id, cancel.run)))
        await trio.sleep(0.01)
        assert unread(bench) == 0
        assert run.prediction.next_index == 20
        bench.worker.exit(0)
        await run.over.wait()
        assert run.outcome == CUT
