"""The guardian: ends the worker's group when the parent or the worker is gone.

A worker whose C code holds the GIL can't see that its parent was killed, and a parent-death signal ends the worker
alone, not its children. So a small process is forked before anything heavy is imported. It stays in the worker's
session and group, is nobody's child to wait for (forked twice), holds the read end of one pipe from the parent (and
pidfds of both, where there are any: a forked child of the parent may hold the other end of the pipe too), ignores the
polite signals, and at the end of either kills its own group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import Final, NoReturn

POLL: Final = 200  # milliseconds between two looks at the worker where there is no pidfd
NUMBERS: Final = 1024  # of descriptors that are closed where the system does not list those that are open
_PR_SET_PDEATHSIG: Final = 1


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none (macOS)."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # a sandbox or an old kernel forbids it
        return None


def start_guardian(pipe: int, parent: int) -> bool:
    """Fork the guardian of this process; it takes over ``pipe``, whose other end ``parent`` has. Whether one runs.

    To be called while this process has one thread and has loaded next to nothing.
    """
    worker, watch, above = os.getpid(), open_pidfd(os.getpid()), open_pidfd(parent)
    if above is not None and os.getppid() != parent:  # it has died, and the number may be somebody else's
        os.close(above)
        above = None
    try:
        middle = os.fork()
    except OSError:  # no more processes allowed
        return False
    if middle == 0:
        status = 1
        try:
            if os.fork() == 0:
                _guard(worker, pipe, watch, above)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(middle, 0)
    os.close(pipe)
    for fd in (watch, above):
        if fd is not None:
            os.close(fd)
    return status == 0


def _guard(worker: int, pipe: int, watch: int | None, above: int | None) -> NoReturn:
    try:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        _close_all_but({pipe, watch, above})
        os.chdir("/")  # not the model's folder, which may be a mount to be removed
        _wait(worker, pipe, watch, above)
    finally:
        os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _close_all_but(kept: set[int | None]) -> None:
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:  # a container without /proc: this process, which has opened next to nothing, has no high numbers
        numbers = list(range(NUMBERS))
    for fd in numbers:
        if fd not in kept:
            with contextlib.suppress(OSError):  # none has this number, or it was that of the listing
                os.close(fd)


def _wait(worker: int, pipe: int, watch: int | None, above: int | None) -> None:
    """Until the parent has ended or closed its end of the pipe, or the worker has ended."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    for fd in (watch, above):
        if fd is not None:
            poll.register(fd, select.POLLIN)
    group = os.getpgid(0)
    while not poll.poll(None if watch is not None else POLL):
        try:
            if os.getpgid(worker) != group:  # its number is somebody else's by now
                return
        except ProcessLookupError:
            return


def die_with_parent() -> bool:
    """Where no guardian could be forked: a parent-death signal to this process alone. Whether it was set."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
