"""PID 1 without an init: a container whose entry point was replaced, so that nothing stands above the server.

The kernel gives PID 1 every orphan of the container, and signals without a handler don't reach it. So the server goes
on in a child, and what is left here does what tini does: signals go on to the child, whoever has died is buried, and
the child's exit code becomes ours. Nothing but the standard library is loaded by then, so this process stays small.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

TYPE_CHECKING = False  # no `import typing` before the worker runs
if TYPE_CHECKING:
    from typing import NoReturn

FAULTS = ("SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS")
TERMINAL = ("SIGTTIN", "SIGTTOU")  # stop a process that uses its terminal from the background
OURS = signal.valid_signals() - {getattr(signal, name) for name in FAULTS + TERMINAL}
BY_SIGNAL = 128  # and the number of the signal: exit code of a child that a signal has ended


def run_below_init() -> None:
    """Return at once, unless we are PID 1: then return in a child, and never in this process."""
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
    child = os.fork()
    if child:
        _look_after(child)
    os.setpgid(0, 0)  # as tini does: Ctrl-C comes once, from the terminal, not again from PID 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # else tcsetpgrp stops us: we are in the background yet
    with suppress(OSError):  # there is no terminal
        os.tcsetpgrp(0, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _look_after(child: int) -> NoReturn:
    """Pass signals on and bury the dead; ends with the child, without returning."""
    while True:
        number = signal.sigwait(OURS)
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(child, number)
            continue
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    os._exit(code if code >= 0 else BY_SIGNAL - code)
