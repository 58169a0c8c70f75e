"""The service log: two formats, one line a record, and a stderr that stalls stalls nothing else."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest

from cog_trio.cli import log_output
from cog_trio.cli.log_output import ConsoleFormatter, JsonFormatter, LogHandler
from cog_trio.orchestrator.log_context import WORKER, WorkerLogFilter


def _record(message: str, *, failed: bool = False, **extra: Any) -> logging.LogRecord:
    error = None
    if failed:
        try:
            raise ValueError("boom")
        except ValueError:
            error = sys.exc_info()
    logger = logging.getLogger("cog_trio.test")
    return logger.makeRecord(logger.name, logging.INFO, __file__, 1, message, (), error, extra=extra)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_json_has_the_id_and_every_extra() -> None:
    fields = json.loads(JsonFormatter().format(_record("done", id="a", urls=["http://x"])))
    assert fields["timestamp"].endswith("Z")
    assert fields | {"timestamp": ""} == {
        "timestamp": "",
        "level": "INFO",
        "target": "cog_trio.test",
        "message": "done",
        "prediction_id": "a",
        "urls": ["http://x"],
    }


def test_a_line_has_the_number_of_the_worker_that_it_is_about() -> None:
    record, context = _record("setup failed"), copy_context()
    context.run(WORKER.set, 1)
    assert context.run(WorkerLogFilter().filter, record)
    assert json.loads(JsonFormatter().format(record))["worker"] == 1
    assert ConsoleFormatter().format(record).endswith("setup failed worker=1")
    other = _record("Listening")
    assert WorkerLogFilter().filter(other)
    assert "worker" not in json.loads(JsonFormatter().format(other))


@pytest.mark.covers("D9")
@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter()])
@pytest.mark.parametrize(
    "text", ["two\nlines", "carriage\rreturn", "escape\x1b[31m", "next\x85line", "zero\0", "li\u2028ne", "\u202etxt"]
)
def test_D9_no_text_starts_a_line_of_its_own(formatter: logging.Formatter, text: str) -> None:
    line = formatter.format(_record(f"before {text} after", id=text))
    assert len(line.splitlines()) == 1
    assert all(character.isprintable() for character in line)


@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter()])
def test_traceback_is_kept(formatter: logging.Formatter) -> None:
    text = formatter.format(_record("failed", failed=True))
    assert "Traceback" in text
    assert "ValueError: boom" in text


def test_console_names_the_id_behind_the_text() -> None:
    assert ConsoleFormatter().format(_record("done", id="a b")).endswith("info    done id=a b")


def test_console_leaves_lists_to_json() -> None:
    assert ConsoleFormatter().format(_record("done", urls=["http://x"], id="a")).endswith("info    done id=a")


class Plain(JsonFormatter):
    """Messages alone."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage()


def test_writer_writes_all_in_order(pipe: tuple[int, int]) -> None:
    writer = LogHandler(pipe[1], Plain())
    for number in range(100):
        writer.emit(_record(str(number)))
    writer.finish(10)
    assert os.read(pipe[0], 65536).decode().split() == [str(number) for number in range(100)]


def test_stalled_reader_stalls_nobody_and_is_told_how_much_it_missed(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "MAX_WAITING", 200_000)
    writer = LogHandler(pipe[1], Plain())
    for _ in range(1000):
        writer.emit(_record("x" * 999))  # five times what may wait; nobody reads yet
    text, written, dropped = b"", 0, 0
    while written + dropped < 1000:  # each line is written, or counted in one of the notes
        text += os.read(pipe[0], 65536)
        lines = text.decode().split("\n")[:-1]
        notes = [line for line in lines if line.endswith(" log lines were dropped: stderr is too slow")]
        written = lines.count("x" * 999)
        dropped = sum(int(note.split()[0]) for note in notes)
    writer.finish(10)
    assert written + dropped == 1000
    assert writer.dropped == dropped
    assert written + len(notes) == len(lines)
    assert dropped >= 500


