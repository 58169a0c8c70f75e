"""Runs of sync code: one after the other, in the main thread, so that a signal can interrupt them.

The thread waits for its slot's socket, and for a pipe by which others tell it that a run's files have come, or that it
is to leave. How a run goes is written in ``sync_run.py``; nothing that user code raises gets past it.

A training may be async beside a sync prediction: its runs are the event loop's, which stands still before and after.
"""

from __future__ import annotations

import contextvars
import os
import queue
import select
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from cog_trio.bridge.protocol import Kind
from cog_trio.worker.cancel.gate import FALLBACK_AFTER, Gate
from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.executors.executor import Executor, set_up
from cog_trio.worker.executors.sync_run import run_sync_code
from cog_trio.worker.executors.user_signals import timers
from cog_trio.worker.runs.slots import Job, Stage

if TYPE_CHECKING:
    from cog_trio.worker.executors.asyncio_executor import AsyncExecutor

STATEFUL_FILES.add(__file__)


class SyncExecutor(Executor):
    """The main thread of a worker with a sync model; ``aio`` runs what is async beside it."""

    def __init__(self, gate: Gate, aio: AsyncExecutor | None = None) -> None:
        super().__init__(gate)
        self._aio = aio
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None: leave
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    # Any thread

    def submit(self, job: Job) -> None:
        self._jobs.put(job)
        self._wake_up()

    def stop(self) -> None:
        self._jobs.put(None)
        self._wake_up()

    def _wake_up(self) -> None:
        with suppress(BlockingIOError):  # full: readable, which is all that is asked
            os.write(self._wake, b"\0")

    # I/O thread

    async def cancel(self, job: Job) -> None:
        """Interrupt the job if its user code runs; returns when it has ended."""
        if self._aio is not None and job.model.kind is Kind.ASYNC:
            await self._aio.cancel(job)
            return
        self._gate.request(job.run)
        while job.stage is not Stage.ENDED:
            await trio.sleep(FALLBACK_AFTER)
            self._gate.insist(job.run)

    # Main thread

    def serve(self, setups: Iterable[Callable[..., Any]], ready: Callable[[], bool]) -> None:
        set_up(setups, _complete if self._aio is None else self._aio.complete, self._gate)
        if ready():
            self._serve()
        if self._aio is not None:
            self._aio.close()

    def _serve(self) -> None:
        (reader,) = self.readers
        slot, woken = reader.slot.fd, self._woken
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(slot, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == slot:
                    if not reader.read():
                        poll.unregister(slot)
                elif not self._start_submitted():
                    return

    def _start_submitted(self) -> bool:
        """Run what was submitted; False: leave."""
        os.read(self._woken, 4096)
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                return False
            self.start(job)
        return True

    def start(self, job: Job) -> None:
        """Run one job to its end."""
        if job.cancelled:
            job.end()
            return
        if self._aio is not None and job.model.kind is Kind.ASYNC:
            self._aio.run(job)
            return
        timers.begin_run()
        self._gate.begin_run(job.run)
        try:
            contextvars.copy_context().run(self._run, job)
        finally:
            self._gate.end_run()
        timers.end_run()

    def _run(self, job: Job) -> None:
        job.open()
        job.end(*run_sync_code(job, self._gate))


def _complete(awaitable: Awaitable[Any]) -> None:
    import asyncio

    async def whole() -> Any:
        return await awaitable

    asyncio.run(whole())
