"""The server's own log: JSON lines for machines, console lines for people, on stderr.

Modules log through ``logging.getLogger(__name__)``. What belongs to one prediction says so by
``extra={"id": prediction_id}``: JSON has it as ``prediction_id``, the console shows it behind the text. Any other
``extra`` is a field too; lists and mappings are for machines, so JSON alone has them. With several workers, lines about
one of them have its number as ``worker``. Control characters are escaped in both formats, so no id and no text of a
user can start a line of its own, or be shown as another.

Text of the model comes from two places: what belongs to no run through the logger ``cog_trio.user``, what a prediction
prints through ``LogHandler.printed``, once for each of many thousand lines. Both are cut into lines by
``printed_lines.py``, in the thread.

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

from cog_trio.cli.printed_lines import TRACEBACK, PrintedLines
from cog_trio.cli.stream_writer import StreamWriter
from cog_trio.orchestrator.log_context import WorkerLogFilter

MAX_WAITING: Final = 8 * 2**20  # bytes of lines that stderr has not taken yet
OVERHEAD: Final = 512  # bytes that a line counts for beside its text: its record, and the fields around it
PAUSE: Final = 0.005  # seconds for which lines are gathered into one write
LAST_WORDS: Final = 5.0  # seconds that the lines still waiting get at the end
PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "setup"}
USER: Final = "cog_trio.user"  # the logger of the model's text; ``setup`` marks what setup prints
ACCESS: Final = "cog_trio.access"
PREDICTIONS: Final = "cog_trio.prediction"  # the logger of their starts and ends; ``outcome`` marks an end
COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}
UNUSED: Final = ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks", "_srcfile")
"""What ``logging`` looks up for each record unless told not to (its how-to, "Optimization"); no format shows it."""
_encode: Final = json.JSONEncoder(default=str).encode
_text: Final = json.encoder.encode_basestring_ascii
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
            "timestamp": _timestamp(record.created),
            "level": record.levelname,
            "target": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if "id" in fields and record.name != ACCESS:
            fields["prediction_id"] = fields.pop("id")
        if trace := _trace(record):
            fields["exception"] = trace
        return _encode(fields)

    def printed(self, created: float, id: str, source: str, text: str) -> str:
        """One line that a prediction has printed."""
        return (
            f'{{"timestamp": "{_timestamp(created)}", "level": "INFO", "target": "{USER}", "message": {_text(text)}, '
            f'"prediction_id": {_text(id)}, "source": "{source}"}}'
        )


class ConsoleFormatter(logging.Formatter):
    """Time of day, level, message, then what ``extra`` gave; a traceback follows on lines of its own."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record.created, record.levelname, record.getMessage())
        if record.name != ACCESS:  # its message has all of them
            line += "".join(
                f" {name}={str(value).translate(ESCAPES)}"
                for name, value in extras(record).items()
                if not isinstance(value, (list, dict))
            )
        if trace := _trace(record):
            line += f"\n{_shown(trace)}"
        return line

    def printed(self, created: float, id: str, source: str, text: str) -> str:
        """One line that a prediction has printed."""
        return self._line(created, "INFO", text) + f" id={id.translate(ESCAPES)} source={source}"

    def _line(self, created: float, level: str, text: str) -> str:
        word = f"{level.lower():7}"
        if self._colour:
            word = f"\x1b[{COLOURS.get(level, '0')}m{word}\x1b[0m"
        return f"{time.strftime('%H:%M:%S', time.localtime(created))} {word} {_shown(text)}"