def test_reader_that_is_gone_ends_the_writer_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LogHandler(write, Plain())
    writer.emit(_record("nobody"))
    writer.finish(10)
    assert not writer._writer.waiting
    os.close(write)


def test_open_log_gives_logging_back_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    before = (logging.getLogger().level, list(logging.getLogger().handlers))
    with log_output.open_log("info", "json"):
        logging.getLogger("cog_trio.x").info("ours")
        logging.getLogger("cog_trio.x").debug("too fine")
        logging.getLogger("httpx").info("somebody else's")
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before
    said = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    assert said == ["ours"]


def _lines(pipe: tuple[int, int], handler: LogHandler) -> list[str]:
    handler.finish(10)
    return os.read(pipe[0], 2**16).decode().splitlines()


def test_printed_lines_name_their_prediction_and_source(pipe: tuple[int, int]) -> None:
    handler = LogHandler(pipe[1], JsonFormatter())
    handler.printed("a", "stdout", 'he said "hi"\x1b[31m\n')
    (line,) = _lines(pipe, handler)
    fields = json.loads(line)
    assert fields.pop("timestamp").endswith("Z")
    assert fields == {
        "level": "INFO",
        "target": "cog_trio.user",
        "message": 'he said "hi"\x1b[31m',
        "prediction_id": "a",
        "source": "stdout",
    }
    assert line.isprintable()
    line = ConsoleFormatter().printed(0.0, "a b", "stderr", "red \x1b[31m")
    assert line.endswith("info    red \\x1b[31m id=a b source=stderr")


@pytest.mark.parametrize("traces", [True, False])
def test_the_end_of_a_failed_prediction_takes_its_traceback(traces: bool, pipe: tuple[int, int]) -> None:
    handler = LogHandler(pipe[1], JsonFormatter(), traces=traces)
    trace = "Traceback (most recent call last):\n  File x\nValueError: boom\n"
    end = {"outcome": "failed", "id": "a"}
    handler.printed("a", "stderr", trace)
    handler.printed("b", "stderr", trace)
    handler.emit(logging.makeLogRecord({"name": "cog_trio.prediction", "msg": "failed", **end}))
    handler.emit(logging.makeLogRecord({"name": "cog_trio.prediction", "msg": "ok", "outcome": "succeeded", "id": "b"}))
    failed, printed, succeeded = map(json.loads, _lines(pipe, handler))
    assert (failed["message"], failed.get("exception")) == ("failed", trace.rstrip() if traces else None)
    assert (printed["message"], printed["prediction_id"]) == (trace.rstrip(), "b"), "it has caught the error itself"
    assert succeeded["message"] == "ok"


def test_what_setup_prints_passes_at_every_level_and_predictions_from_info_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    user = logging.getLogger("cog_trio.user")
    for level, expected in (("error", ["setup"]), ("info", ["setup", "background"])):
        with log_output.open_log(level, "json"):
            user.info("setup", extra={"setup": True, "source": "stdout"})
            user.info("background", extra={"source": "stdout"})
        assert [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()] == expected
    with log_output.open_log("info", "json", predictions=False):
        user.info("background", extra={"source": "stdout"})
    assert capfd.readouterr().err == ""


def test_a_setup_traceback_is_one_record_before_what_is_said_about_it(capfd: pytest.CaptureFixture[str]) -> None:
    user = logging.getLogger("cog_trio.user")
    trace = ["Traceback (most recent call last):", "  File x", "ValueError: boom"]
    with log_output.open_log("error", "json"):
        for line in trace:
            user.info(line, extra={"setup": True, "source": "stderr"})
        logging.getLogger("cog_trio.service").error("setup failed")
    first, second = map(json.loads, capfd.readouterr().err.splitlines())
    assert (first["message"], first["source"]) == ("\n".join(trace), "stderr")
    assert second["message"] == "setup failed"


def test_levels_have_colours_where_they_are_wanted() -> None:
    record = _record("x")
    assert "\x1b[32minfo   \x1b[0m x" in ConsoleFormatter(colour=True).format(record)
    assert "\x1b" not in ConsoleFormatter().format(record)
