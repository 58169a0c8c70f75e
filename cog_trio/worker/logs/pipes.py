"""The read ends of descriptors 1 and 2: text of C code, of child processes, of everything that is not a Python stream.

Two readers share them under one lock. The I/O thread's ``pump`` waits for text and stops reading while what it
feeds is full, so a child that writes faster than the parent takes is blocked by the kernel: nothing is dropped.
Any other thread may ``drain`` what is there now: before its own text, so that the order of a log is the order in
which it was written, and before a run's terminal frame, so that the run's log is whole.

Bytes are decoded as they come and cut as other text is; an unfinished line goes after 200 ms or 64 KiB. Whose
text it is, is decided when it is read.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from cog_trio.bridge.protocol import LogSource
from cog_trio.worker.logs.line_splitter import LineSplitter
from cog_trio.worker.logs.run_log import TextLog

READ_SIZE: Final = 2**16  # bytes
PATIENCE: Final = 0.2  # seconds that an unfinished line waits for its end
HELD_FOR: Final = 0.2  # seconds that a thread waits for another one's reading
AT_ONCE: Final = 4 * 2**20  # bytes of one drain; a pipe holds 1 MiB, the rest was written while we read


class _Pipe:
    def __init__(self, fd: int, source: LogSource) -> None:
        self.fd: Final = fd
        self.source: Final = source
        self.lines: Final = LineSplitter()
        self.open = True
        self.given = 0  # pieces that were handed on so far
        self.wait: trio.CancelScope | None = None  # the pump's, around its wait for text


class CapturePipes:
    """Both pipes. The read ends become non-blocking; the caller keeps them open."""

    def __init__(
        self, out_r: int, err_r: int, target: Callable[[], TextLog], *, epoll: bool = hasattr(select, "epoll")
    ) -> None:
        self._pipes: Final = {
            LogSource.STDOUT: _Pipe(out_r, LogSource.STDOUT),
            LogSource.STDERR: _Pipe(err_r, LogSource.STDERR),
        }
        self._out, self._err = self._pipes.values()
        self._target = target
        self._lock = threading.RLock()
        self._stuck = False  # the lock was waited for in vain, and has not been free since
        self._busy = False  # belongs to the thread that holds the lock: a frame of it is reading
        self._fed: list[TextLog] = []  # since the lock was taken
        self._token: trio.lowlevel.TrioToken | None = None  # of the pump's run
        # An epoll object may be asked from many threads, and from a signal handler inside of it; a poll object refuses.
        self._epoll = select.epoll() if epoll else None
        for pipe in self._pipes.values():
            os.set_blocking(pipe.fd, False)
            if self._epoll is not None:
                self._epoll.register(pipe.fd, select.EPOLLIN)

    def drain(self) -> None:
        """Read what is there now, from any thread, and hand on its whole lines. Never waits for room.

        The unfinished one is left for its end, or for the pump to hand on in time: its writer may be at it.
        """
        if not self.has_text():
            return
        self._alone(self._read_all)
        for pipe in self._pipes.values():
            if pipe.lines.waiting and pipe.wait is not None and self._token is not None:
                with contextlib.suppress(trio.RunFinishedError):  # the worker leaves: ``finish`` will come
                    self._token.run_sync_soon(_limit, pipe, idempotent=True)

    def finish(self) -> None:
        """The same, with unfinished lines: what comes next belongs to another, not a byte of a character is kept."""
        self._alone(self._read_to_the_end)

    async def pump(self, source: LogSource) -> None:
        """Read one pipe for the worker's life, in the I/O thread; ends when no write end is left.

        Raises:
          WriterBroken: the control channel is gone.

        Cancellation: nothing is lost, ``drain`` reads on.
        """
        pipe = self._pipes[source]
        self._token = trio.lowlevel.current_trio_token()
        deadline = math.inf
        while pipe.open:
            with trio.move_on_at(deadline) as patience:
                pipe.wait = patience
                await trio.lowlevel.wait_readable(pipe.fd)
            pipe.wait = None
            target = self._target()
            if target.full:
                await target.wait_room()
            given = pipe.given
            self._alone(self._flush if patience.cancelled_caught else self._read, pipe)
            if not pipe.lines.waiting:
                deadline = math.inf
            elif pipe.given != given or deadline == math.inf:
                deadline = trio.current_time() + PATIENCE

    def has_text(self) -> bool:
        """Return whether there is text to read, or some was just read and not handed on yet; from any thread."""
        return self._ready() or self._busy  # in this order: what the first does not see any more the second does

    def _ready(self) -> bool:
        """Return whether a read would give something."""
        if self._epoll is not None:
            return bool(self._epoll.poll(0, 1))
        poll = select.poll()
        for pipe in self._pipes.values():
            if pipe.open:
                poll.register(pipe.fd, select.POLLIN)
        return bool(poll.poll(0))

    def _alone(self, work: Callable[..., object], *args: Any) -> None:
        """Do the work with the lock held, then have those who were fed send.

        This lock is waited for, so that a print comes after what another thread is just reading. The thread that has
        it waits for nothing of ours (sending comes after it), and a ``__del__`` or signal handler that prints inside
        of the work leaves it alone. But such a handler may itself wait, for a thread that prints: so the wait has an
        end, and after it nobody waits until the lock was free again.
        """
        if not self._lock.acquire(timeout=0 if self._stuck else HELD_FOR):
            self._stuck = True
            return
        try:
            self._stuck = False
            if self._busy:
                return
            self._busy = True
            try:
                work(*args)
            finally:
                self._busy = False
            fed, self._fed = self._fed, []
        finally:
            self._lock.release()
        for journal in fed:
            journal.send()

    # --- lock held ---

    def _read_all(self) -> None:
        for pipe in self._pipes.values():
            total = 0
            while pipe.open and total < AT_ONCE:
                size = self._read(pipe)
                if not size:
                    break
                total += size

    def _read_to_the_end(self) -> None:
        if self._ready():
            self._read_all()
        elif self._out.lines.clean and self._err.lines.clean:
            return  # as a rule
        for pipe in self._pipes.values():
            self._give(pipe, pipe.lines.finish())

    def _read(self, pipe: _Pipe) -> int:
        """Read once: how many bytes."""
        try:
            data = os.read(pipe.fd, READ_SIZE)
        except BlockingIOError:
            return 0
        if data:
            self._give(pipe, pipe.lines.feed_bytes(data))
        elif pipe.open:
            pipe.open = False  # user code closed or replaced the descriptor, and so did its children
            if self._epoll is not None:
                self._epoll.unregister(pipe.fd)
            self._give(pipe, pipe.lines.finish())
        return len(data)

    def _flush(self, pipe: _Pipe) -> None:
        self._give(pipe, pipe.lines.flush())

    def _give(self, pipe: _Pipe, pieces: Sequence[str]) -> None:
        if pieces:
            target = self._target()
            target.queue_pieces(pipe.source, tuple(pieces))
            pipe.given += len(pieces)
            self._fed.append(target)


def _limit(pipe: _Pipe) -> None:
    if pipe.wait is not None:
        pipe.wait.deadline = min(pipe.wait.deadline, trio.current_time() + PATIENCE)
