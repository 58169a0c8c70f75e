"""Runs of a sync prediction beside an async training: one at a time, each by the executor of its kind.

The event loop runs while an async run does, and for ``setup``; a sync run finds none running, as in a sync model.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

from cog_trio.bridge.protocol import Kind

if TYPE_CHECKING:
    from cog_trio.worker.executors.asyncio_executor import AsyncExecutor
    from cog_trio.worker.executors.sync_executor import SyncExecutor
    from cog_trio.worker.runs.slots import Job


class MixedExecutor:
    """The main thread of a worker with callables of both kinds."""

    def __init__(self, sync: SyncExecutor, aio: AsyncExecutor) -> None:
        self._sync = sync
        self._aio = aio
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def _of(self, job: Job) -> SyncExecutor | AsyncExecutor:
        return self._aio if job.model.kind is Kind.ASYNC else self._sync

    # I/O thread

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    async def cancel(self, job: Job) -> None:
        """Interrupt the job as its kind is interrupted; returns when there is nothing left to do about it."""
        await self._of(job).cancel(job)

    def stop(self) -> None:
        """Have ``serve`` return once the jobs before this have ended."""
        self._jobs.put(None)

    # Main thread

    def serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._of(job).run(job)
            job = None  # what it holds goes now, not when the next one comes
        self._aio.close()
