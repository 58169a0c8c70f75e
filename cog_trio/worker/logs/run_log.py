"""Whose text is this? One record a run, carried by a ContextVar; one service log for all the rest.

A record takes what the code of its run writes, from any thread, cuts it into pieces (``line_splitter.py``) and sends
them as LogLine on the slot's socket, in the order in which their lines were ended. ``finish`` sends what waits and
closes the record: from then on not one frame leaves it, and what a late thread still writes goes to the service log
under the run's id, never into another run (W42).

Each line leaves at once, until a run prints so many so fast that sending costs more than printing: then up to
``HELD`` pieces of standard output wait for those that follow, or for ``send_late`` a moment later. Standard error, a
flush, and everything else that the run sends takes along what waits. A crash in a torrent can cost those last lines,
as it costs what stands in the buffer of stdio; a crash after a few prints costs none.

As in ``message_writer.py`` nothing waits for a lock, and what is printed inside a print is queued behind it. A producer
waits for room afterwards; the I/O thread uses ``post``, which never waits, and looks at ``full`` itself.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import trio

from cog_trio.bridge.codec import encode_line
from cog_trio.bridge.protocol import Log, LogLine, LogSource, PredictionId, SlotId
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken
from cog_trio.worker.ipc.try_lock import TryLock
from cog_trio.worker.logs.line_splitter import LineSplitter


class _End:
    """In a queue: everything before it is to be sent, unfinished lines too."""

    done = False


SOME: Final = 16  # texts that end no line, which may wait to be cut
SHORT: Final = 4096  # characters of a text that may wait
HELD: Final = 64  # texts that may wait in a torrent; a print makes two
QUICK: Final = 0.0001  # seconds between two lines of a torrent
PAUSE: Final = 0.01  # seconds without a line after which the next one leaves at once
BURST: Final = 64  # quick lines that make a torrent
LATE: Final = 0.002  # seconds until what waits is sent, if nothing sends it before
_STDOUT: Final = LogSource.STDOUT  # the lookup on the enumeration costs 50 ns
Item: TypeAlias = str | bytes | tuple[str, ...] | None
"""Text to cut, pieces that are cut already, or (None) a flush."""
Frame: TypeAlias = bytearray
"""An encoded message of the run that is no text."""


class TextLog(ABC):
    """Takes text from any thread and sends it; the part that records and the service log share."""

    _queue: deque[Any]

    def __init__(self, writer: MessageWriter | None) -> None:
        self.writer = writer
        self._turn = TryLock()

    @property
    def full(self) -> bool:
        """The writer has more pending than a producer may leave behind."""
        return self.writer is not None and self.writer.full

    def wait(self) -> None:
        """Block while full; on the main thread a cancel that is due ends it. The gate is disarmed."""
        if self.writer is not None and self.writer.full:
            self.writer.wait(gate.wake_fd)

    async def wait_room(self) -> None:
        """The same in trio."""
        if self.writer is not None:
            await self.writer.wait_room()

    @abstractmethod
    def post(self, source: LogSource, text: str | bytes) -> None:
        """Take text, never wait. ``bytes`` are UTF-8."""

    def write(self, source: LogSource, text: str | bytes) -> None:
        """Take text, then wait for room. On the main thread: inside ``gate.runtime()``."""
        self.post(source, text)
        writer = self.writer
        if writer is not None and writer.full:
            writer.wait(gate.wake_fd)

    @abstractmethod
    def queue_pieces(self, source: LogSource, pieces: tuple[str, ...]) -> None:
        """Put pieces that were cut elsewhere beside the line that waits here; ``send`` sends them."""

    @abstractmethod
    def flush(self, source: LogSource) -> None:
        """Send the unfinished line of one stream; never waits."""

    def send(self) -> None:
        """Send what is queued, unless another thread is at it already."""
        while self._queue and self._turn.run_exclusively(self._drain):
            pass

    def _wait_for(self, end: _End) -> None:
        self.send()
        while not end.done and not self._turn.mine:
            time.sleep(0)  # another thread is at it, and never waits for anything
            self.send()

    @abstractmethod
    def _drain(self) -> None: ...


class ServiceLog(TextLog):
    """Text that belongs to no open run, as Log on the control channel: setup, late threads, children of setup."""

    def __init__(self, writer: MessageWriter) -> None:
        super().__init__(writer)
        self._control = writer
        self._queue: deque[tuple[LogSource, Item | _End, PredictionId | None]] = deque()
        self._lines: dict[tuple[LogSource, PredictionId | None], LineSplitter] = {}

    def append(self, source: LogSource, item: Item, id: PredictionId | None) -> None:
        """Any item, of a finished record when ``id`` names it."""
        self._queue.append((source, item, id))
        self.send()

    def post(self, source: LogSource, text: str | bytes) -> None:
        self.append(source, text, None)

    def queue_pieces(self, source: LogSource, pieces: tuple[str, ...]) -> None:
        self._queue.append((source, pieces, None))

    def flush(self, source: LogSource) -> None:
        self.append(source, None, None)

    def finish(self) -> None:
        """Send every unfinished line, of late writers too; more may come. Never waits for room."""
        end = _End()
        self._queue.append((_STDOUT, end, None))
        self._wait_for(end)

    def _drain(self) -> None:
        queue = self._queue
        while queue:
            source, text, id = queue.popleft()
            if isinstance(text, _End):
                self._end()
                text.done = True
                continue
            lines = self._lines.get((source, id))
            if lines is None:
                lines = self._lines[source, id] = LineSplitter()
            for piece in _cut(lines, text):
                self._control.write(encode_line(Log(source, piece, id)))
            if id is not None and lines.clean:
                del self._lines[source, id]

    def _end(self) -> None:
        for (source, id), lines in self._lines.items():
            for piece in lines.finish():
                self._control.write(encode_line(Log(source, piece, id)))
        self._lines.clear()


class RunLog(TextLog):
    """The text of one run.

    ``emit`` sends one message on the run's slot socket and does not block: ``writer`` (that socket's) is what
    producers wait for. ``ask_late`` has the I/O thread run ``send_late``; without it nothing is held back.
    ``service`` takes what comes after ``finish``; ``Capture.begin`` sets it.
    """

    def __init__(
        self,
        slot: SlotId,
        id: PredictionId,
        run: int,
        emit: Callable[[LogLine], None],
        writer: MessageWriter | None = None,
        ask_late: Callable[[RunLog], None] | None = None,
    ) -> None:
        super().__init__(writer)
        self._ask_late = ask_late
        self._asked = False  # send_late is running, or will
        self._line_at = 0.0
        self._burst = 0  # lines of standard output that came in quick succession
        self.slot: Final = slot
        self.id: Final = id
        self.run: Final = run
        self.alive = True
        self.service: ServiceLog | None = None
        self._emit = emit
        self._queue: deque[tuple[LogSource, Item | Frame | _End]] = deque()
        self._out = LineSplitter()
        self._err = LineSplitter()

    def post(self, source: LogSource, text: str | bytes) -> None:
        self._queue.append((source, text))
        self.send()

    def write(self, source: LogSource, text: str | bytes) -> None:
        # Every print comes twice through here. What ends no line can wait for what does: it would only wait elsewhere.
        # Whether the record is open is asked after the append: what ``finish`` did not see is sent below.
        queue = self._queue
        queue.append((source, text))
        if type(text) is str and len(text) < SHORT:
            if "\n" not in text and "\r" not in text:
                if len(queue) < (HELD if self._burst > BURST else SOME) and self.alive:
                    return
            elif source is _STDOUT and self._is_torrent() and len(queue) < HELD and self.alive:
                if not self._asked and self._ask_late is not None:
                    self._asked = True
                    self._ask_late(self)
                return
        self.send()
        writer = self.writer
        if writer is not None and writer.full:
            writer.wait(gate.wake_fd)

    def _is_torrent(self) -> bool:
        """Once a line of standard output."""
        now = time.monotonic()
        gap = now - self._line_at
        self._line_at = now
        if gap < QUICK:
            self._burst = min(self._burst + 1, 4 * BURST)
        else:  # the thread may just not have run for a moment
            self._burst = self._burst // 2 if gap < PAUSE else 0
        return self._burst > BURST and self._ask_late is not None

    async def send_late(self) -> None:
        """In the I/O thread: send what a torrent left waiting, until it is over. Cancellation: it waits on."""
        calm = 0
        while calm < 3 and self.alive:
            await trio.sleep(LATE)
            calm = 0 if self._queue else calm + 1
            self.send()
        self._asked = False
        self.send()

    def queue_pieces(self, source: LogSource, pieces: tuple[str, ...]) -> None:
        self._queue.append((source, pieces))

    def flush(self, source: LogSource) -> None:
        self._queue.append((source, None))
        self.send()

    def post_frame(self, frame: Frame) -> None:
        """Send a whole frame of the run, of any thread of it: a metric. After ``finish`` it is dropped.

        A check of ``alive`` by the caller would be too early: the run may end, and the next one begin, between it
        and the write. Never waits.
        """
        self._queue.append((_STDOUT, frame))
        self.send()

    def finish(self) -> None:
        """Send what waits; then the record is closed, at once and for all threads. Never waits for room."""
        end = _End()
        self._queue.append((_STDOUT, end))
        self._wait_for(end)

    def _drain(self) -> None:
        queue = self._queue
        while queue:
            source, text = queue.popleft()
            if isinstance(text, bytearray):
                self._send_frame(text)
            elif isinstance(text, _End):
                self._end()
                text.done = True
            elif self.alive:
                lines = self._out if source is _STDOUT else self._err
                for piece in lines.feed(self._gather(source, text)) if isinstance(text, str) else _cut(lines, text):
                    self._send(source, piece)
            elif self.service is not None:
                self.service.append(source, text, self.id)

    def _gather(self, source: LogSource, text: str) -> str:
        """It, with the text of the same stream that waits right behind it."""
        queue = self._queue
        if not queue:
            return text
        texts = [text]
        while queue and len(texts) < HELD:
            next_source, more = queue[0]
            if next_source is not source or not isinstance(more, str):
                break
            queue.popleft()
            texts.append(more)
        return "".join(texts)

    def _send(self, source: LogSource, piece: str) -> None:
        if self.alive:
            try:
                self._emit(LogLine(source, piece))
            except WriterBroken:
                # The loop learns it from the next frame that matters; the text is kept in the service log.
                self._close()
            else:
                return
        if self.service is not None:
            self.service.append(source, (piece,), self.id)

    def _send_frame(self, frame: Frame) -> None:
        if self.alive and self.writer is not None:
            try:
                self.writer.write(frame)
            except WriterBroken:
                self._close()  # as above

    def _end(self) -> None:
        for source, lines in ((LogSource.STDOUT, self._out), (LogSource.STDERR, self._err)):
            for piece in lines.finish():
                self._send(source, piece)
        self._close()

    def _close(self) -> None:
        self.alive = False
        if self.service is not None:
            self.writer = self.service.writer  # what late threads wait for


def _cut(lines: LineSplitter, item: Item) -> Sequence[str]:
    if isinstance(item, str):
        return lines.feed(item)
    if item is None:
        return lines.flush()
    return item if isinstance(item, tuple) else lines.feed_bytes(item)


current: Final[ContextVar[TextLog | None]] = ContextVar("cog_trio_record", default=None)
"""The record of the run whose code is executing; the service log for code that belongs to no run by design."""
