"""How slowly a body may come: it has to make progress within the header timeout, and must not trickle on for ever.

A client that sends a byte now and then always makes progress. So a body as a whole gets ten times the header timeout,
and on top of that the time that its bytes would take at 500 a second. What we make the client wait for does not count.
"""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 10  # header timeouts that any body gets
SLOWEST: Final = 500  # bytes a second


class BodyRate:
    """One body that is on its way; times in seconds."""

    __slots__ = ("_began", "_last", "_received", "_timeout")

    def __init__(self, now: float, timeout: float) -> None:
        self._began = self._last = now
        self._received = 0
        self._timeout = timeout

    def add(self, now: float, size: int) -> None:
        """Some bytes came."""
        self._last = now
        self._received += size

    def excuse(self, now: float) -> None:
        """Since then it was us who did not read."""
        self._began += now - self._last
        self._last = now

    @property
    def deadline(self) -> float:
        """Until when the next bytes must be here."""
        whole = self._began + PATIENCE * self._timeout + self._received / SLOWEST
        return min(self._last + self._timeout, whole)
