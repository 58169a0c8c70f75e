"""Which processes a server has started, directly or not: those that carry its mark in their environment.

So children are found that changed their session or lost their parent. It is read from ``/proc``; a system without it
(macOS) shows no environment of other processes to a program without help, and nothing is found there.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

LAST_RITES: Final = 'read -r word || { kill -TERM "$1"; sleep 5; kill -KILL "$1"; }'
MARK: Final = "COG_TRIO_TEST"  # the variable that holds a mark
GONE: Final = 5.0  # seconds until what a dead server left must be gone; 1 s is promised, the rest is for slow machines
POLL: Final = 0.02  # seconds between two looks
PROC = Path("/proc")


def marked(mark: str) -> list[int]:
    """The numbers of all living processes with this mark, in order."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has just ended, or belongs to somebody else
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return sorted(found)


def kill_marked(mark: str) -> None:
    """SIGKILL every process with this mark."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def nothing_left(mark: str, seconds: float = GONE) -> None:
    """Wait until no process with this mark is left.

    Raises:
      AssertionError: if some are after so long; their command lines are named.
    """
    left: list[int] = []
    with trio.move_on_after(seconds):
        while left := marked(mark):
            await trio.sleep(POLL)
        return
    raise AssertionError(f"still there after {seconds:g} s: {', '.join(map(_named, left))}")


def _named(pid: int) -> str:
    line = b"?"
    with suppress(OSError):
        line = (PROC / str(pid) / "cmdline").read_bytes()
    return f"process {pid} ({line.replace(bytes(1), b' ').decode(errors='replace').strip()})"


@contextmanager
def ended_with_us(pid: int) -> Iterator[None]:
    """Have a process ended if ours is killed while the block lasts, which leaves no time for anything else: a shell
    sees its input end, without the word that all is well."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    shell = subprocess.Popen(
        ["sh", "-c", LAST_RITES, "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the others
    )
    try:
        yield
    finally:
        shell.communicate(b"well\n")
