"""The end of a service, in its order: what is in flight may finish, then must stop, then the workers leave, then the
last webhooks are delivered.

It begins once. Each step has its time, and whoever asks for the end again ends the step that is going on; the last
call kills the workers and gives webhooks up. All of it is shielded: an outer cancellation must not take the graces
away. They, and the workers' end, are bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import trio

from cog_trio.config.settings import Settings
from cog_trio.orchestrator.worker_pool import WorkerPool
from cog_trio.service.webhook_sender import Webhooks
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Blame

log: Final = logging.getLogger("cog_trio.service")

STOP_GRACE: Final = 5.0  # seconds that cancelled predictions get at shutdown before the worker is ended under them
END_LIMIT: Final = 30.0  # seconds for the worker's end; the orchestrator's own limits are shorter


class ShutdownSequence:
    """The end of one service; ``running`` is what is in flight, and shrinks."""

    def __init__(
        self, settings: Settings, running: Mapping[str, Prediction], worker_pool: WorkerPool, webhooks: Webhooks
    ) -> None:
        self.begun = trio.Event()
        self.over = trio.Event()  # nothing in flight, no worker left
        self.limit = settings.drain_grace + STOP_GRACE + END_LIMIT + settings.webhook_grace  # seconds, in all
        self._drain_grace = settings.drain_grace
        self._webhook_grace = settings.webhook_grace
        self._running = running
        self._worker_pool = worker_pool
        self._webhooks = webhooks
        self._to_finish = trio.CancelScope()
        self._to_stop = trio.CancelScope()
        self._to_deliver = trio.CancelScope()

    def hurry(self) -> None:
        """End the step that is going on."""
        for grace in (self._to_finish, self._to_stop):
            if not grace.cancel_called:
                grace.cancel()
                return
        self._worker_pool.kill()
        self._to_deliver.cancel()

    def cut(self) -> None:
        """Nothing gets the time to finish."""
        self._to_finish.cancel()

    async def run(self) -> None:
        """From the first call for the end to the end of the worker. After a fault of its own nothing gets time."""
        try:
            await self._end_in_order()
        except BaseException:
            self._worker_pool.kill()
            self._webhooks.close()
            raise
        finally:
            self.over.set()

    async def _end_in_order(self) -> None:
        with trio.move_on_after(self.limit, shield=True) as all_of_it:
            self._to_finish.deadline = trio.current_time() + self._drain_grace
            with self._to_finish:
                await self._wait_idle()
            self._to_finish.cancel()  # over, too, for the next who hurries
            if self._running:
                log.warning("shutdown: cancelling what did not finish in time, predictions: %d", len(self._running))
            for prediction in self._running.values():
                prediction.cancel(Blame.SERVICE_END)
            self._to_stop.deadline = trio.current_time() + STOP_GRACE
            with self._to_stop:
                await self._wait_idle()
            self._to_stop.cancel()
            self._worker_pool.stop()
            await self._worker_pool.ended.wait()
            await self._wait_idle()
            self._to_deliver.deadline = trio.current_time() + self._webhook_grace
            if self._webhooks.pending:
                log.info(
                    "shutdown: up to %g s for the last webhooks of %d predictions",
                    self._webhook_grace,
                    self._webhooks.pending,
                )
            with self._to_deliver:
                await self._webhooks.wait_idle()
            self._webhooks.close()
        if all_of_it.cancelled_caught:
            log.error("shutdown took more than %.0f s and was given up", self.limit)

    async def _wait_idle(self) -> None:
        while self._running:
            await next(iter(self._running.values())).wait_finished()
