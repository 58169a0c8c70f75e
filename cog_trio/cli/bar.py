"""The moving line of a terminal: what is waited for, for how long, and how much of a download is there.

With rich (the extra ``cli``) it spins; without it each thing that is waited for is said once, on a line of its own.
Only a terminal gets either. rich is imported here, when a bar is made: after the worker was spawned.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar(Protocol):
    """What the console asks of it. All of it runs in the console's task, but for ``phase`` and ``amount``."""

    def phase(self, text: str) -> None: ...
    def amount(self, done: int, total: int | None) -> None: ...
    def draw(self) -> None: ...
    def hide(self) -> None: ...


def open_bar(*, colour: bool) -> Bar | None:
    """A bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return PlainBar()
    console = Console(file=sys.stderr, no_color=not colour)
    return PlainBar() if console.is_dumb_terminal else RichBar(console)


class RichBar:
    """A spinner; a bar while an amount is known."""

    def __init__(self, console: object) -> None:
        from rich import progress

        self._columns = progress
        self._console = console
        self._progress: Progress | None = None
        self._text = ""
        self._amount: tuple[int, int | None] | None = None
        self._shown = False

    def phase(self, text: str) -> None:
        self.hide()
        self._text, self._amount = text, None
        self._make()

    def amount(self, done: int, total: int | None) -> None:
        if self._amount is None:
            self.hide()
            self._amount = done, total
            self._make()
        elif self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def _make(self) -> None:
        kind = self._columns
        columns = [kind.SpinnerColumn(), kind.TextColumn("{task.description}", markup=False)]
        if self._amount is not None:
            columns += [kind.BarColumn(bar_width=30), kind.DownloadColumn()]
        columns.append(kind.TimeElapsedColumn())
        self._progress = kind.Progress(
            *columns,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        done, total = self._amount or (0, None)
        self._progress.add_task(self._text, completed=done, total=total)

    def draw(self) -> None:
        if self._progress is None or not self._text:
            return
        if not self._shown:
            self._progress.start()
            self._shown = True
        self._progress.refresh()

    def hide(self) -> None:
        if self._progress is not None and self._shown:
            self._progress.stop()
            self._shown = False


class PlainBar:
    """One line for each thing that is waited for."""

    def __init__(self) -> None:
        self._text = ""

    def phase(self, text: str) -> None:
        self._text = text

    def amount(self, done: int, total: int | None) -> None:
        """Said by its phase alone."""

    def draw(self) -> None:
        if self._text:
            print(f"{self._text} …", file=sys.stderr, flush=True)
            self._text = ""

    def hide(self) -> None:
        """A line that stands there stays."""
