"""Whose text is this? One record a run, carried by a ContextVar; one service log for all the rest.

A record takes what the code of its run writes, from any thread, cuts it into pieces (``line_splitter.py``) and sends
them as LogLine on the slot's socket, in the order in which their lines were ended. ``finish`` sends what waits and
closes the record: from then on not one frame leaves it, and what a late thread still writes goes to the service log
under the run's id, never into another run.

A line leaves at once, until a run prints so many so fast that sending costs more than printing: a token bucket lets 32
lines go, and one more a millisecond; further ones of standard output wait for the next that goes, or for ``send_late``
a moment later. Standard error, a flush, and everything else that the run sends takes along what waits. A crash in a
torrent can cost its last milliseconds, as it costs what stands in the buffer of stdio; a crash after a few prints
costs none. Text that ends no line waits for the end of its line: ``hold`` is all that most prints come to.

The outputs of a stream stand in the same line. A first one leaves at once; those that follow within half a millisecond
travel together, and the I/O thread sends what waits for a whole one.

As in ``message_writer.py`` nothing waits for a lock, and what is printed inside a print is queued behind it. A producer
waits for room afterwards; the I/O thread uses ``post``, which never waits, and looks at ``full`` itself. The thread of
an event loop does not wait, since that would stop all runs: its text waits for the parent, up to ``LOOP_ROOM``, and
what is over is cut and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from time import monotonic, sleep
from typing import Any, Final, TypeAlias

import msgspec
import trio

from cog_trio.bridge.codec import encode_frame, encode_line
from cog_trio.bridge.protocol import (
    Log,
    LogLine,
    LogSource,
    OutputBatch,
    OutputChunk,
    PredictionId,
    SlotId,
    logs_truncated,
)
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken
from cog_trio.worker.ipc.try_lock import TryLock
from cog_trio.worker.logs.line_splitter import LineSplitter


class _End:
    """In a queue: everything before it is to be sent, unfinished lines too."""

    done = False


SHORT: Final = 4096  # characters of a text that may wait
HELD: Final = 1024  # texts that may wait; a print makes two or more
TOKENS: Final = 32.0  # lines that leave at once after a pause
REFILL: Final = 1000.0  # tokens a second
BATCH: Final = 2**16  # bytes of items that travel in one frame
ITEMS_GAP: Final = 0.0005  # seconds after items were sent in which further ones wait
ITEMS_LATE: Final = 0.001  # seconds until items that wait are sent, if no others come
LATE: Final = 0.003  # seconds until what waits is sent, if nothing sends it before
QUIET: Final = 0.001  # seconds without a line after which the I/O thread sends; before, the printing thread does
LOOP_ROOM: Final = 4 * 2**20  # bytes of text of an event loop's thread that wait for the parent
LOOP_CUT: Final = f"\n{logs_truncated(LOOP_ROOM)}\n"
METRIC_ROOM: Final = 16 * LOOP_ROOM  # bytes that may wait beside metrics of such a thread, which are never dropped
_STDOUT: Final = LogSource.STDOUT  # the lookup on the enumeration costs 50 ns
Item: TypeAlias = str | bytes | tuple[str, ...] | None
"""Text to cut, pieces that are cut already, or (None) a flush."""
Frame: TypeAlias = bytearray
"""An encoded message of the run that is not text."""


class TextLog(ABC):
    """Takes text from any thread and sends it; the part that records and the service log share."""

    _queue: deque[Any]

    def __init__(self, writer: MessageWriter | None, drop: Callable[[int], None] | None) -> None:
        self.writer = writer
        self._drop = drop  # counts lines that are dropped
        self._cutting = False  # text of an event loop's thread found no room, and there has been none since
        self._turn = TryLock()

    @property
    def full(self) -> bool:
        """The writer has more pending than a producer may leave behind."""
        return self.writer is not None and self.writer.full

    def wait(self) -> None:
        """Block while full; on the main thread a cancel that is due ends it. The gate is disarmed.

        The thread of an event loop goes on, unless very much waits.
        """
        writer = self.writer
        if writer is not None and writer.full and (not gate.on_loop or writer.pending > METRIC_ROOM):
            writer.wait(gate.wake_fd)

    async def wait_room(self) -> None:
        """The same in trio."""
        if self.writer is not None:
            await self.writer.wait_room()

    @abstractmethod
    def post(self, source: LogSource, text: str | bytes) -> None:
        """Take text, never wait. ``bytes`` are UTF-8."""

    def hold(self, source: LogSource, text: str) -> bool:
        """Keep text that may wait for what follows it; return False, with nothing done, for text that is to be sent.

        For any thread, outside of ``gate.runtime()``.
        """
        return False

    def write(self, source: LogSource, text: str | bytes) -> None:
        """Take text, then wait for room. On the main thread: inside ``gate.runtime()``."""
        writer = self.writer
        if writer is not None and (writer.full or len(text) > LOOP_ROOM) and gate.on_loop:
            text = self._fit(writer, text)
            if text:
                self.post(source, text)
            return
        self._cutting = False
        self.post(source, text)
        if writer is not None and writer.full and not gate.on_loop:
            writer.wait(gate.wake_fd)

    def _fit(self, writer: MessageWriter, text: str | bytes) -> str | bytes:
        """Cut a text of an event loop's thread to the room there is; once some was cut, all until the writer has room.

        Return what is left of it, with a mark where it was cut.
        """
        room = 0 if self._cutting else max(LOOP_ROOM - writer.pending, 0)
        if len(text) <= room:
            return text
        lines = text.count("\n", room) if isinstance(text, str) else text.count(b"\n", room)
        if lines and self._drop is not None:
            self._drop(lines)
        if self._cutting:
            return ""
        self._cutting = True
        return text[:room] + LOOP_CUT if isinstance(text, str) else text[:room] + LOOP_CUT.encode()

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
            sleep(0)  # another thread is at it, and never waits for anything
            self.send()

    @abstractmethod
    def _drain(self) -> None: ...


class ServiceLog(TextLog):
    """Text that belongs to no open run, as Log on the control channel: setup, late threads, children of setup."""

    def __init__(self, writer: MessageWriter, drop: Callable[[int], None] | None = None) -> None:
        super().__init__(writer, drop)
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
        if not self._queue and self._turn.free and not self._lines:  # in this order: who has the turn may hold a text
            return
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
    producers wait for. ``ask_late`` has the I/O thread run ``send_late``; without it no line is held back.
    ``service`` takes what comes after ``finish``, and ``has_older`` says whether descriptors hold text, which goes
    before the end of a line: ``Capture.attach`` sets both. ``drop`` counts lines that are dropped.
    """

    def __init__(
        self,
        slot: SlotId,
        id: PredictionId,
        run: int,
        emit: Callable[[LogLine], None],
        writer: MessageWriter | None = None,
        ask_late: Callable[[RunLog], None] | None = None,
        drop: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(writer, drop)
        self._ask_late = ask_late
        self._asked = False  # send_late is running, or will
        self._line_at = 0.0
        self._tokens = TOKENS
        self._items_at = 0.0  # when items were sent last
        self._items_size = 0  # bytes of those that wait since
        self.has_older: Callable[[], bool] | None = None
        self.slot: Final = slot
        self.id: Final = id
        self.run: Final = run
        self.alive = True
        self.service: ServiceLog | None = None
        self._emit = emit
        self._queue: deque[tuple[LogSource | int, Any]] = deque()  # text, frames, ends; by its index: an output
        self._out = LineSplitter()
        self._err = LineSplitter()

    def post(self, source: LogSource, text: str | bytes) -> None:
        self._queue.append((source, text))
        self.send()

    def hold(self, source: LogSource, text: str) -> bool:
        # Every print comes twice through here, so its parts stand in line. What ``finish`` did not see is sent below.
        queue = self._queue
        if len(queue) >= HELD or len(text) >= SHORT or self._cutting:
            return False
        if "\n" in text or "\r" in text:
            if source is not _STDOUT or self._ask_late is None:
                return False
            now = monotonic()
            tokens = self._tokens + (now - self._line_at) * REFILL
            self._line_at = now
            if tokens >= 1:
                self._tokens = (tokens if tokens < TOKENS else TOKENS) - 1
                return False
            self._tokens = tokens
            if self.has_older is not None and self.has_older():
                return False
            if not self._asked:
                self._ask_late(self)
                self._asked = True  # last: a signal handler's exception in between may ask twice, but not never
        queue.append((source, text))
        if not self.alive:
            with gate.runtime():
                self.send()
        return True

    def hold_item(self, index: int, data: bytes) -> bool:
        """Keep an encoded output for those that follow it; False: ``send`` is due, also for those before it."""
        self._queue.append((index, data))
        self._items_size += len(data)
        now = monotonic()
        if now - self._items_at >= ITEMS_GAP or self._items_size >= BATCH or self._ask_late is None:
            self._items_at = now
            self._items_size = 0
            return False
        if not self._asked:
            with gate.runtime():
                self._ask_late(self)
                self._asked = True
        return True

    async def send_late(self) -> None:
        """In the I/O thread: send what a torrent left waiting, until it is over. Cancellation: it waits on."""
        calm = 0
        while calm < 3 and self.alive:
            await trio.sleep(ITEMS_LATE if self._items_size else LATE)
            calm = 0 if self._queue else calm + 1
            now = monotonic()
            if now - self._line_at > QUIET and now - self._items_at > ITEMS_GAP:
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
            if isinstance(source, int):
                self._send_frame(self._batch(source, text))
            elif isinstance(text, bytearray):
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

    def _batch(self, index: int, item: bytes) -> Frame:
        """A frame of an output, with those that wait right behind it."""
        queue = self._queue
        items, size = [item], len(item)
        while queue and isinstance(queue[0][0], int) and size < BATCH:
            _, more = queue.popleft()
            items.append(more)
            size += len(more)
        if len(items) == 1:
            return encode_frame(OutputChunk(msgspec.Raw(item), index))
        return encode_frame(OutputBatch(index, len(items), msgspec.Raw(b"[%b]" % b",".join(items))))

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
