"""What ``serve``, ``schema`` and the container entry do alike: spawn the worker, then import the rest.

The worker is spawned before trio, Hypercorn and the service are imported (D46), so both sides start up side by
side. For a server, signals that come in that time are noted and obeyed as soon as the event loop runs; leaving
before that kills the worker and reaps it. Once all is done nothing is left to obey: a late signal is ignored, so that
the exit code stands.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import FrameType

from cog_trio.cli.options import USAGE, fail
from cog_trio.settings import Settings, worker_variables
from cog_trio.spawn import spawn


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


def launch(plan: Launch) -> int:
    """Serve until a signal or ``POST /shutdown``; the exit code."""
    if plan.settings.certfile is not None and plan.settings.keyfile is not None:
        from cog_trio.certificate import BadCertificate, make_context

        try:  # before anything is started; the server takes them again
            make_context(plan.settings.certfile, plan.settings.keyfile)
        except BadCertificate as error:
            return fail(plan.name, str(error), USAGE)
    early: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        early.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    with spawn(plan.folder, {**plan.environment, **worker_variables(plan.settings)}) as process:
        from cog_trio.cli.program import serve

        code = serve(plan, process, early)
        for number in (signal.SIGINT, signal.SIGTERM):  # the interpreter, as it ends, would let one more kill us
            signal.signal(number, signal.SIG_IGN)
        return code


def describe(plan: Launch) -> int:
    """Print the model's document; the exit code. A signal ends us at once, and our guardian the worker."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with spawn(plan.folder, {**plan.environment, **worker_variables(plan.settings)}) as process:
        from cog_trio.cli.document import print_schema

        return print_schema(plan, process)
