"""Reload the model in the same service: running predictions may finish, then its workers end, and new ones start on the
files that are there now.

From the moment it is asked for nothing new is begun: health is STARTING and creates are refused, while those who wait
in the queue go on waiting. What is in flight gets the drain grace, as at a shutdown. Old and new workers never live
at the same time, since both may need all of a device. Whoever asks again meanwhile is heard: what starts in the end is
what was asked for last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio

from cog_trio.bridge.protocol import Init
from cog_trio.orchestrator.worker_pool import WorkerPool
from cog_trio.service.shutdown import STOP_GRACE
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Blame

log: Final = logging.getLogger("cog_trio.service")


@dataclass(frozen=True)
class NewWorkers:
    """What is to be started in the place of what runs."""

    why: str  # for the log of its setup
    init: Init
    cwd: str | None
    environment: Mapping[str, str]


class Reload:
    """The reloads of one service; ``running`` is what is in flight, ``start_soon`` starts tasks in its nursery."""

    def __init__(
        self,
        grace: float,
        running: Mapping[str, Prediction],
        worker_pool: WorkerPool,
        start_soon: Callable[..., Any],
    ) -> None:
        self._grace = grace
        self._running = running
        self._worker_pool = worker_pool
        self._start_soon = start_soon
        self._wanted: NewWorkers | None = None
        self._at_work = False
        self._closed = False
        self._scope = trio.CancelScope()  # around the work

    def close(self) -> None:
        """The service ends: nothing is started any more, and what was to leave is its to end."""
        self._closed = True
        self._scope.cancel()

    def ask(self, new_workers: NewWorkers) -> None:
        """Have the model started again: in this step health becomes STARTING. Repeats are fine, and after ``close``
        nothing comes of it."""
        self._wanted = new_workers
        if self._at_work or self._closed:
            return
        self._at_work = True
        self._scope = trio.CancelScope()
        flying = [prediction for prediction in self._running.values() if not prediction.queued]
        log.info("%s: the model is started again; what runs may end: %d predictions", new_workers.why, len(flying))
        self._worker_pool.retire(new_workers.why)
        self._start_soon(self._renew, flying)

    async def _renew(self, flying: Collection[Prediction]) -> None:
        """Cancellation: workers that are to leave are left to the end of the service, which has begun."""
        with self._scope:
            with contain(Where.RELOAD):
                await self._drain(flying)
            await self._worker_pool.clear()
            new_workers, self._wanted, self._at_work = self._wanted, None, False
            assert new_workers is not None
            self._worker_pool.start(
                new_workers.init, None, new_workers.cwd, new_workers.environment
            )  # the last that was asked for

    async def _drain(self, flying: Collection[Prediction]) -> None:
        with trio.move_on_after(self._grace):
            await _all_finished(flying)
        for prediction in flying:
            prediction.cancel(Blame.SERVICE_END)
        with trio.move_on_after(STOP_GRACE):
            await _all_finished(flying)


async def _all_finished(predictions: Collection[Prediction]) -> None:
    for prediction in predictions:
        await prediction.wait_finished()
