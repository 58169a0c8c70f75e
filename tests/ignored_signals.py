"""Programs that tests start get default signals, however the shell has started the tests.

Under nohup SIGHUP is ignored, and in the background of a script SIGINT and SIGQUIT are. What is ignored stays ignored
in programs that are started from there, so a server would not end when a test interrupts it. A signal that is caught is
set back to its default in them. So the tests catch what they were told to ignore, and do nothing with it.
"""

from __future__ import annotations

import signal
from typing import Final

OFTEN_IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def catch_ignored_signals() -> None:
    """Put a handler that does nothing in the place of each ``SIG_IGN``. Repeatable; on the main thread only."""
    for number in OFTEN_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: object) -> None:
    """For a signal that was ignored."""
