"""A sync training beside an async prediction: its code runs in a thread, so that the event loop serves on.

The run itself is a task of that loop like all others: it waits for its turn there (one training at a time), for the end
of its code, and sends the end. The thread belongs to the executor whose loop it is. A cancel is raised in the thread
between two steps of Python code (``cancel/thread_gate.py``); a call into C ends first.
"""

from __future__ import annotations

import trio

from cog_trio.worker.cancel.gate import FALLBACK_AFTER, Gate
from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.cancel.thread_gate import ThreadGate
from cog_trio.worker.executors.sync_run import RunEnd, run_sync_code
from cog_trio.worker.runs.slots import Job, Stage

STATEFUL_FILES.add(__file__)


class TrainingThread:
    """How code of a sync training is called and interrupted in whatever thread has its turn."""

    def __init__(self, gate: Gate) -> None:
        self._gate = ThreadGate(gate)

    def run(self, job: Job) -> RunEnd:
        """In the thread, in the context of the run, one at a time: run the code of an opened job to its end."""
        self._gate.begin_run(job.run)
        try:
            return run_sync_code(job, self._gate)
        finally:
            self._gate.end_run()

    async def cancel(self, job: Job) -> None:
        """In the I/O thread: interrupt the code of a job; returns when the job has ended."""
        while job.stage is not Stage.ENDED:
            self._gate.request(job.run)
            await trio.sleep(FALLBACK_AFTER)
