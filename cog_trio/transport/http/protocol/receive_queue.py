"""What an app receives: the messages of one request, bounded, and never in anybody's way.

Hypercorn puts a request's messages into a channel of ten and waits when it is full; an app that answers without
reading then waits for its reader for ever, and the reader for it. Here the connection's reader waits for room
only as long as somebody may still read: once the app has answered, what comes is dropped as it arrives. The end
of the client never waits for room. ``receive`` after the end gives the end again, as ASGI wants it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import trio

Message: TypeAlias = "dict[str, Any]"

EXTENSION: Final = "cog_trio.receive_queue"  # where an app finds its receive queue in its ASGI scope
MAX_WAITING: Final = 8  # messages before the connection's reader waits; up to 120 KiB each (HTTP/2: 16)
_ENDS: Final = ("http.disconnect", "websocket.disconnect")


class ReceiveQueue:
    """The messages of one request; one task puts, one takes."""

    __slots__ = ("_before_wait", "_end", "_on_end", "_readers", "_told", "_unread", "_waiting", "_writers")

    def __init__(self, before_wait: Callable[[], Awaitable[None]]) -> None:
        self._waiting: deque[Message] = deque()
        self._before_wait = before_wait  # called when the app wants what has not come: the time for 100 Continue
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()
        self._end: Message | None = None
        self._on_end: Callable[[], None] | None = None
        self._unread = True
        self._told = False  # of the end

    async def put(self, message: Message) -> None:
        """Add a message; wait while too many do so already, unless nobody reads any more."""
        self.add(message)
        await self.room()

    def add(self, message: Message) -> None:
        """Add a message, however many there are."""
        if message["type"] in _ENDS:
            self._end = message
            self._writers.unpark_all()
            if self._on_end is not None:
                self._on_end()
        elif self._unread and self._end is None:
            self._waiting.append(message)
        else:
            return
        if self._readers:
            self._readers.unpark_all()

    @property
    def full(self) -> bool:
        """Whether who adds should wait for ``room``."""
        return len(self._waiting) > MAX_WAITING and self._unread and self._end is None

    async def room(self) -> None:
        """Wait until it is no longer full; no checkpoint if it isn't."""
        while self.full:
            await self._writers.park()

    def abandon(self) -> None:
        """The app has answered: what is here and what comes is dropped."""
        self._unread = False
        self._waiting.clear()
        self._writers.unpark_all()

    @contextmanager
    def watching(self, gone: Callable[[], None]) -> Iterator[None]:
        """Have the end of the client call ``gone``, at once if it has come; what else comes is dropped.

        It costs no task. The block must be left before the app's last message: the end of a request looks the same.
        """
        self.abandon()
        self._on_end = gone
        try:
            if self._end is not None:
                gone()
            yield
        finally:
            self._on_end = None

    async def receive(self) -> Message:
        """The next message; no checkpoint when it is here already."""
        if not self._waiting and self._end is None:
            await self._before_wait()
            while not self._waiting and self._end is None:
                await self._readers.park()
        if self._waiting:
            message = self._waiting.popleft()
            if self._writers:
                self._writers.unpark_all()
            return message
        if self._told:
            await trio.lowlevel.checkpoint()  # for an app that asks on and on
        self._told = True
        assert self._end is not None
        return self._end
