"""The server's own log: JSON lines for machines, console lines for people, on stderr.

Modules log through ``logging.getLogger(__name__)``. What belongs to one prediction says so by
``extra={"id": prediction_id}``, which is a field of its own in JSON and stands behind the text on the console;
any other ``extra`` is shown the same way, but lists are for machines: JSON alone has them. With several workers,
lines about one of them have its number as ``worker``. Control characters are
escaped in both formats, so no id and no text of a user can start a line of its own, or be shown as another.

A log reader that stalls must never stall predictions, and a write to stderr can block. So a line is written at
once only if stderr says that it has room for it; otherwise it waits for a thread that may block, and later lines
wait behind it. What waits is bounded in bytes; beyond that lines are dropped, and the number of them is told as
soon as there is room. ``open_log`` owns the thread and ends it, with a deadline.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Literal

from cog_trio.orchestrator.log_context import WorkerLogFilter

MAX_WAITING: Final = 8 * 2**20  # bytes of lines that stderr has not taken yet
LAST_WORDS: Final = 2.0  # seconds that the lines still waiting get at the end
PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
UNUSED: Final = ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks", "_srcfile")
"""What ``logging`` looks up for each record unless told not to (its how-to, "Optimization"); no format shows it."""
_encode: Final = json.JSONEncoder(default=str).encode
_TURNS: Final = (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))  # end lines, turn their order
ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    **{code: f"\\u{code:04x}" for code in _TURNS},
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\t",
}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: timestamp, level, target, message, then what ``extra`` gave."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "timestamp": _timestamp(record),
            "level": record.levelname,
            "target": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields)


class ConsoleFormatter(logging.Formatter):
    """Time of day, level, message, then what ``extra`` gave; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {record.getMessage().translate(ESCAPES)}"
        line += "".join(
            f" {name}={str(value).translate(ESCAPES)}"
            for name, value in extras(record).items()
            if not isinstance(value, list)
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class LogWriter(logging.Handler):
    """Writes lines, or hands them to a thread when that would block; never raises."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._lines: deque[bytes] = deque()
        self._waiting = 0  # bytes
        self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="cog_trio log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if not self._waiting and not self._dropped and len(line) <= select.PIPE_BUF:
                line = line[self._write_now(line) :]
            if not line:
                return
            if self._waiting + len(line) > MAX_WAITING:
                self._dropped += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._changed.notify()

    def _write_now(self, line: bytes) -> int:
        """How much of the line was taken; a pipe that has room takes ``PIPE_BUF`` bytes without blocking."""
        if [events for _, events in self._room.poll(0)] != [select.POLLOUT]:
            return 0
        try:
            return os.write(self._descriptor, line)
        except OSError:  # the thread finds out what it is
            return 0

    def finish(self, seconds: float) -> None:
        """Write what waits, for at most that long. Later lines are lost."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _write(self) -> None:
        while (chunk := self._take()) is not None:
            view = memoryview(chunk)
            while view:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:  # somebody made the descriptor non-blocking, for all who share it
                    time.sleep(0.01)
                except OSError:  # nobody reads any more: from here on there is nobody to tell
                    return
            with self._changed:
                self._waiting -= len(chunk)

    def _take(self) -> bytes | None:
        with self._changed:
            while not self._lines and not self._dropped:
                if self._closing:
                    return None
                self._changed.wait()
            chunk = b"".join(self._lines)
            self._lines.clear()
            dropped, self._dropped = self._dropped, 0
            if dropped:
                note = logging.makeLogRecord({"name": __name__, "levelno": 30, "levelname": "WARNING"})
                note.msg = f"{dropped} log lines were dropped: stderr is too slow"
                told = self.format(note).encode() + b"\n"
                chunk += told
                self._waiting += len(told)
            return chunk


@contextmanager
def open_log(level: str, style: Literal["console", "json"]) -> Iterator[None]:
    """Route all logging of the process to stderr while this is open; other packages only from warnings up."""
    writer = LogWriter(sys.stderr.fileno())
    writer.setFormatter(JsonFormatter() if style == "json" else ConsoleFormatter())
    writer.addFilter(WorkerLogFilter())
    root, ours = logging.getLogger(), logging.getLogger("cog_trio")
    before = root.level, ours.level
    looked_up = {name: getattr(logging, name) for name in UNUSED if hasattr(logging, name)}
    for name in looked_up:
        setattr(logging, name, None)
    root.addHandler(writer)
    root.setLevel(logging.WARNING)
    ours.setLevel(level.upper())
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for name, value in looked_up.items():
            setattr(logging, name, value)
        root.setLevel(before[0])
        ours.setLevel(before[1])
        root.removeHandler(writer)
        writer.finish(LAST_WORDS)


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave by ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in PLAIN}


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.created % 1 * 1_000_000):06d}Z"


@lru_cache(maxsize=2)
def _second(time_stamp: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_stamp))
