"""The signal that carries a cancel to the main thread: which one it is, and whether that thread can hear it."""

from __future__ import annotations

import os
import signal


def choose_signal() -> int:
    """A real-time signal, since models use the two of the user; SIGUSR2 where there is none (macOS)."""
    rtmin = getattr(signal, "SIGRTMIN", None)
    return int(signal.SIGUSR2 if rtmin is None else rtmin + 3)


def is_blocked(signum: int) -> bool:
    """Whether the main thread blocks the signal; False where that can't be seen."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/status") as status:
            mask = next(line for line in status if line.startswith("SigBlk:"))
    except (OSError, StopIteration):  # macOS
        return False
    return bool(int(mask.split()[1], 16) >> (signum - 1) & 1)
