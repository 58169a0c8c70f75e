"""What happens to a service, told to those who want to know: metrics, traces, the program that embeds it.

Each thing that happens is counted, whoever listens; records are made only while somebody does. An observer is called
synchronously, in the step that it hears of, so it must not wait. A ``Feed`` is an observer with a bounded queue that
a task reads at its own pace; who is too slow loses the oldest events and is told how many. Records hold names and
numbers, never a prediction: a queue of them keeps no outputs alive. Whoever needs more asks the service for the id.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import trio

from cog_trio.bridge.protocol import LogSource, Mode
from cog_trio.state.status import Status

if TYPE_CHECKING:
    from cog_trio.state.prediction import Prediction

log: Final = logging.getLogger("cog_trio.service")

CAPACITY: Final = 1024  # events that a feed holds


class ServiceEvent(msgspec.Struct, frozen=True):
    """Something that has happened."""

    at: datetime  # UTC


class PredictionCreated(ServiceEvent, frozen=True):
    id: str
    mode: Mode
    queued: bool  # it waits for a slot


class PredictionStarted(ServiceEvent, frozen=True):
    """It is sent to the worker now."""

    id: str
    mode: Mode
    waited: float  # seconds since it was created


class PredictionFinished(ServiceEvent, frozen=True):
    """It has ended, and its slot is free. Told before those who wait for it have gone on."""

    id: str
    mode: Mode
    status: Status
    error: str | None
    reason: str | None  # name of the error that is raised for it, such as WorkerDied; None: it succeeded
    seconds: float  # since it was created
    ran: float | None  # seconds since it was started; None: it never was


class PredictionRefused(ServiceEvent, frozen=True):
    """One was not created."""

    id: str | None  # that the caller gave
    mode: Mode
    reason: str  # name of the error: AtCapacity, InvalidInput, ...
    error: str


class HealthChanged(ServiceEvent, frozen=True):
    status: str  # as health shows it, without BUSY and UNHEALTHY
    draining: bool
    cause: str | None  # of SETUP_FAILED and DEFUNCT


class WorkerStarted(ServiceEvent, frozen=True):
    """A worker process was started; setup begins."""

    worker: int  # its number
    pid: int | None  # None: it is not a process


class WorkerDescribed(ServiceEvent, frozen=True):
    """The model is imported: its document can be had and inputs can be checked, while setup goes on."""

    worker: int


class WorkerReady(ServiceEvent, frozen=True):
    worker: int
    setup: float  # seconds from its start


class WorkerEnded(ServiceEvent, frozen=True):
    worker: int
    cause: str | None  # None: its end was asked for


class EventsLost(ServiceEvent, frozen=True):
    """To a reader that was too slow; what follows is complete again."""

    count: int


@dataclass(frozen=True)
class Statistics:
    """A service in numbers, at one moment. Totals count from the opening of the service."""

    slots: int  # of the workers that are ready
    idle: int  # of these
    running: int  # predictions in flight that do not wait for a slot
    queued: int  # that do
    workers: int  # that are ready
    respawns: int  # workers that took the place of another
    created: int  # predictions, in all
    succeeded: int
    failed: int
    canceled: int
    refused: int  # that were not created
    retained: int  # finished ones that can still be read
    retained_bytes: int
    webhooks: int  # predictions whose webhooks are not all delivered yet
    webhooks_failed: int  # terminal webhooks that were given up
    webhooks_lost: int  # others that were not delivered
    service_lines_dropped: int  # lines of the service log that its slow reader has cost
    worker_lines_dropped: int  # log lines that workers dropped
    lines_over_limit: int  # log lines that predictions did not keep


Callback: TypeAlias = Callable[[ServiceEvent], None]
Printed: TypeAlias = Callable[[str, LogSource, str], None]
"""Told of each piece of text that a prediction prints: its id, the stream, the text. It must not wait."""


class ServiceEvents:
    """The news of one service: counts, and who is told."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.on_printed: Printed | None = None
        self.service_lines_dropped: Callable[[], int] = lambda: 0  # by the log of this process
        self.worker_lines_dropped = 0
        self.created = 0
        self.refused = 0
        self.lines_over_limit = 0
        self.finished = dict.fromkeys((Status.SUCCEEDED, Status.FAILED, Status.CANCELED), 0)
        self._observers: dict[object, Callback] = {}
        self._told: tuple[tuple[object, Callback], ...] = ()  # the same, to go through
        self._feeds: set[Feed] = set()
        self._health: tuple[str, bool] | None = None
        self._over = False

    @property
    def observed(self) -> bool:
        """Somebody listens: it is worth making a record."""
        return bool(self._observers)

    def observe(self, callback: Callback) -> Callable[[], None]:
        """Call this for all that happens from now on, until what is returned is called. One that raises is logged, and
        called no more."""
        key = object()
        self._observers[key] = callback
        self._told = (*self._observers.items(),)
        return partial(self._stop, key)

    def _stop(self, key: object) -> None:
        self._observers.pop(key, None)
        self._told = (*self._observers.items(),)

    def publish(self, event: ServiceEvent) -> None:
        for key, callback in self._told:
            try:
                callback(event)
            except Exception:  # what listens must not break what it listens to
                log.exception("an observer of the service failed and is called no more")
                self._stop(key)

    @asynccontextmanager
    async def feed(self) -> AsyncIterator[Feed]:
        """A feed of what happens while the block lasts."""
        feed = Feed(self.now)
        if self._over:
            feed.close()
        stop = self.observe(feed.put)
        self._feeds.add(feed)
        try:
            yield feed
        finally:
            stop()
            self._feeds.discard(feed)

    def close(self) -> None:
        """Nothing more will happen: feeds end behind what they hold."""
        self._over = True
        for feed in self._feeds:
            feed.close()

    # What the service has to tell.

    def has_created(self, prediction: Prediction) -> None:
        self.created += 1
        if self._observers:
            self.publish(PredictionCreated(prediction.created_at, prediction.id, prediction.mode, prediction.queued))

    def has_started(self, prediction: Prediction) -> None:
        if self._observers:
            assert prediction.started is not None
            assert prediction.started_at is not None
            waited = prediction.started - prediction.created
            self.publish(PredictionStarted(prediction.started_at, prediction.id, prediction.mode, waited))

    def has_finished(self, prediction: Prediction) -> None:
        self.finished[prediction.status] += 1
        if self._observers:
            assert prediction.predict_time is not None
            assert prediction.completed_at is not None
            why, begun = prediction.failure, prediction.started
            self.publish(
                PredictionFinished(
                    prediction.completed_at,
                    prediction.id,
                    prediction.mode,
                    prediction.status,
                    prediction.error,
                    None if why is None else type(why).__name__,
                    prediction.predict_time,
                    None if begun is None else prediction.created + prediction.predict_time - begun,
                )
            )

    def has_refused(self, id: str | None, mode: Mode, error: Exception) -> None:
        self.refused += 1
        if self._observers:
            self.publish(PredictionRefused(self.now(), id, mode, type(error).__name__, str(error)))

    def health_is(self, status: str, draining: bool, cause: str | None) -> None:
        """Health as it is now; told when it has changed."""
        if self._health != (status, draining):
            self._health = status, draining
            if self._observers:
                self.publish(HealthChanged(self.now(), status, draining, cause))


class Feed:
    """Events for one task to read: ``async for event in feed``. It ends with the service."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._events: deque[ServiceEvent] = deque()
        self._lost = 0
        self._over = False
        self._waiting = trio.lowlevel.ParkingLot()

    def put(self, event: ServiceEvent) -> None:
        if len(self._events) == CAPACITY:
            self._events.popleft()
            self._lost += 1
        self._events.append(event)
        self._waiting.unpark_all()

    def close(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._waiting.unpark_all()

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> ServiceEvent:
        """Cancellation: nothing is lost."""
        await trio.lowlevel.checkpoint()
        while not (self._events or self._over):
            await self._waiting.park()
        if self._lost:
            lost, self._lost = self._lost, 0
            return EventsLost(self._now(), lost)
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()
