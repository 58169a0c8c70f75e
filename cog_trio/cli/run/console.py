"""What ``run`` and ``train`` write: results on stdout, everything else on stderr, and on a terminal one moving line.

All text goes through one queue, so that what is printed keeps its order, and a thread writes it. ``run`` behaves as
every Unix filter does: it waits for as long as its reader stalls (a pager, a slow disk). The model waits too, because
whoever produces output awaits ``room``. Only Ctrl-C ends that wait (``release``), and a reader that leaves (``| head``)
sets ``closed``. Text of a setup can't wait; beyond ``BOUND`` it is dropped, and ``dropped`` makes the run a failure.

The moving line (``progress.py``) is drawn only where the cursor is at the start of a line and nothing has come for a
moment. It is taken away before any text, so that a model's own progress bars stay whole.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from cog_trio.cli.stream_writer import StreamWriter

if TYPE_CHECKING:
    from cog_trio.cli.run.progress import ProgressLine

FETCHING: Final = "Fetching the inputs"
OUT: Final = 1
ERR: Final = 2
ROOM: Final = 2**20  # bytes that may wait before a producer does
BOUND: Final = 2**24  # bytes that may wait in all, for text whose source can't wait
TICK: Final = 0.1  # seconds: the moving line moves, and appears after so much silence
LEFT: Final = (errno.EPIPE, errno.EIO, errno.ECONNRESET)  # the reader, or the terminal, is gone
LAST_WORDS: Final = 1.0  # seconds that a stalled reader still gets after Ctrl-C


class Console:
    """Made by ``open_console``."""

    def __init__(self, progress_line: ProgressLine | None) -> None:
        self.closed = trio.Event()  # nothing goes to stdout any more
        self.fault: str | None = None  # why, unless the reader has left
        self.dropped = 0  # bytes of text that were not written, and events of the model that were lost
        self.progress_line = progress_line
        self.measured = FETCHING  # what ``measure`` counts
        self.measure: Callable[[], tuple[int, int | None] | None] = lambda: None  # bytes, of all
        self.writer = StreamWriter(self._has_written)
        self._token: trio.lowlevel.TrioToken | None = None
        self._written = trio.lowlevel.ParkingLot()
        self._released = False
        self._fresh = True  # the cursor of the terminal is at the start of a line
        self._quiet_since = 0.0  # on the trio clock

    def out(self, data: bytes) -> None:
        """Write to stdout."""
        self._put(OUT, data)

    def err(self, text: str) -> None:
        """Write to stderr, as it is, without a line end of ours."""
        self._put(ERR, text.encode(errors="backslashreplace"))

    def say(self, text: str) -> None:
        """Write a line of our own to stderr."""
        self.err(f"{text}\n")

    def phase(self, text: str) -> None:
        """Say what is waited for from here on; an empty text ends that."""
        if self.progress_line is not None:
            self.progress_line.phase(text)

    async def room(self) -> None:
        """Wait until little enough waits to be written. Cancellation: nothing is lost."""
        await self._wait_written(ROOM)

    async def flush(self) -> None:
        """Wait until everything is written, or can't be. Cancellation: nothing is lost."""
        await self._wait_written(0)

    async def _wait_written(self, most: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.writer.waiting > most and not self._released:
            await self._written.park()

    def release(self) -> None:
        """Never wait for the reader again: the end was asked for."""
        self._released = True
        self._written.unpark_all()

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.writer.start()

    async def finish(self) -> None:
        """End the writer; a reader that still stalls gets ``LAST_WORDS``."""
        self._released = False
        with trio.move_on_after(LAST_WORDS, shield=True):
            await self.flush()
        self.writer.close(0)

    async def draw_progress_line(self) -> None:
        """Draw the moving line after each silence, for ever."""
        while self.progress_line is not None:
            await trio.sleep(TICK)
            silent = trio.current_time() - self._quiet_since >= TICK
            if self._fresh and silent and not self.writer.waiting:
                self.progress_line.amount(self.measure(), self.measured)
                self.progress_line.draw()

    def _put(self, descriptor: int, data: bytes) -> None:
        if not data or descriptor in self.writer.faults:
            return
        if self.writer.waiting > BOUND and (descriptor == ERR or self._released):
            self.dropped += len(data)
            return
        if self.progress_line is not None:
            self.progress_line.hide()
        self._fresh = data.endswith(b"\n")
        self._quiet_since = trio.current_time()
        self.writer.write(descriptor, data)

    def _has_written(self) -> None:
        """Called by the thread."""
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._look_at_writer, idempotent=True)

    def _look_at_writer(self) -> None:
        self._written.unpark_all()
        error = self.writer.faults.get(OUT)
        if error is not None and not self.closed.is_set():
            self.fault = None if error.errno in LEFT else error.strerror or str(error)
            self.closed.set()


@asynccontextmanager
async def open_console(progress_line: ProgressLine | None) -> AsyncIterator[Console]:
    """A console for the length of a block. The block itself waits for the reader (``flush``); at its end a reader that
    stalls gets ``LAST_WORDS``, and what it has not taken by then is lost."""
    console = Console(progress_line)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    async with trio.open_nursery() as nursery:
        console.start()
        nursery.start_soon(console.draw_progress_line)
        try:
            yield console
        finally:
            if console.progress_line is not None:
                console.progress_line.hide()
            await console.finish()
            nursery.cancel_scope.cancel()
