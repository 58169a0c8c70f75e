"""The events of a prediction: what is kept, who gets what, what is told of losses, how a run is slowed."""

from __future__ import annotations

import random

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import LogSource, MetricMode
from cog_trio.state.event_log import (
    BATCH,
    CAPACITY,
    LAG,
    MAX_FOLLOWERS,
    MAX_HELD,
    OVERHEAD,
    PATIENCE,
    Batch,
    Boundary,
    Change,
    EventLog,
    LogEvent,
    MetricEvent,
    OtherRun,
    Subscription,
    TooManyFollowers,
)
from cog_trio.state.prediction import Bounds, Prediction
from cog_trio.state.status import Fact, Outcome

Clock = trio.testing.MockClock
NOTHING = Change(0)


def filled(count: int, *, run: str = "1", capacity: int = CAPACITY) -> EventLog:
    """A history with a start and outputs, ``count`` events in all."""
    event_log = EventLog(run, capacity)
    event_log.start()
    for index in range(count - 1):
        event_log.output(index, 1)
    return event_log


def all_of(subscription: Subscription) -> list[Batch]:
    batches: list[Batch] = []
    while not batches or batches[-1].events:
        batches.append(subscription.read())
    return batches[:-1]


# What a follower gets.


def test_a_follower_gets_every_event_once_in_order() -> None:
    event_log = EventLog()
    follower = event_log.follow()
    event_log.start()
    event_log.log(LogSource.STDOUT, "hm\n")
    assert follower.read() == Batch(1, [Boundary.START, LogEvent(LogSource.STDOUT, "hm\n")], 0, True, False)
    event_log.output(0, 5)
    metric = msgspec.Raw(b"1.5")
    event_log.metric("m", metric, MetricMode.APPEND)
    event_log.end()
    batch = follower.read()
    assert batch == Batch(3, [0, MetricEvent("m", metric, MetricMode.APPEND), Boundary.COMPLETED], 0, False, True)
    assert follower.over
    assert len(event_log) == 5


