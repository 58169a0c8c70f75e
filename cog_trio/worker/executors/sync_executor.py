"""Runs of sync code: one after the other, in the main thread, so that a signal can interrupt them.

The I/O thread hands over jobs through a queue. The steps of ``walk`` that are user code are done inside
``gate.user_code``, and each frame is written by this very thread. Nothing that user code raises, ``SystemExit`` and
``KeyboardInterrupt`` included, gets past ``_run``.
"""

from __future__ import annotations

import contextvars
import queue
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, TypeVar, cast

import trio

from cog_trio.worker.cancel.gate import FALLBACK_AFTER, Gate
from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.executors.user_signals import timers
from cog_trio.worker.runs.output_sender import OutputSender
from cog_trio.worker.runs.slots import Job, Stage, end_forked_child
from cog_trio.worker.runs.walk import Send, Walk, explain, walk

T = TypeVar("T")
STATEFUL_FILES.add(__file__)


class SyncExecutor:
    """The main thread of a worker with a sync model."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    # I/O thread

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    async def cancel(self, job: Job) -> None:
        """Interrupt the job if its user code runs; returns when it has ended."""
        self._gate.request(job.run)
        while job.stage is not Stage.ENDED:
            await trio.sleep(FALLBACK_AFTER)
            self._gate.insist(job.run)

    def stop(self) -> None:
        """Have ``serve`` return once the jobs before this have ended."""
        self._jobs.put(None)

    # Main thread

    def serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.run(job)
            job = None  # what it holds goes now, not when the next one comes

    def run(self, job: Job) -> None:
        """Run one job to its end."""
        if job.cancelled:
            job.end()
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
                    job.write(step.frame)
                    if gate.pending and gate.claim(run):
                        raise gate.exception
                else:
                    with gate.user_code(run):
                        value = step.function()
            except BaseException as error:  # noqa: BLE001  it is thrown into the walk
                gate.inside = False  # the cancel came right at the end
                faults.append(error)

    def _call(self, job: Job, function: Callable[[], T]) -> T:
        with self._gate.user_code(job.run):
            return function()


def _yes() -> bool:
    """A cancel that comes between two items is the run's."""
    return True
