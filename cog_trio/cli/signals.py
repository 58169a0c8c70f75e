"""The signals that ask for the end of a program, and those that come before its event loop runs.

A worker is spawned before trio, Hypercorn and the service are imported. Signals that come in that time are noted,
and obeyed as soon as the event loop runs; leaving before that kills the worker and reaps it. Once all is done nothing
is left to obey: a late signal is ignored, so that the exit code stands.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def ending_signals() -> tuple[signal.Signals, ...]:
    """Those that ask for our end: Ctrl-C, a supervisor, and a terminal that is closed, unless ``nohup`` says not."""
    hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


@contextmanager
def collect_signals() -> Iterator[list[int]]:
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
