"""Text of code that works for several runs, in their logs."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from cog_trio.bridge.protocol import LogLine, LogSource, PredictionId, SlotId
from cog_trio.worker.logs.run_log import RunLog
from cog_trio.worker.logs.shared_log import SharedLog

OUT = LogSource.STDOUT


class _Logs:
    """Two runs, and the log that they share."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}
        self.one, self.two = self._log(1), self._log(2)
        self.batch = SharedLog([self.one, self.two])

    def _log(self, number: int) -> RunLog:
        sent = self.sent[str(number)] = []

        def emit(line: LogLine) -> None:
            sent.append(line.data)

        return RunLog(SlotId(number), PredictionId(f"run{number}"), number, emit)

    def text(self, number: int) -> str:
        return "".join(self.sent[str(number)])


@pytest.mark.parametrize(
    ("texts", "seen"),
    [
        (["a\n"], "[batch] a\n"),
        (["a\nb\n"], "[batch] a\n[batch] b\n"),
        (["a", "b", "\n", "c"], "[batch] ab\n[batch] c\n"),
        ([b"\xc3", b"\xa9\n"], "[batch] \xe9\n"),
        (["1%\r2%\r"], "[batch] 1%\r2%\r\n"),
        (["\n\n"], "[batch] \n[batch] \n"),
        (["a\x0bb\u2028c\n"], "[batch] a\x0bb\u2028c\n"),
        ([], ""),
    ],
)
def test_each_line_is_marked_in_each_log(texts: list[str | bytes], seen: str) -> None:
    logs = _Logs()
    for text in texts:
        logs.batch.write(OUT, text)
        logs.batch.flush(OUT)
    logs.batch.finish()
    assert logs.text(1) == logs.text(2) == seen


def test_a_long_line_is_marked_once() -> None:
    logs = _Logs()
    logs.batch.write(OUT, "x" * 200_000 + "\n")
    assert logs.text(1) == "[batch] " + "x" * 200_000 + "\n"


def test_a_run_keeps_the_line_that_it_has_begun() -> None:
    logs = _Logs()
    logs.one.write(OUT, "my ")
    logs.batch.write(OUT, "ours\n")
    logs.one.write(OUT, "line\n")
    assert logs.text(1) == "[batch] ours\nmy line\n"


def test_a_run_that_has_ended_gets_nothing_more() -> None:
    logs = _Logs()
    logs.one.finish()
    logs.batch.write(OUT, "a\n")
    assert (logs.text(1), logs.text(2)) == ("", "[batch] a\n")


def test_threads_keep_their_lines_whole() -> None:
    logs = _Logs()

    def write(word: str) -> None:
        for _ in range(200):
            logs.batch.write(OUT, f"{word}\n")

    threads = [threading.Thread(target=write, args=(word,)) for word in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logs.batch.finish()
    assert Counter(logs.text(1).splitlines()) == dict.fromkeys(("[batch] one", "[batch] two", "[batch] three"), 200)
    assert logs.text(1) == logs.text(2)


def test_text_after_the_end_is_not_kept() -> None:
    logs = _Logs()
    logs.batch.finish()
    logs.batch.write(OUT, "late")
    assert logs.text(1) == "[batch] late\n"
