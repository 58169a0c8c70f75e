"""Runs of sync code: one after the other, in the main thread, so that a signal can interrupt them.

The I/O thread hands over jobs through a queue. Here user code is called, its result iterated and encoded inside
``gate.user_code``, and each frame written by this very thread. Between two items a cancel that waits is thrown
into the generator, like one that comes inside it; a generator is closed on every way out. Nothing that user code
raises, ``SystemExit`` and ``KeyboardInterrupt`` included, gets past ``_run``.
"""

from __future__ import annotations

import contextvars
import inspect
import queue
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

import trio

from cog_trio.worker.cancel.gate import FALLBACK_AFTER, Gate
from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.executors.user_signals import timers
from cog_trio.worker.runs.output_sender import OutputSender, is_stream
from cog_trio.worker.runs.slots import Job, Stage, end_forked_child

_END: Final = object()
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
        fault: BaseException | None = None
        outputs = OutputSender(job)
        begin = perf_counter()
        try:
            self._call(job, outputs)
        except BaseException as error:  # noqa: BLE001  whatever user code raises is the run's failure, not ours
            self._gate.close()
            fault = error
        self._gate.close()
        if self._gate.forked:
            end_forked_child(fault)
        text = self._explain(job, outputs, fault)
        fault = None  # and what its frames hold: it goes while its text is still this run's
        job.end(text, seconds=perf_counter() - begin, is_stream=outputs.is_stream)

    def _explain(self, job: Job, outputs: OutputSender, fault: BaseException | None) -> str | None:
        try:
            with self._gate.user_code(job.run):
                return outputs.explain(fault)
        except BaseException:  # noqa: BLE001  a cancel, or what a signal handler of the user's raised
            self._gate.close()
            return None if fault is None else type(fault).__name__
        finally:
            self._gate.close()

    def _call(self, job: Job, outputs: OutputSender) -> None:
        model = job.model
        with self._gate.user_code(job.run):
            args, kwargs = model.bind(job.values())
            result = model.call(*args, **kwargs)
            if not (streams := is_stream(result)) and not isinstance(result, (list, tuple)):
                whole = None if result is None else outputs.encode(result)
        if streams:
            outputs.is_stream = True
            self._stream(job, result, outputs)
        elif isinstance(result, (list, tuple)):
            outputs.is_stream = True
            self._items(job, iter(result), outputs, yielded=False)
        elif whole is not None:
            outputs.keep(whole)

    def _stream(self, job: Job, items: Iterator[Any], outputs: OutputSender) -> None:
        """Send what an iterator yields, then close it, whatever happens."""
        try:
            self._items(job, items, outputs, yielded=True)
        except BaseException as error:
            try:
                self._unwind(job, items, error)
            except BaseException as second:  # noqa: BLE001  its clean-up failed too: the first fault is the run's
                outputs.note(second)
            raise
        if (close := getattr(items, "close", None)) is not None:
            with self._gate.user_code(job.run):
                close()

    def _items(self, job: Job, items: Iterator[Any], outputs: OutputSender, *, yielded: bool) -> None:
        gate, run, write = self._gate, job.run, job.write
        encode, frame = outputs.encode, outputs.frame
        while True:
            if gate.pending and gate.claim(run):
                raise gate.exception
            with gate.user_code(run):
                item = next(items, _END)
                if item is _END:
                    return
                wire = encode(item, yielded=yielded)
            item = None  # not kept alive while we wait for room
            write(frame(wire))

    def _unwind(self, job: Job, items: Iterator[Any], error: BaseException) -> None:
        with self._gate.user_code(job.run):
            if (
                isinstance(error, self._gate.exception)
                and inspect.isgenerator(items)
                and inspect.getgeneratorstate(items) == inspect.GEN_SUSPENDED
            ):  # it came between two items
                try:
                    items.throw(self._gate.exception())
                except (StopIteration, self._gate.exception):
                    return
            if (close := getattr(items, "close", None)) is not None:
                close()
