"""Cuts what models print into entries of the log: one a line, and one for a whole traceback.

Text comes in pieces that need not be lines, from several predictions and from setup side by side. A line that a
progress bar has written over is its last state. A traceback is one entry, so that a log platform shows it as
one. The last one of a prediction is kept back until more comes or the prediction ends, since the line about its failure
takes it. All of it is state of one thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_LINE: Final = 2**16  # characters of a line; a longer one is several entries
MAX_TRACE: Final = 2**18  # characters of a traceback that is one entry
TRACEBACK: Final = re.compile(r"[ |+-]*(?:Exception Group )?Traceback \(most recent call last\):$")
BETWEEN: Final = ("The above exception was", "During handling of the above")  # two tracebacks of one error
INSIDE: Final = (" ", "\t", "|", "+")  # how the lines of a traceback begin, but for its last one


class _Stream:
    """What waits of one stream of one prediction."""

    __slots__ = ("line", "size", "trace")

    def __init__(self) -> None:
        self.line = ""  # has not ended yet
        self.trace: list[str] = []  # lines of a traceback that has not ended yet
        self.size = 0  # characters of it


class PrintedLines:
    """All streams of a server; ``id`` is None for text that belongs to no prediction."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str | None, str], _Stream] = {}
        self._traces: dict[str | None, list[str]] = {}  # the last traceback of a prediction, whole

    def feed(self, id: str | None, source: str, data: str) -> Iterator[str]:
        """The entries that are complete with this piece."""
        key = id, source
        stream = self._streams.get(key)
        if stream is None:
            if id not in self._traces and data.find("\n") == len(data) - 1 and not TRACEBACK.match(data[:-1]):
                yield _last_state(data[:-1])  # nearly all text
                return
            stream = self._streams[key] = _Stream()
        *lines, stream.line = (stream.line + data).split("\n")
        for line in lines:
            yield from self._end_line(id, stream, _last_state(line))
        if "\r" in stream.line:
            head, _, rest = stream.line.rpartition("\r")
            stream.line = rest or f"{_last_state(head)}\r"
        if len(stream.line) > MAX_LINE:
            yield from self._end_line(id, stream, _last_state(stream.line))
            stream.line = ""
        if not stream.line and not stream.trace:
            del self._streams[key]

    def _end_line(self, id: str | None, stream: _Stream, line: str) -> Iterator[str]:
        if stream.trace:
            stream.trace.append(line)
            stream.size += len(line)
            if not line.startswith(INSIDE) or stream.size > MAX_TRACE:
                self._traces[id], stream.trace = stream.trace, []
            return
        before = self._traces.get(id, [])
        if before and (not line or line.startswith(BETWEEN)):
            before.append(line)
        elif TRACEBACK.match(line):
            stream.trace, stream.size = [*self._traces.pop(id, []), line], sum(map(len, before)) + len(line)
        else:
            if before:
                yield self.take_trace(id)
            yield line

    def take_trace(self, id: str | None) -> str:
        """The traceback that was the last that was printed, with those that it is the consequence of; empty if there is
        none."""
        return "\n".join(self._traces.pop(id, [])).rstrip("\n")

    def end(self, id: str | None) -> Iterator[tuple[str, str]]:
        """What waits of a prediction, or of the text that belongs to none: source and entry."""
        if trace := self.take_trace(id):
            yield "stderr", trace
        if not self._streams:
            return
        for source in ("stdout", "stderr"):
            stream = self._streams.pop((id, source), None)
            if stream is not None and (rest := [*stream.trace, *([stream.line] if stream.line else [])]):
                yield source, "\n".join(rest)


def _last_state(line: str) -> str:
    """A line as a terminal shows it in the end, where ``\\r`` goes back to its start."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line
