"""The user's health check, as asked of one worker: at most one on its way, one answer for all who ask meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from cog_trio.bridge.protocol import Healthcheck, HealthcheckResult, HealthcheckStatus

LIMIT: Final = 10.0  # seconds; the worker itself gives the user's check 5
TIMED_OUT: Final = "healthcheck timed out"


class WorkerLost(Exception):
    """The worker has ended, with the cause."""


class _Check:
    def __init__(self, id: str) -> None:
        self.id = id
        self.deadline = trio.current_time() + LIMIT
        self.answered = trio.Event()
        self.result: HealthcheckResult | None = None


class HealthChecks:
    """Health checks of one worker; a check that is not answered in time stays the only one, and says so at once."""

    def __init__(self, tell: Callable[[Healthcheck], None]) -> None:
        self._tell = tell
        self._number = 0
        self._open: _Check | None = None
        self._cause: str | None = None

    async def ask(self) -> HealthcheckResult:
        """Ask, or wait for the answer that is on its way.

        Raises:
          WorkerLost: if the worker has ended, or ends first.

        Cancellation: the check goes on, for the others.
        """
        if self._cause is not None:
            await trio.lowlevel.checkpoint()
            raise WorkerLost(self._cause)
        if self._open is None:
            self._number += 1
            self._open = _Check(f"hc_{self._number}")
            self._tell(Healthcheck(self._open.id))
        check = self._open
        with trio.move_on_at(check.deadline):
            await check.answered.wait()
        if check.result is not None:
            return check.result
        if self._cause is not None:
            raise WorkerLost(self._cause)
        return HealthcheckResult(check.id, HealthcheckStatus.UNHEALTHY, TIMED_OUT)

    def answer(self, result: HealthcheckResult) -> None:
        """The worker's answer; one to an id that is not open changes nothing."""
        if self._open is not None and self._open.id == result.id:
            check, self._open = self._open, None
            check.result = result
            check.answered.set()

    def lose(self, cause: str) -> None:
        """The worker has ended."""
        self._cause = cause
        if self._open is not None:
            self._open.answered.set()
