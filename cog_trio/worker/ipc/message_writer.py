"""Whole messages onto one descriptor, from any thread, without a writer task.

Whoever produces a message writes it: ``write`` takes the bytes that the kernel accepts to the socket at once and
keeps the rest as pending. Pending bytes go out by whoever comes first: the I/O thread, which ``on_pending`` wakes
once and which then runs ``flush``; or a producer that waits for room. So the first token leaves at once, and a
slow parent slows the producer, never the control path.

It is safe to call from anywhere in user code's reach, ``__del__`` and signal handlers inside of a ``write`` included:
nothing here waits for a lock (``try_lock.py``). Messages are never torn: once a part of one is out, its rest is first
in line. No cancel is raised here, since callers on the main thread hold ``cancel.gate.runtime()``, and nothing that a
signal handler of the user's raises, since these frames are known to keep state (``cancel/stack.py``).
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.ipc.try_lock import TryLock

HIGH_WATER: Final = 2**20  # pending bytes; beyond it producers wait. With the socket's buffer, all a slot can hold


STATEFUL_FILES.add(__file__)


class WriterBroken(Exception):
    """The other end is gone: nothing more can be sent, and what was pending is lost."""


class MessageWriter:
    """One descriptor, which becomes non-blocking. The caller keeps it open and closes it after the last use.

    ``on_pending`` is called when bytes begin to be pending, from the thread that wrote: it
    asks the I/O thread to run ``flush`` and does nothing else. It is rarely called again before ``flush`` has ended.
    """

    def __init__(self, fd: int, on_pending: Callable[[], None]) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.broken: str | None = None
        self._on_pending = on_pending
        self._turn = TryLock()
        self._queue: deque[bytes | bytearray] = deque()  # handed in, not yet sent; empty but for moments
        self._pending = bytearray()  # refused by the kernel; its first byte may be inside a message
        self._flushing = False  # on_pending was called, flush has not ended
        self._flusher = False  # a flush is running, in the I/O thread
        self._waiters: deque[Callable[[], None]] = deque()
        _writers.add(self)

    @property
    def full(self) -> bool:
        """More is pending than a producer may leave behind."""
        return len(self._pending) > HIGH_WATER

    @property
    def pending(self) -> int:
        """Bytes that were written but not sent yet."""
        return len(self._pending)

    def write(self, data: bytes | bytearray) -> None:
        """Send one whole message, or keep what the kernel does not take. Never blocks: see ``full`` and ``wait``.

        The writer owns ``data`` from here on.

        Raises:
          WriterBroken: if the other end is gone, now or before.
        """
        self._queue.append(data)
        self._send_queued()
        if self.broken is not None:
            raise WriterBroken(self.broken)

    def wait(self, wake_fd: int | None = None) -> None:
        """Block this thread until the writer is no longer full, is broken, or ``wake_fd`` (if any) is readable.

        The waiting thread sends pending bytes itself. Called from inside a ``write`` of the same thread it
        returns at once.
        """
        poll = None
        while self.full and self.broken is None and not self._turn.mine:
            if poll is None:
                poll = _poll_for(self.fd, wake_fd)
            ready = poll.poll()
            if any(fd == wake_fd for fd, _ in ready):
                return
            self._send_pending()

    def finish(self, seconds: float) -> bool:
        """Block until nothing is pending, for use when the I/O thread has ended; whether all went out in time."""
        deadline = time.monotonic() + seconds
        poll = _poll_for(self.fd, None)
        while True:
            self._send_pending()
            if not self._pending and not self._queue:  # a message leaves them only when it is out
                return self.broken is None
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            poll.poll(left * 1000)

    def when_room(self, callback: Callable[[], None]) -> bool:
        """Have ``callback`` called once, from whichever thread makes room, when no longer full or broken.

        False: there is room already, the callback was not kept.
        """
        self._waiters.append(callback)
        if self.full and self.broken is None:
            return True
        try:
            self._waiters.remove(callback)
        except ValueError:
            return True  # room came meanwhile, and it was called
        return False

    async def wait_room(self) -> None:
        """Wait, in any trio thread, until the writer is no longer full. Always a checkpoint.

        Cancellation: nothing is lost.
        """
        await trio.lowlevel.checkpoint()
        token = trio.lowlevel.current_trio_token()
        while True:
            room = trio.Event()
            if not self.when_room(lambda room=room: _tell(token, room)):  # type: ignore[misc]
                return
            await room.wait()

    async def flush(self) -> None:
        """Send what is pending, in the I/O thread, after each ``on_pending``.

        Cancellation: what is pending stays so, and only waiting producers and ``finish`` send it from then on.
        """
        if self._flusher:
            return
        self._flusher = True
        try:
            while not self._flushed():
                await trio.lowlevel.wait_writable(self.fd)
                self._send_pending()
        except (OSError, trio.ClosedResourceError) as error:
            self._break(error)
            self._send_pending()
        finally:
            self._flusher = False

    def abandon(self, why: str) -> None:
        """Send nothing from here on, in a forked child: the descriptor is its parent's to use."""
        self._turn = TryLock()  # a thread that is not in this process may have had the old one
        self.broken = why
        self._queue.clear()
        self._pending = bytearray()
        self._waiters.clear()

    def _send_queued(self) -> None:
        while self._queue and self._turn.run_exclusively(self._send_queue):
            pass

    def _send_pending(self) -> None:
        self._turn.run_exclusively(self._send_some)
        self._send_queued()
        while self._waiters and (self.broken is not None or not self.full):
            try:
                waiter = self._waiters.popleft()
            except IndexError:
                return  # another thread has called it
            waiter()

    def _flushed(self) -> bool:
        self._flushing = False  # first: who makes bytes pending from here on asks for another flush
        if self._pending and self.broken is None:
            self._flushing = True
            return False
        return True

    # --- these have the turn ---

    def _send_queue(self) -> None:
        queue = self._queue
        while queue:
            data = queue[0]  # it leaves the queue when it is out: ``finish`` asks for that
            if self._pending:
                self._pending += data
            elif self.broken is None:
                sent = self._write(data)
                if sent < len(data):
                    self._pending = bytearray(memoryview(data)[sent:])
            queue.popleft()
        if self._pending and not self._flushing:
            self._on_pending()
            self._flushing = True

    def _send_some(self) -> None:
        while self._pending:
            # a bounded slice: what is copied for one write is what a socket may take
            sent = self._write(self._pending[: 2**18])
            if not sent:
                break
            del self._pending[:sent]

    def _write(self, data: bytes | bytearray) -> int:
        """How much of it the kernel takes now; all of it where nobody is there to read it."""
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._break(error)
            return len(data)

    def _break(self, error: BaseException) -> None:
        self.broken = f"the other end is gone: {error}"
        self._pending.clear()


def abandon_all(why: str) -> None:
    """Make every writer of this process refuse: for a forked child."""
    for writer in list(_writers):
        writer.abandon(why)


def _poll_for(fd: int, wake_fd: int | None) -> select.poll:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if wake_fd is not None and wake_fd >= 0:
        poll.register(wake_fd, select.POLLIN)
    return poll


def _tell(token: trio.lowlevel.TrioToken, event: trio.Event) -> None:
    try:
        token.run_sync_soon(event.set)
    except trio.RunFinishedError:
        return  # nobody waits any more: the run that did has ended


_writers: Final[weakref.WeakSet[MessageWriter]] = weakref.WeakSet()
