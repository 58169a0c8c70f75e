"""The text of code that works for several runs at once: it goes into the log of each of them, marked.

A line is passed on when it is whole, beside the line that a run has begun itself. Whoever has made the log calls
``finish`` when that code has ended; what a thread that it has left behind writes later is passed on at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import sleep
from typing import Any, Final

from cog_trio.bridge.protocol import LogSource
from cog_trio.worker.logs.line_splitter import LineSplitter
from cog_trio.worker.logs.run_log import RunLog, TextLog

MARK: Final = "[batch] "  # before each line that belongs to several runs


class SharedLog(TextLog):
    """Passes lines on to the logs of runs. Runs that have ended get none, unless all have."""

    def __init__(self, logs: Sequence[RunLog]) -> None:
        super().__init__(None, None)
        self._logs: Final = tuple(logs)
        self._queue: deque[tuple[LogSource, Any]] = deque()  # text, pieces that are cut already, None: the end
        self._lines: Final = {source: LineSplitter() for source in LogSource}
        self._inside: Final = dict.fromkeys(LogSource, False)  # a part of the present line has been passed on
        self._finished = False

    def wait(self) -> None:
        for log in self._open_logs():
            log.wait()

    async def wait_room(self) -> None:
        for log in self._open_logs():
            await log.wait_room()

    def write(self, source: LogSource, text: str | bytes) -> None:
        self.post(source, text)
        self.wait()

    def post(self, source: LogSource, text: str | bytes) -> None:
        self._queue.append((source, text))
        self.send()

    def queue_pieces(self, source: LogSource, pieces: tuple[str, ...]) -> None:
        self._queue.append((source, pieces))

    def flush(self, source: LogSource) -> None:
        """Pass on whole lines; one that is not whole goes on waiting, since the runs print in between."""
        self.send()

    def finish(self) -> None:
        """Pass on the lines that have no end either, and end them."""
        self._finished = True
        self._queue.extend((source, None) for source in LogSource)
        while (self._queue or not self._turn.free) and not self._turn.mine:
            self.send()
            sleep(0)  # another thread may be at it, and never waits for anything

    def _drain(self) -> None:
        while self._queue:
            source, text = self._queue.popleft()
            pieces = self._cut(source, text)
            if pieces:
                marked = tuple(self._marked(source, piece) for piece in pieces)
                for log in self._open_logs():
                    log.queue_pieces(source, marked)
                    log.send()

    def _cut(self, source: LogSource, text: str | bytes | tuple[str, ...] | None) -> list[str]:
        lines = self._lines[source]
        pieces: list[str] = []
        if isinstance(text, tuple):
            pieces += text
        elif text is not None:
            pieces += lines.feed(text) if isinstance(text, str) else lines.feed_bytes(text)
        if self._finished:  # nothing would end the line
            pieces += lines.finish()
            unended = not pieces[-1].endswith("\n") if pieces else self._inside[source]
            if unended:
                pieces.append("\n")
        return pieces

    def _open_logs(self) -> Sequence[RunLog]:
        return [log for log in self._logs if log.alive] or self._logs[:1]

    def _marked(self, source: LogSource, piece: str) -> str:
        ends = piece.endswith("\n")
        text = (piece[:-1] if ends else piece).replace("\n", "\n" + MARK) + ("\n" if ends else "")
        begins, self._inside[source] = not self._inside[source], not ends
        return MARK + text if begins else text
