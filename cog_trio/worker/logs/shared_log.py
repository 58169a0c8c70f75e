"""The text of code that works for several runs at once: it goes into the log of each of them, marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cog_trio.bridge.protocol import LogSource
from cog_trio.worker.logs.run_log import RunLog, TextLog

MARK: Final = "[batch] "  # before each line that belongs to several runs


class SharedLog(TextLog):
    """Passes text on to the logs of runs. Runs that have ended get none, unless all have."""

    def __init__(self, logs: Sequence[RunLog]) -> None:
        super().__init__(None, None)
        self._logs: Final = tuple(logs)
        self._fresh = dict.fromkeys(LogSource, True)  # the next character begins a line

    def post(self, source: LogSource, text: str | bytes) -> None:
        marked = self._marked(source, text)
        for log in self._open_logs():
            log.post(source, marked)

    def write(self, source: LogSource, text: str | bytes) -> None:
        marked = self._marked(source, text)
        for log in self._open_logs():
            log.write(source, marked)

    def queue_pieces(self, source: LogSource, pieces: tuple[str, ...]) -> None:
        for log in self._open_logs():
            log.queue_pieces(source, pieces)

    def flush(self, source: LogSource) -> None:
        for log in self._open_logs():
            log.flush(source)

    def send(self) -> None:
        for log in self._open_logs():
            log.send()

    def _drain(self) -> None:
        """Nothing waits here."""

    def _open_logs(self) -> Sequence[RunLog]:
        return [log for log in self._logs if log.alive] or self._logs[:1]

    def _marked(self, source: LogSource, text: str | bytes) -> str:
        text = text if isinstance(text, str) else text.decode(errors="replace")
        fresh, self._fresh[source] = self._fresh[source], text.endswith("\n") if text else self._fresh[source]
        lines = text.splitlines(keepends=True)
        return "".join(line if not fresh and not number else MARK + line for number, line in enumerate(lines))
