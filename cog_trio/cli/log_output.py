"""The server's own log: JSON lines for machines, console lines for people, on stderr.

Modules log through ``logging.getLogger(__name__)``. What belongs to one prediction says so by
``extra={"id": prediction_id}``, which is a field of its own in JSON and stands behind the text on the console;
any other ``extra`` is shown the same way, but lists are for machines: JSON alone has them. With several workers,
lines about one of them have its number as ``worker``. Control characters are
escaped in both formats, so no id and no text of a user can start a line of its own, or be shown as another.

A log reader that stalls must never stall predictions, and a write to stderr can block. So a line is queued, and a
thread renders and writes it (``stream_writer.py``): the event loop spends only the time that the queue takes. The
queue is bounded; beyond its bound lines are dropped and counted, and one line says how many as soon as there is room.
``open_log`` owns the thread, and at the end gives it some seconds to write what is left.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final, Literal

from cog_trio.cli.stream_writer import StreamWriter
from cog_trio.orchestrator.log_context import WorkerLogFilter

MAX_WAITING: Final = 8 * 2**20  # bytes of lines that stderr has not taken yet
OVERHEAD: Final = 512  # bytes that a line counts for beside its text: its record, and the fields around it
PAUSE: Final = 0.005  # seconds for which lines are gathered into one write
LAST_WORDS: Final = 5.0  # seconds that the lines still waiting get at the end
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
        if trace := _trace(record):
            fields["exception"] = trace
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
        if trace := _trace(record):
            line += f"\n{trace}"
        return line


class LogHandler(logging.Handler):
    """Queues lines for the thread that renders and writes them; never blocks, never raises.

    ``on_dropped`` is called with the number of lines each time that some are dropped, in the thread that logs.
    """

    def __init__(self, descriptor: int, on_dropped: Callable[[int], None] = lambda count: None) -> None:
        super().__init__()
        self.on_dropped = on_dropped
        self._descriptor = descriptor
        self._untold = 0  # lines that were dropped since the last line that said so
        self._writer = StreamWriter(self._tell_dropped, pause=PAUSE)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None  # what it was made of may change before it is rendered
        size = len(record.msg) + OVERHEAD
        if record.exc_info:  # it keeps frames alive, and all that is in them
            record = copy.copy(record)
            record.exc_text, record.exc_info = _trace(record), None
            size += len(record.exc_text)
        if self._untold or self._writer.waiting + size > MAX_WAITING:
            self._untold += 1
            self.on_dropped(1)
            return
        self._writer.write(self._descriptor, partial(self._render, record), size)

    def _render(self, record: logging.LogRecord) -> bytes:
        try:
            return self.format(record).encode(errors="backslashreplace") + b"\n"
        except Exception as error:  # noqa: BLE001 (a line that can't be rendered must not end the log)
            return f"a log line of {record.name} can't be rendered: {error!r}\n".encode(errors="backslashreplace")

    def _tell_dropped(self) -> None:
        """Called by the thread: once the reader is back, say in one line how much it has missed."""
        if not self._untold or self._writer.waiting > MAX_WAITING // 2:
            return
        self.acquire()
        try:
            note = logging.makeLogRecord({"name": __name__, "levelno": 30, "levelname": "WARNING"})
            note.msg = f"{self._untold} log lines were dropped: stderr is too slow"
            self._untold = 0
            self._writer.write(self._descriptor, partial(self._render, note), len(note.msg) + OVERHEAD)
        finally:
            self.release()

    def finish(self, seconds: float) -> None:
        """Write what waits, for at most that long. Later lines are lost."""
        self._writer.close(seconds)


@contextmanager
def open_log(level: str, style: Literal["console", "json"]) -> Iterator[None]:
    """Route all logging of the process to stderr while this is open; other packages only from warnings up."""
    handler = LogHandler(sys.stderr.fileno())
    handler.setFormatter(JsonFormatter() if style == "json" else ConsoleFormatter())
    handler.addFilter(WorkerLogFilter())
    root, ours = logging.getLogger(), logging.getLogger("cog_trio")
    before = root.level, ours.level
    looked_up = {name: getattr(logging, name) for name in UNUSED if hasattr(logging, name)}
    for name in looked_up:
        setattr(logging, name, None)
    root.addHandler(handler)
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
        root.removeHandler(handler)
        handler.finish(LAST_WORDS)


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave by ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in PLAIN}


def _trace(record: logging.LogRecord) -> str:
    """The traceback as text; empty if there is none."""
    if record.exc_info and not record.exc_text:
        return logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.created % 1 * 1_000_000):06d}Z"


@lru_cache(maxsize=2)
def _second(time_stamp: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_stamp))
