"""What ``run`` and ``train`` write: results on stdout, all else on stderr, and on a terminal one moving line.

Everything goes through one queue, so that what is printed keeps its order, and one task writes it, in a thread: a
reader that stalls (a pager) holds up neither the model's end nor Ctrl-C. Who produces much waits in ``room``. The
moving line (``progress.py``) is drawn only where the cursor stands at the start of a line and nothing has come for a
moment; it is taken away before any text, so that a model's own progress bars stay whole.

A reader that has left (``| head``) sets ``closed``; what comes for stdout after that is dropped. A closed stderr is
nobody's fault: its text is dropped.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from cog_trio.cli.run.progress import ProgressLine

OUT: Final = 1
ERR: Final = 2
ROOM: Final = 2**20  # bytes that may wait before a producer does
BOUND: Final = 2**24  # bytes that may wait in all: what comes from those who can't wait is cut here, and told
PIECE: Final = 2**16  # bytes of one write
TICK: Final = 0.1  # seconds: the moving line moves, and appears after so much silence
LEFT: Final = (errno.EPIPE, errno.EIO, errno.ECONNRESET)  # the reader, or the terminal, is gone
LAST_WORDS: Final = 5.0  # seconds that a stalled reader gets at the end


class Console:
    """Made by ``open_console``."""

    def __init__(self, bar: ProgressLine | None) -> None:
        self.closed = trio.Event()  # nothing goes to stdout any more
        self.fault: str | None = None  # if that is no reader's doing: why
        self.bar = bar
        self.measure: Callable[[], tuple[int, int | None] | None] = lambda: None  # bytes of inputs that come, of all
        self._queue: deque[tuple[int, bytes]] = deque()
        self._waiting = 0  # bytes
        self._cut = 0  # bytes
        self._changed = trio.lowlevel.ParkingLot()
        self._written = trio.lowlevel.ParkingLot()
        self._broken: set[int] = set()
        self._shutdown_sequence = False
        self._fresh = True  # the cursor of the terminal is at the start of a line

    def out(self, data: bytes) -> None:
        """For stdout."""
        self._put(OUT, data)

    def err(self, text: str) -> None:
        """For stderr, as it is: whoever ends a line says so."""
        self._put(ERR, text.encode(errors="backslashreplace"))

    def say(self, text: str) -> None:
        """A line of our own on stderr."""
        self.err(f"{text}\n")

    def phase(self, text: str) -> None:
        """What is waited for from here on; nothing is waited for when it is empty."""
        if self.bar is not None:
            self.bar.phase(text)

    async def room(self) -> None:
        """Wait until not too much waits. Cancellation: nothing is lost."""
        await trio.lowlevel.checkpoint()
        while self._waiting > ROOM:
            await self._written.park()

    def _put(self, descriptor: int, data: bytes) -> None:
        if not data or descriptor in self._broken:
            return
        if descriptor == ERR and self._waiting > BOUND:
            self._cut += len(data)
            return
        self._queue.append((descriptor, data))
        self._waiting += len(data)
        self._changed.unpark_all()

    async def _write(self) -> None:
        while self._queue or not self._shutdown_sequence:
            if not self._queue:
                await self._pause()
                continue
            if self.bar is not None:
                self.bar.hide()
            descriptor, data = self._take()
            try:
                await trio.to_thread.run_sync(_write_all, descriptor, data, abandon_on_cancel=True)
            except OSError as error:
                self._broken.add(descriptor)
                if descriptor == OUT:
                    self.fault = None if error.errno in LEFT else error.strerror or str(error)
                    self.closed.set()
            self._fresh = data.endswith(b"\n")
            self._waiting -= len(data)
            self._written.unpark_all()

    async def _pause(self) -> None:
        """Wait for something to write, with the moving line meanwhile."""
        with trio.move_on_after(TICK if self.bar is not None else float("inf")):
            await self._changed.park()
            return
        if self.bar is not None and self._fresh:
            self.bar.amount(self.measure())
            self.bar.draw()

    def _take(self) -> tuple[int, bytes]:
        """What comes next for one descriptor, in one piece."""
        descriptor, data = self._queue.popleft()
        if len(data) > PIECE:
            self._queue.appendleft((descriptor, data[PIECE:]))
            return descriptor, data[:PIECE]
        pieces, size = [data], len(data)
        while self._queue and self._queue[0][0] == descriptor and size + len(self._queue[0][1]) <= PIECE:
            pieces.append(self._queue.popleft()[1])
            size += len(pieces[-1])
        if not self._queue and self._cut:
            cut, self._cut = self._cut, 0
            self.say(f"\n{cut} bytes of text were dropped: stderr is too slow")
        return descriptor, b"".join(pieces)

    def end(self) -> None:
        self._shutdown_sequence = True
        self._changed.unpark_all()


@asynccontextmanager
async def open_console(bar: ProgressLine | None) -> AsyncIterator[Console]:
    """A console for the length of a block; at its end what waits is written, for at most ``LAST_WORDS``.

    Cancellation: as the end; whatever a stalled reader did not take is lost.
    """
    console = Console(bar)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_writing, console)
        try:
            yield console
        finally:
            console.end()
            nursery.cancel_scope.shield = True
            nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS


async def _keep_writing(console: Console) -> None:
    try:
        await console._write()
    finally:
        if console.bar is not None:
            console.bar.hide()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
