"""Runs of sync code: one after the other, in the main thread, so that a signal can interrupt them.

The thread waits for its slot's socket, and for a pipe by which others tell it that a run's files have come, or that it
is to leave. The steps of ``walk`` that are user code are done inside ``gate.user_code``, and each frame is written by
this very thread. Nothing that user code raises, ``SystemExit`` and ``KeyboardInterrupt`` included, gets past ``_run``.

A training may be async beside a sync prediction: its runs are the event loop's, which stands still before and after.
"""

from __future__ import annotations

import contextvars
import os
import queue
import select
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio

from cog_trio.bridge.protocol import Kind
from cog_trio.worker.cancel.gate import FALLBACK_AFTER, Gate
from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.executors.executor import Executor, set_up
from cog_trio.worker.executors.user_signals import timers
from cog_trio.worker.runs.output_sender import OutputSender
from cog_trio.worker.runs.slots import Job, Stage, end_forked_child
from cog_trio.worker.runs.walk import Send, Walk, explain, walk

if TYPE_CHECKING:
    from cog_trio.worker.executors.asyncio_executor import AsyncExecutor

T = TypeVar("T")
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
        gate, outputs = self._gate, OutputSender(job)
        begin = perf_counter()
        fault = self._drive(job, walk(job, outputs, cancel=gate.exception, is_cut=_yes, awaits=False))
        gate.close()
        if gate.forked:
            end_forked_child(fault)
        text = explain(partial(self._call, job), outputs, fault)
        fault = None  # and what its frames hold: it goes while its text is still this run's
        gate.close()
        job.end(text, seconds=perf_counter() - begin, is_stream=outputs.is_stream)

    def _drive(self, job: Job, steps: Walk) -> BaseException | None:
        """Do all steps; gives the run's fault, if it has failed."""
        gate, run = self._gate, job.run
        user_code = gate.user_code(run)
        faults: list[BaseException] = []
        value: Any = None
        while True:
            try:
                step = steps.throw(faults.pop()) if faults else steps.send(value)
            except StopIteration as end:
                return cast("BaseException | None", end.value)  # in a variable it would keep itself alive
            value = None
            try:
                if isinstance(step, Send):
                    if job.put(step.frame):
                        job.slot.writer.wait(gate.wake_fd)
                    if gate.pending and gate.claim(run):
                        raise gate.exception
                else:
                    with user_code:
                        value = step.function()
            except BaseException as error:  # noqa: BLE001  it is thrown into the walk
                gate.inside = False  # the cancel came right at the end
                faults.append(error)

    def _call(self, job: Job, function: Callable[[], T]) -> T:
        with self._gate.user_code(job.run):
            return function()


def _complete(awaitable: Awaitable[Any]) -> None:
    import asyncio

    async def whole() -> Any:
        return await awaitable

    asyncio.run(whole())


def _yes() -> bool:
    """A cancel that comes between two items is the run's."""
    return True
