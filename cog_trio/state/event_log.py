"""What happened to one prediction, in order: kept for a while, read by any number of followers, each at its own pace.

A ``EventLog`` has the last events of a run, numbered from 1. It holds no output of its own: an output event is an
index into the prediction's one list. Everybody who follows it has a cursor and nothing else, so an event costs the
same whether one reads it or a thousand, and nobody is told of single events: who waits is woken once, by the first
of a batch, and then takes all that is there.

What is kept: the last ``capacity`` events for those who come later, and beyond that what a follower who is here has
still to get, as long as it is not more than ``LAG`` bytes behind. Who falls further behind is told how many events
it lost, and goes on with what is there. The end of the run is state rather than an event: it is never lost.

The only follower of a run that was created to be streamed slows the run instead: ``wait_room`` is where the reader
of its slot stands while that follower is too far behind, for as long as it makes some progress.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, MutableSequence, Sequence
from enum import Enum, Flag, auto
from itertools import accumulate
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

import msgspec
import trio

from cog_trio.bridge.protocol import LogSource, MetricMode

CAPACITY: Final = 1024  # events, unless the settings say otherwise
MAX_FOLLOWERS: Final = 1024  # of one prediction
LAG: Final = 4 * 2**20  # bytes that a follower may be behind
PATIENCE: Final = 10.0  # seconds that a run is slowed for a follower that takes nothing
OVERHEAD: Final = 64  # bytes that an event counts for beside its content: what the wire and we need for it
BATCH: Final = 64 * 2**10  # bytes that are taken at once, and all that a stuck client holds; a larger event goes alone
KEPT_AS_LIST: Final = 64  # events of a run that has ended, which are not worth a more compact form
MAX_HELD: Final = 32 * 2**20  # bytes of logs and metrics that are kept for those who come later


class Change(Flag):
    """Kinds of what can happen."""

    STARTED = auto()
    OUTPUT = auto()
    LOG = auto()
    METRIC = auto()
    FINISHED = auto()


class LogEvent(msgspec.Struct, frozen=True):
    """Text of the model; as JSON it is the data of a log event."""

    source: LogSource
    data: str


class MetricEvent(msgspec.Struct, frozen=True):
    """A metric as it was recorded, before merging; as JSON it is the data of a metric event."""

    name: str
    value: msgspec.Raw
    mode: MetricMode


class Boundary(Enum):
    """Events without content of their own."""

    START = "start"
    COMPLETED = "completed"


Event: TypeAlias = "int | LogEvent | MetricEvent | Boundary"  # int: the output at this index


class OtherRun(Exception):
    """The event to go on from is none of this run."""


class TooManyFollowers(Exception):
    """The prediction is followed by ``MAX_FOLLOWERS`` already."""


KINDS: Final = tuple(Change)


class Batch(NamedTuple):
    """What a follower gets at once."""

    first: int  # number of the first event
    events: Sequence[Event]
    lost: int  # events that were dropped before the first
    late: bool  # they were lost before this follower came
    ends: bool  # the last event is the end of the run


class EventLog:
    """The events of one run; made by its prediction, which alone adds to it.

    Args:
      run: names this run in event ids, unlike any other run that a client may remember.
      slows: the run was created to be streamed.
    """

    __slots__ = (
        "_base",
        "_capacity",
        "_counts",
        "_dropped",
        "_events",
        "_followers",
        "_marks",
        "_patient",
        "_room",
        "_slows",
        "_total",
        "_trim_at",
        "_waiting",
        "ended",
        "held",
        "patience",
        "run",
    )

    def __init__(self, run: str = "1", capacity: int = CAPACITY, *, slows: bool = False) -> None:
        self.run = run
        self.ended = False
        self.patience = PATIENCE  # seconds that the run is slowed for a follower that takes nothing
        self.held = 0  # bytes of logs and metrics in _events: what it keeps beside the prediction's output
        self._slows = slows
        self._capacity = capacity
        self._base = 0  # events dropped so far
        self._dropped = 0  # bytes of these
        self._events: list[Event] = []
        self._marks: MutableSequence[int] = []  # bytes of the run up to the end of each event
        self._total = 0
        self._trim_at = capacity + CAPACITY  # events
        self._counts = [0] * len(KINDS)
        self._followers: list[Subscription] = []
        self._waiting: trio.lowlevel.ParkingLot | None = None  # those who have seen everything, from the first on
        self._room: trio.lowlevel.ParkingLot | None = None  # the reader of the slot, likewise
        self._patient = True  # the only follower is still waited for

    def __len__(self) -> int:
        """Events so far, kept or not."""
        return self._base + len(self._events)

    @property
    def followers(self) -> int:
        return len(self._followers)

    # What happens; called by the prediction.

    def start(self) -> None:
        self._add(0, Boundary.START, 0)

    def output(self, index: int, size: int) -> None:
        """The output at this index is there; ``size`` in bytes."""
        self._add(1, index, size)

    def outputs(self, first: int, sizes: Sequence[int]) -> None:
        """The outputs from this index on are there; ``sizes`` in bytes."""
        marks = list(accumulate(map(OVERHEAD.__add__, sizes), initial=self._total))
        self._counts[1] += len(sizes)
        self._total = marks[-1]
        self._events += range(first, first + len(sizes))
        self._marks.extend(marks[1:])
        self._added()

    def log(self, source: LogSource, data: str) -> None:
        self._hold(2, LogEvent(source, data), len(data))

    def metric(self, name: str, value: msgspec.Raw, mode: MetricMode) -> None:
        self._hold(3, MetricEvent(name, value, mode), len(memoryview(value)))

    def end(self) -> None:
        self.ended = True
        self._add(4, Boundary.COMPLETED, 0)
        if len(self._events) > min(KEPT_AS_LIST, self._capacity):
            self._trim()
            self._marks = array("Q", self._marks)  # it is kept for long
        self.release()

    def _hold(self, kind: int, event: LogEvent | MetricEvent, size: int) -> None:
        self.held += size
        self._add(kind, event, size)
        if self.held > MAX_HELD:
            self._trim(MAX_HELD // 2)

    def _add(self, kind: int, event: Event, size: int) -> None:
        self._counts[kind] += 1
        self._total += size + OVERHEAD
        self._events.append(event)
        self._marks.append(self._total)
        self._added()

    def _added(self) -> None:
        if len(self._events) > self._trim_at:
            self._trim()
        if self._waiting is not None:
            self._waiting.unpark_all()

    async def wait_added(self) -> None:
        """Wait until the next event is added. Cancellation: nothing is lost."""
        if self._waiting is None:
            self._waiting = trio.lowlevel.ParkingLot()
        await self._waiting.park()

    # What is kept.

    def _floor(self) -> int:
        """How many events those who come later do not get."""
        floor = max(self._base, len(self) - self._capacity)
        return min(floor, len(self) - 1) if self.ended else floor

    def _trim(self, room: int = MAX_HELD) -> None:
        """Drop what nobody may still get; seldom, so that an event costs next to nothing.

        Logs and metrics over ``room`` bytes go too, whoever may still want them: they can be large, and have no other
        bound.
        """
        keep = self._floor()
        for follower in self._followers:
            if follower.seen < keep and (self._waits_for(follower) or self._behind(follower.seen) <= LAG):
                keep = max(follower.seen, self._base)
        count = keep - self._base
        self.held -= sum(map(_weight, self._events[:count]))
        while self.held > room and count < len(self._events) - 1:
            self.held -= _weight(self._events[count])
            count += 1
        if count:
            self._dropped = self._marks[count - 1]
            self._base += count
            del self._events[:count], self._marks[:count]
        self._trim_at = len(self._events) + max(self._capacity, CAPACITY)

    def _upto(self, seen: int) -> int:
        """Bytes of the first ``seen`` events, or of those that were dropped if these are more."""
        return self._marks[seen - self._base - 1] if seen > self._base else self._dropped

    def _behind(self, seen: int) -> int:
        """Bytes of the events after the first ``seen``; too much, if some of these were dropped."""
        return self._total - self._upto(seen) if seen >= self._base else self._total

    # Who follows.

    def follow(self, after: str | None = None, on_leave: Callable[[], None] = lambda: None) -> Subscription:
        """Follow from the first event that is kept, or from the one behind ``after`` (an event id).

        ``on_leave`` is called when the subscription is closed, after that.

        Raises:
          OtherRun: if ``after`` is not an event of this run.
          TooManyFollowers: if there are so many already.
        """
        floor, seen = self._floor(), 0
        if after is not None:
            run, _, number = after.rpartition("-")
            if run != self.run or not (number.isascii() and number.isdigit()) or len(number) > 18:
                raise OtherRun
            if (seen := int(number)) > len(self):
                raise OtherRun
        elif not self._capacity:
            seen = floor  # nothing is replayed, and nothing is missed
        if len(self._followers) >= MAX_FOLLOWERS:
            raise TooManyFollowers
        subscription = Subscription(self, max(seen, floor), max(0, floor - seen), on_leave)
        self._followers.append(subscription)
        self._look_again()
        return subscription

    def observe(self) -> Observer:
        """See that something happens, from here on, without what it is."""
        return Observer(self)

    def _leave(self, subscription: Subscription) -> None:
        self._followers.remove(subscription)
        self._look_again()

    # Slowing the run.

    def _waits_for(self, follower: Subscription) -> bool:
        return self._slows and self._patient and len(self._followers) == 1

    @property
    def is_full(self) -> bool:
        """The run has to wait for its only follower."""
        return (
            self._slows
            and self._patient
            and len(self._followers) == 1
            and self._behind(self._followers[0].seen) > LAG
            and not self.ended
        )

    async def wait_room(self) -> None:
        """Wait while the run has to: until the follower has taken enough, or nothing for ``patience`` seconds.

        Cancellation: nothing is lost.
        """
        if self._room is None:
            self._room = trio.lowlevel.ParkingLot()
        while self.is_full:
            with trio.move_on_after(self.patience) as patience:
                await self._room.park()
            if patience.cancelled_caught:
                self._patient = False  # until it takes something

    def release(self) -> None:
        """Never slow this run again: it is to end."""
        self._slows = False
        self._look_again()

    def _progress(self) -> None:
        self._patient = True
        self._look_again()

    def _look_again(self) -> None:
        """Have the reader of the slot, if it waits for room, look whether there is some."""
        if self._room is not None:
            self._room.unpark_all()


class Subscription:
    """One follower: a cursor. Leaving its block ends it; only then is it forgotten."""

    __slots__ = ("_event_log", "_fresh", "_lost", "_on_leave", "seen")

    def __init__(self, event_log: EventLog, seen: int, lost: int, on_leave: Callable[[], None]) -> None:
        self.seen = seen  # events it has had, or can't have any more
        self._event_log = event_log
        self._lost = lost
        self._fresh = True
        self._on_leave = on_leave

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave. Repeats change nothing."""
        if self in self._event_log._followers:
            self._event_log._leave(self)
            self._on_leave()

    @property
    def over(self) -> bool:
        """It has had everything that there will be."""
        return self._event_log.ended and self.seen >= len(self._event_log)

    async def wait(self) -> None:
        """Wait until there is something to take. Cancellation: nothing is lost."""
        event_log = self._event_log
        if self.seen < len(event_log):
            await trio.lowlevel.checkpoint()
        while self.seen >= len(event_log) and not event_log.ended:
            await event_log.wait_added()

    def read(self) -> Batch:
        """What is there and was not yet taken: all of it, up to ``BATCH`` bytes and at least one event."""
        event_log = self._event_log
        base, events, marks = event_log._base, event_log._events, event_log._marks
        lost, late = self._lost, self._fresh
        if self.seen < base:
            lost, late, self.seen = base - self.seen, False, base
        start = self.seen - base
        limit = event_log._upto(self.seen) + BATCH
        stop = len(events) if event_log._total <= limit else max(bisect_right(marks, limit, start), start + 1)
        taken = events[start:stop]
        first, self.seen = self.seen + 1, base + stop
        self._lost, self._fresh = 0, False
        event_log._progress()
        return Batch(first, taken, lost, late, ends=event_log.ended and self.seen == len(event_log))


class Observer:
    """Sees kinds of change; there is nothing to close."""

    __slots__ = ("_counts", "_event_log")

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._counts = list(event_log._counts)

    def poll(self) -> Change:
        """What has changed since the last look; ``Change(0)`` is nothing."""
        changed = Change(0)
        for kind, now, before in zip(KINDS, self._event_log._counts, self._counts, strict=True):
            if now != before:
                changed |= kind
        self._counts = list(self._event_log._counts)
        return changed

    async def wait(self) -> Change:
        """What has changed since the last look; waits for it. Cancellation: nothing is lost."""
        await trio.lowlevel.checkpoint()
        while not (changed := self.poll()):
            await self._event_log.wait_added()
        return changed


def _weight(event: Event) -> int:
    """Bytes of a log or metric, as they were counted."""
    if isinstance(event, LogEvent):
        return len(event.data)
    return len(memoryview(event.value)) if isinstance(event, MetricEvent) else 0
