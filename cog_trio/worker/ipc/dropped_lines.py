"""Counts lines of text that the worker had to drop, and reports them to the parent as DroppedLogs.

A module of its own, since text is dropped on any thread and wherever it is cut or queued: ``add`` is one append, safe
in a signal handler and in a destructor. The I/O thread reports at most once an interval, so that a torrent of dropped
lines costs a message a second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from cog_trio.bridge.protocol import DroppedLogs

INTERVAL: Final = 1.0  # seconds from the first dropped line until it is reported


class DroppedLines:
    """``ask`` has the I/O thread run ``report``; ``send`` writes a control message and never blocks."""

    def __init__(self, ask: Callable[[], None], send: Callable[[DroppedLogs], None]) -> None:
        self._ask = ask
        self._send = send
        self._counts: deque[tuple[float, int]] = deque()  # when, and how many
        self._asked = False

    def add(self, count: int) -> None:
        """Count dropped lines; from any thread."""
        self._counts.append((time.monotonic(), count))
        if not self._asked:
            self._ask()
            self._asked = True  # a second report that is asked for between the two finds nothing to say

    async def report(self) -> None:
        """Report what is dropped from here on within one interval. Cancellation: ``report_now`` is left to do it."""
        await trio.sleep(INTERVAL)
        self._asked = False
        self.report_now()

    def report_now(self) -> bool:
        """Report what was dropped since the last report; return whether there was anything."""
        total, first = 0, 0.0
        while self._counts:
            at, count = self._counts.popleft()
            first = first or at
            total += count
        if total:
            self._send(DroppedLogs(total, int((time.monotonic() - first) * 1000)))
        return total > 0
