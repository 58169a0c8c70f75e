"""Which signals ask for the end of a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from cog_trio.cli.signals import ending_signals


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_ends_a_program_unless_nohup_says_not() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert ending_signals() == (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert ending_signals() == (signal.SIGINT, signal.SIGTERM)