class LogHandler(logging.Handler):
    """Queues lines for the thread that renders and writes them; never blocks, never raises.

    Args:
      predictions: what predictions print is part of the log; what setup prints always is.
      traces: the end of a prediction that has failed has its traceback.
    """

    def __init__(
        self,
        descriptor: int,
        formatter: JsonFormatter | ConsoleFormatter,
        *,
        predictions: bool = True,
        traces: bool = True,
    ) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.dropped = 0  # lines, in all
        self._lines = formatter
        self._predictions = predictions
        self._traces = traces
        self._printed = PrintedLines()  # used by the thread alone
        self._descriptor = descriptor
        self._untold = 0  # lines that were dropped since the last line that said so
        self._writer = StreamWriter(self._tell_dropped, pause=PAUSE)
        self._writer.start()

    def printed(self, id: str, source: str, data: str) -> None:
        """Queue text that a prediction has printed; it need not be whole lines."""
        self._queue(partial(self._render_printed, time.time(), id, source, data), len(data) + OVERHEAD)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == USER and not self._predictions and not hasattr(record, "setup"):
            return
        record.msg, record.args = record.getMessage(), None  # what it was made of may change before it is rendered
        size = len(record.msg) + OVERHEAD
        if record.exc_info:  # it keeps frames alive, and all that is in them
            record = copy.copy(record)
            record.exc_text, record.exc_info = _trace(record), None
            size += len(record.exc_text)
        self._queue(partial(self._render, record), size)

    def _queue(self, render: Callable[[], bytes], size: int) -> None:
        if self._untold or self._writer.waiting + size > MAX_WAITING:
            self._untold += 1
            self.dropped += 1
            return
        self._writer.write(self._descriptor, render, size)

    # In the thread.

    def _render(self, record: logging.LogRecord) -> bytes:
        try:
            return "".join(f"{line}\n" for line in self._rendered(record)).encode(errors="backslashreplace")
        except Exception as error:  # noqa: BLE001 (a line that can't be rendered must not end the log)
            return f"a log line of {record.name} can't be rendered: {error!r}\n".encode(errors="backslashreplace")

    def _rendered(self, record: logging.LogRecord) -> Iterator[str]:
        if record.name == USER:
            source = getattr(record, "source", "")
            for text in self._printed.feed(None, source, record.msg + "\n"):
                record.msg = text
                yield self.format(record)
            return
        for source, text in self._printed.end(None):  # a traceback of setup, before what is said about it
            fields = {"name": USER, "levelname": "INFO", "created": record.created, "msg": text, "source": source}
            yield self.format(logging.makeLogRecord(fields))
        if record.name == PREDICTIONS and hasattr(record, "outcome"):
            id = str(getattr(record, "id", ""))
            trace = self._printed.take_trace(id) if record.outcome == "failed" else ""
            for source, text in self._printed.end(id):
                yield self._lines.printed(record.created, id, source, text)
            if self._traces:
                record.exc_text = trace
        yield self.format(record)

    def _render_printed(self, created: float, id: str, source: str, data: str) -> bytes:
        lines = (self._lines.printed(created, id, source, text) for text in self._printed.feed(id, source, data))
        return "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")

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
def open_log(
    level: str, style: Literal["console", "json"], *, colour: bool = False, predictions: bool = True
) -> Iterator[LogHandler]:
    """Route all logging of the process to stderr while this is open; other packages only from warnings up.

    What setup prints passes at every level. ``predictions``: so does, from info on, what predictions print.
    """
    informs = level in ("debug", "info")
    handler = LogHandler(
        sys.stderr.fileno(),
        JsonFormatter() if style == "json" else ConsoleFormatter(colour=colour),
        predictions=predictions and informs,
        traces=style == "console" or level == "debug",
    )
    handler.addFilter(WorkerLogFilter())
    root, ours, user = logging.getLogger(), logging.getLogger("cog_trio"), logging.getLogger(USER)
    before = root.level, ours.level, user.level
    looked_up = {name: getattr(logging, name) for name in UNUSED if hasattr(logging, name)}
    for name in looked_up:
        setattr(logging, name, None)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    ours.setLevel(level.upper())
    user.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield handler
    finally:
        logging.captureWarnings(False)
        for name, value in looked_up.items():
            setattr(logging, name, value)
        for logger, was in zip((root, ours, user), before, strict=True):
            logger.setLevel(was)
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


def _shown(text: str) -> str:
    """Text for people: one line, unless it is a traceback, whose lines are lines of their own."""
    if "\n" in text and TRACEBACK.match(text.partition("\n")[0]):
        return "\n".join(line.translate(ESCAPES) for line in text.split("\n"))
    return text.translate(ESCAPES)


def _timestamp(created: float) -> str:
    return f"{_second(int(created))}.{int(created % 1 * 1_000_000):06d}Z"


@lru_cache(maxsize=2)
def _second(time_stamp: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_stamp))