def test_events_are_taken_in_batches_of_bounded_size() -> None:
    event_log = EventLog()
    follower = event_log.follow()
    for index in range(3):
        event_log.output(index, BATCH - OVERHEAD)
    for index in range(3, 5):
        event_log.output(index, BATCH // 2 - OVERHEAD)
    event_log.output(5, 10 * BATCH)
    assert [list(batch.events) for batch in all_of(follower)] == [[0], [1], [2], [3, 4], [5]]


async def test_who_waits_is_woken_once_for_a_batch(autojump_clock: Clock) -> None:
    event_log = EventLog()
    follower = event_log.follow()
    taken: list[int] = []

    async def follow() -> None:
        while not event_log.ended or not follower.over:
            await follower.wait()
            taken.append(len(follower.read().events))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        for index in range(100):
            event_log.output(index, 1)
        await trio.testing.wait_all_tasks_blocked()
        event_log.end()
    assert taken == [100, 1]


async def test_waiting_is_a_checkpoint_and_loses_nothing_when_cancelled() -> None:
    event_log = filled(3)
    follower = event_log.follow()
    with trio.testing.assert_checkpoints():
        await follower.wait()
    with trio.CancelScope() as scope:
        scope.cancel()
        await follower.wait()
    assert len(follower.read().events) == 3
    with trio.move_on_after(0):
        await follower.wait()
    event_log.end()
    await follower.wait()
    assert follower.read().ends


# What is kept.


def test_who_comes_late_gets_the_last_events_and_how_many_are_missing() -> None:
    batches = all_of(filled(CAPACITY).follow())
    assert (batches[0].first, batches[0].lost, sum(len(batch.events) for batch in batches)) == (1, 0, CAPACITY)
    batches = all_of(filled(CAPACITY + 7).follow())
    assert (batches[0].first, batches[0].lost, sum(len(batch.events) for batch in batches)) == (8, 7, CAPACITY)
    assert batches[0].late


@pytest.mark.parametrize("count", [5, 5_000])
def test_capacity_is_exact_whatever_is_still_in_memory(count: int) -> None:
    event_log = filled(count, capacity=3)
    batch = event_log.follow().read()
    assert (batch.first, batch.lost) == (count - 2, count - 3)


def test_without_capacity_following_starts_live_and_misses_nothing() -> None:
    event_log = filled(10, capacity=0)
    follower = event_log.follow()
    assert follower.read() == Batch(11, [], 0, True, False)
    event_log.output(9, 1)
    assert follower.read().events == [9]


@pytest.mark.covers("http:W33")
def test_the_end_is_never_lost() -> None:
    event_log = filled(5_000, capacity=0)
    slow = event_log.follow()
    event_log.end()
    assert slow.read() == Batch(5_001, [Boundary.COMPLETED], 0, True, True)
    assert event_log.follow().read() == Batch(5_001, [Boundary.COMPLETED], 0, True, True)
    assert event_log.follow("1-4000").read() == Batch(5_001, [Boundary.COMPLETED], 1000, True, True)


def test_memory_is_bounded_without_followers() -> None:
    event_log = filled(100_000)
    assert len(event_log._events) <= 3 * CAPACITY
    for _ in range(2_000):
        event_log.metric("m", msgspec.Raw(b"1" * 2**20), MetricMode.REPLACE)
        assert event_log.held <= MAX_HELD
    assert event_log.held == sum(len(memoryview(e.value)) for e in event_log._events if isinstance(e, MetricEvent))


def test_a_follower_that_is_not_far_behind_loses_nothing() -> None:
    event_log = EventLog(capacity=10)
    follower = event_log.follow()
    count = LAG // (OVERHEAD + 1)
    for index in range(count):
        event_log.output(index, 1)
    batches = all_of(follower)
    assert sum(batch.lost for batch in batches) == 0
    assert [event for batch in batches for event in batch.events] == list(range(count))


@pytest.mark.covers("http:W33")
def test_W33_a_follower_that_is_far_behind_is_told_and_goes_on_with_what_is_there() -> None:
    event_log = EventLog()
    follower = event_log.follow()
    event_log.output(0, 1)
    assert follower.read().events == [0]
    count = 3 * LAG // OVERHEAD
    for index in range(1, count):
        event_log.output(index, 1)
    first, *rest = all_of(follower)
    assert first.lost > 0
    assert not first.late
    assert first.first == 1 + first.lost + 1
    assert sum(len(batch.events) for batch in [first, *rest]) == count - 1 - first.lost >= CAPACITY
    assert not any(batch.lost for batch in rest)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_events_are_had_once_in_order_and_losses_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    event_log = EventLog(capacity=rng.choice([0, 1, 10, 1000]), slows=rng.random() < 0.5)
    had: dict[Subscription, int] = {}
    index = 0
    for _ in range(3_000):
        match rng.randrange(8):
            case 0:
                follower = event_log.follow(rng.choice([None, f"1-{rng.randint(0, len(event_log))}"]))
                had[follower] = follower.seen
            case 1 | 2 if had:
                follower = rng.choice(list(had))
                batch = follower.read()
                assert batch.first > had[follower]
                if not batch.late:
                    assert batch.first == had[follower] + batch.lost + 1
                numbers = [event for event in batch.events if isinstance(event, int)]
                assert numbers == list(range(batch.first - 1, batch.first - 1 + len(batch.events)))
                had[follower] = follower.seen
            case 3 if len(had) > 5:
                follower = rng.choice(list(had))
                follower.close()
                del had[follower]
            case _:
                for _ in range(rng.choice([1, 1, 50])):
                    event_log.output(index, rng.choice([1, 100, 10_000, LAG // 3]))
                    index += 1
    event_log.end()
    for follower in had:
        batches = all_of(follower)
        assert batches[-1].events[-1] is Boundary.COMPLETED
        assert follower.over


# Going on from an event.


@pytest.mark.covers("D11")
def test_D11_an_event_id_goes_on_behind_that_event() -> None:
    event_log = filled(20, run="7f")
    assert event_log.follow("7f-18").read() == Batch(19, [17, 18], 0, True, False)
    assert event_log.follow("7f-0").read().first == 1
    assert not event_log.follow("7f-20").read().events
    event_log.end()
    assert event_log.follow("7f-20").read().events == [Boundary.COMPLETED]
    assert event_log.follow("7f-21").over


@pytest.mark.covers("D11")
@pytest.mark.parametrize("after", ["8f-3", "7f-21", "7f", "-3", "7f-", "7f-x", "7f--1", "7f-٣", "7f-" + "9" * 5_000])
def test_D11_an_id_of_another_run_is_refused(after: str) -> None:
    event_log = filled(20, run="7f")
    with pytest.raises(OtherRun):
        event_log.follow(after)
    assert event_log.followers == 0


def test_there_is_a_limit_of_followers() -> None:
    event_log = EventLog()
    followers = [event_log.follow() for _ in range(MAX_FOLLOWERS)]
    with pytest.raises(TooManyFollowers):
        event_log.follow()
    followers[7].close()
    event_log.follow()


def test_leaving_is_told_once() -> None:
    left: list[int] = []
    event_log = EventLog()
    with event_log.follow(on_leave=lambda: left.append(event_log.followers)) as follower:
        assert event_log.followers == 1
    follower.close()
    assert left == [0]


# Slowing the run (D12).


def flooded(event_log: EventLog) -> None:
    event_log.output(0, LAG)
    event_log.output(1, 1)


@pytest.mark.covers("D12")
async def test_D12_a_run_waits_for_its_only_follower(autojump_clock: Clock) -> None:
    event_log = EventLog(slows=True)
    follower = event_log.follow()
    await event_log.wait_room()
    flooded(event_log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(event_log.wait_room)
        await trio.sleep(PATIENCE - 1)
        assert event_log.is_full
        follower.read()
    assert trio.current_time() == PATIENCE - 1
    assert not event_log.is_full


@pytest.mark.covers("D12")
async def test_D12_it_waits_no_longer_than_for_some_progress(autojump_clock: Clock) -> None:
    event_log = EventLog(slows=True)
    follower = event_log.follow()
    for index in range(10):
        event_log.output(index, LAG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(event_log.wait_room)
        for _ in range(3):
            await trio.sleep(PATIENCE - 1)
            follower.read()
    assert trio.current_time() == 3 * (PATIENCE - 1) + PATIENCE
    await event_log.wait_room()  # it has lost its patience, so it no longer waits
    follower.read()
    assert event_log.is_full  # until there is progress again


@pytest.mark.covers("D12")
async def test_D12_a_slowed_run_loses_nothing(autojump_clock: Clock) -> None:
    event_log = EventLog(slows=True, capacity=10)
    follower = event_log.follow()
    count = 5 * LAG // OVERHEAD
    for index in range(count):
        event_log.output(index, 1)
    batches = all_of(follower)
    assert sum(len(batch.events) for batch in batches) == count


@pytest.mark.covers("D12")
@pytest.mark.parametrize("how", ["another follower", "leave", "cancel", "end"])
async def test_D12_what_ends_the_slowing(autojump_clock: Clock, how: str) -> None:
    event_log = EventLog(slows=True)
    follower = event_log.follow()
    flooded(event_log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(event_log.wait_room)
        await trio.sleep(1)
        match how:
            case "another follower":
                event_log.follow()
            case "leave":
                follower.close()
            case "cancel":
                event_log.release()
            case _:
                event_log.end()
    assert trio.current_time() == 1


@pytest.mark.covers("D12")
async def test_other_followers_never_slow_a_run(autojump_clock: Clock) -> None:
    event_log = EventLog()
    event_log.follow()
    flooded(event_log)
    assert not event_log.is_full
    await event_log.wait_room()
    assert trio.current_time() == 0


# Observers.


async def test_an_observer_sees_kinds_of_change_from_its_beginning_on(autojump_clock: Clock) -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    observer = prediction.observe()
    assert observer.poll() is NOTHING
    prediction.append_log("a")
    prediction.append_log("b")
    prediction.add_output(msgspec.Raw(b"1"))
    assert await observer.wait() == Change.LOG | Change.OUTPUT
    assert observer.poll() is NOTHING
    seen: list[Change] = []

    async def watch() -> None:
        seen.append(await observer.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        prediction.record_metric("m", msgspec.Raw(b"1"), MetricMode.REPLACE)
        prediction.finish(Outcome(Fact.RETURNED))
    assert seen == [Change.METRIC | Change.FINISHED]


def test_an_observer_of_the_beginning() -> None:
    event_log = EventLog()
    observer = event_log.observe()
    event_log.start()
    assert observer.poll() is Change.STARTED


# What a prediction makes of it.


def events_of(prediction: Prediction) -> list[object]:
    return [event for batch in all_of(prediction.event_log.follow()) for event in batch.events]


@pytest.mark.covers("http:W34")
async def test_W34_output_events_come_in_the_order_of_the_model_whenever_files_are_read() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.add_output(msgspec.Raw(b"0"))
    first, second = prediction.reserve_output(), prediction.reserve_output()
    prediction.add_output(msgspec.Raw(b"3"))
    prediction.append_log("between\n", LogSource.STDOUT)
    assert events_of(prediction)[1:] == [0, LogEvent(LogSource.STDOUT, "between\n")]
    prediction.fill_output(second, msgspec.Raw(b"2"))
    assert events_of(prediction)[3:] == []
    prediction.fill_output(first, msgspec.Raw(b"1"))
    assert events_of(prediction)[3:] == [1, 2, 3]
    prediction.add_output(msgspec.Raw(b"4"))
    assert events_of(prediction)[6:] == [4]


@pytest.mark.covers("http:W34")
async def test_W34_a_file_that_is_missing_at_the_end_leaves_no_hole() -> None:
    prediction = Prediction("p")
    prediction.dispatched()
    prediction.reserve_output()
    prediction.add_output(msgspec.Raw(b"1"))
    prediction.finish(Outcome(Fact.RAISED, "OSError: gone"))
    assert events_of(prediction) == [Boundary.START, 0, Boundary.COMPLETED]
    assert prediction.outputs == [msgspec.Raw(b"1")]


async def test_log_events_are_what_the_logs_have_grown_by() -> None:
    prediction = Prediction("p", bounds=Bounds(logs=10))
    prediction.dispatched()
    for text in ("12345", "1234567", "more", "and more"):
        prediction.append_log(text)
    prediction.record_metric("m", msgspec.Raw(b"{"), MetricMode.REPLACE)
    logs = [event.data for event in events_of(prediction) if isinstance(event, LogEvent)]
    assert "".join(logs) == prediction.logs
    assert len(logs) == 2


async def test_a_prediction_that_never_began_has_an_end_alone() -> None:
    prediction = Prediction("p")
    prediction.finish(Outcome(Fact.CUT))
    assert events_of(prediction) == [Boundary.COMPLETED]


def taken(follower: Subscription) -> dict[int, object]:
    """All that it can still get, by number."""
    events: dict[int, object] = {}
    while follower.seen < len(follower._event_log):
        batch = follower.read()
        events |= dict(enumerate(batch.events, batch.first))
    return events


async def test_many_outputs_at_once_are_as_many_outputs_one_by_one() -> None:
    """Whatever the follower has, and wherever the log is trimmed."""
    for capacity in (0, 5, 1024):
        one, many = EventLog(capacity=capacity), EventLog(capacity=capacity)
        sizes = [1, 100, 70_000, 3] * 900
        followers = [log.follow() for log in (one, many)]
        for log in (one, many):
            log.start()
        for index, size in enumerate(sizes):
            one.output(index, size)
        for first in range(0, len(sizes), 300):
            many.outputs(first, sizes[first : first + 300])
        assert (len(one), one._total, one._counts) == (len(many), many._total, many._counts)
        for left, right in (followers, [log.follow() for log in (one, many)]):
            mine, theirs = taken(left), taken(right)
            both = mine.keys() & theirs.keys()
            assert max(both, default=len(one)) == len(one)
            assert {number: mine[number] for number in both} == {number: theirs[number] for number in both}


async def test_a_batch_of_outputs_wakes_a_follower_once(autojump_clock: trio.testing.MockClock) -> None:
    log = EventLog()
    follower, woken = log.follow(), list[int]()

    async def follow() -> None:
        while len(woken) < 1:
            await follower.wait()
            woken.append(len(follower.read().events))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        log.outputs(0, [3] * 500)
    assert woken == [500]
