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
        "id": "a",
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


def test_writer_writes_all_in_order(pipe: tuple[int, int]) -> None:
    writer = LogHandler(pipe[1])
    writer.setFormatter(logging.Formatter("%(message)s"))
    for number in range(100):
        writer.emit(_record(str(number)))
    writer.finish(10)
    assert os.read(pipe[0], 65536).decode().split() == [str(number) for number in range(100)]


def test_stalled_reader_stalls_nobody_and_is_told_how_much_it_missed(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "MAX_WAITING", 200_000)
    counted: list[int] = []
    writer = LogHandler(pipe[1], counted.append)
    writer.setFormatter(logging.Formatter("%(message)s"))
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
    assert sum(counted) == dropped
    assert written + len(notes) == len(lines)
    assert dropped >= 500


def test_reader_that_is_gone_ends_the_writer_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    writer = LogHandler(write)
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
