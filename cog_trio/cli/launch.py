"""What the commands that need a worker, and the container entry, do alike: spawn it, then import the rest.

The worker is spawned before trio, Hypercorn and the service are imported (D46), so both sides start up side by
side. Signals that come in that time are noted, and obeyed as soon as the event loop runs; leaving before that kills
the worker and reaps it. Once all is done nothing is left to obey: a late signal is ignored, so that the exit code
stands.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from cog_trio.cli.options import USAGE, fail
from cog_trio.settings import Settings, worker_variables
from cog_trio.spawn import spawn

if TYPE_CHECKING:
    from cog_trio.cli.ask import Ask


@dataclass(frozen=True)
class Launch:
    """Everything that is known before the event loop starts."""

    name: str  # of the program, before its error lines
    settings: Settings
    folder: str  # where the worker starts
    predict: str | None
    train: str | None
    environment: dict[str, str]  # of the worker, over ours
    warnings: tuple[str, ...] = ()
    terminal: bool = False  # somebody looks at it: show the first screen
    again: Callable[[], Launch] | None = None  # the same, with cog.yaml read anew


def launch(plan: Launch) -> int:
    """Serve until a signal or ``POST /shutdown``; the exit code."""
    if plan.settings.certfile is not None and plan.settings.keyfile is not None:
        from cog_trio.certificate import BadCertificate, make_context

        try:  # before anything is started; the server takes them again
            make_context(plan.settings.certfile, plan.settings.keyfile)
        except BadCertificate as error:
            return fail(plan.name, str(error), USAGE)
    if plan.settings.reload:
        from cog_trio.cli.watch import obstacle

        if (why := obstacle(plan.settings)) is not None:
            return fail(plan.name, why, USAGE)
    with noted_signals() as early, spawn(plan.folder, _variables(plan)) as process:
        from cog_trio.cli.program import serve

        return serve(plan, process, early)


def perform(plan: Launch, ask: Ask) -> int:
    """Run one prediction or training here; the exit code."""
    with noted_signals() as early, spawn(plan.folder, _variables(plan)) as process:
        from cog_trio.cli.local import run_here

        return run_here(plan, process, early, ask)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that ask for our end: Ctrl-C, a supervisor, and a terminal that is closed, unless ``nohup`` says not."""
    hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """The signals that come before an event loop runs. Once the block is left, late ones are ignored."""
    early: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        early.append(number)

    numbers = ending_signals()
    for number in numbers:
        signal.signal(number, note)
    yield early
    for number in numbers:  # the interpreter, as it ends, would let one more kill us
        signal.signal(number, signal.SIG_IGN)


def describe(plan: Launch) -> int:
    """Print the model's document; the exit code. A signal ends us at once, and our guardian the worker."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with spawn(plan.folder, _variables(plan)) as process:
        from cog_trio.cli.document import print_schema

        return print_schema(plan, process)


def examine(plan: Launch, setup: bool) -> str | None:
    """Why the model does not load, or with ``setup`` can't be set up; None if it does. What it printed meanwhile goes
    to stderr if so, or if it was set up. A signal ends us as in ``describe``."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with spawn(plan.folder, _variables(plan)) as process:
        from cog_trio.cli.document import load

        loaded = load(plan, process, setup=setup)
    if setup or loaded.cause is not None:
        sys.stderr.write(loaded.printed)
    return loaded.cause


def _variables(plan: Launch) -> dict[str, str]:
    return {**plan.environment, **worker_variables(plan.settings)}
