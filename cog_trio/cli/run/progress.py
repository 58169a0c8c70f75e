"""The moving line of a terminal: what is waited for, for how long, and how much of a download is there.

With rich (the extra ``cli``) it spins; without it each thing that is waited for is said once, on a line of its own.
Only a terminal gets either. rich is imported here, when the line is made: after the worker was spawned.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress


class ProgressLine(Protocol):
    """What the console asks of it. Only ``draw`` and ``hide`` write, from the console's own task."""

    def phase(self, text: str) -> None: ...
    def amount(self, fetched: tuple[int, int | None] | None, text: str) -> None: ...
    def draw(self) -> None: ...
    def hide(self) -> None: ...


def open_progress_line(*, colour: bool) -> ProgressLine | None:
    """Return a progress line for stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return PlainProgressLine()
    console = Console(file=sys.stderr, no_color=not colour)
    return PlainProgressLine() if console.is_dumb_terminal else RichProgressLine(console)


class RichProgressLine:
    """A spinner; a bar while an amount is known."""

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._text = ""
        self._amount: tuple[int, int | None] | None = None
        self._counted = ""  # what the amount is of
        self._shown: Progress | None = None
        self._what: tuple[str, bool] = ("", False)  # that is shown: a text, with or without an amount
        self._since = 0.0

    def phase(self, text: str) -> None:
        self._text, self._amount = text, None
        self._since = time.monotonic()

    def amount(self, fetched: tuple[int, int | None] | None, text: str) -> None:
        self._amount, self._counted = fetched, text

    def draw(self) -> None:
        what = self._text if self._amount is None else self._counted, self._amount is not None
        if self._shown is not None and self._what != what:
            self.hide()
        if not self._text:
            return
        if self._shown is None:
            self._shown, self._what = self._make(what[0]), what
            self._shown.start()
        done, total = self._amount or (0, None)
        self._shown.update(self._shown.task_ids[0], completed=done, total=total, seconds=self._seconds())
        self._shown.refresh()

    def hide(self) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def _make(self, text: str) -> Progress:
        from rich import progress

        columns: list[progress.ProgressColumn] = [
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}", markup=False),
        ]
        if self._amount is not None:
            columns += [progress.BarColumn(bar_width=30), progress.DownloadColumn(binary_units=True)]
        columns.append(progress.TextColumn("{task.fields[seconds]}", style="progress.elapsed"))
        made = progress.Progress(
            *columns,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        made.add_task(text, total=None, seconds=self._seconds())
        return made

    def _seconds(self) -> str:
        """How long this has been waited for; the spinner is made again whenever text came between."""
        minutes, seconds = divmod(int(time.monotonic() - self._since), 60)
        return f"{minutes}:{seconds:02}"


class PlainProgressLine:
    """One line for each thing that is waited for."""

    def __init__(self) -> None:
        self._text = ""
        self._told: set[str] = set()

    def phase(self, text: str) -> None:
        self._text = text

    def amount(self, fetched: tuple[int, int | None] | None, text: str) -> None:
        """Said once, as the rest."""
        if fetched is not None and text not in self._told:
            self._told.add(text)
            self._text = text

    def draw(self) -> None:
        if self._text:
            print(f"{self._text} …", file=sys.stderr, flush=True)
            self._text = ""

    def hide(self) -> None:
        """A line that stands there stays."""
