"""One run of sync code, from its first step to its last, in the thread that calls ``run_sync_code``.

The steps of ``walk`` that are user code are done inside ``gate.user_code``, and each frame is written by this very
thread. Which thread that is, is the gate's affair: the main one, or that of a training beside an event loop. Nothing
that user code raises, ``SystemExit`` and ``KeyboardInterrupt`` included, gets out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import Protocol, TypeAlias, TypeVar, cast

from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.runs.output_sender import OutputSender
from cog_trio.worker.runs.slots import Job, end_forked_child
from cog_trio.worker.runs.walk import Send, Walk, explain, walk

T = TypeVar("T")
STATEFUL_FILES.add(__file__)


class RunGate(Protocol):
    """What a run asks of the gate of its thread."""

    inside: bool

    @property
    def exception(self) -> type[BaseException]:
        """What a cancel raises."""

    @property
    def pending(self) -> bool:
        """A cancel came that may not have been delivered yet."""

    @property
    def forked(self) -> bool:
        """This process is a child that user code forked."""

    @property
    def wake_fd(self) -> int | None:
        """Ends a wait for room when it is readable."""

    def user_code(self, run: int) -> AbstractContextManager[None]:
        """Around every entry into user frames of this run."""

    def claim(self, run: int) -> bool:
        """Whether a request waits for this run; if so it counts as delivered, by the caller's own hand."""

    def close(self) -> None:
        """User code of the run has come to its end."""


RunEnd: TypeAlias = "tuple[str | None, float, bool]"
"""How a run has ended: why it has failed, its seconds, and whether its output is made of items. A plain tuple, since
each run makes one."""


def run_sync_code(job: Job, gate: RunGate) -> RunEnd:
    """Call the model of an opened job, send what it puts out, and say how it ended."""
    outputs = OutputSender(job)
    begin = perf_counter()
    user_code = gate.user_code(job.run)
    fault = _drive(job, gate, user_code, walk(job, outputs, cancel=gate.exception, is_cut=_yes, awaits=False))
    gate.close()
    if gate.forked:
        end_forked_child(fault)
    text = explain(partial(_call, user_code), outputs, fault)
    fault = None  # and what its frames hold: it goes while its text is still this run's
    gate.close()
    return text, perf_counter() - begin, outputs.is_stream


def _drive(job: Job, gate: RunGate, user_code: AbstractContextManager[None], steps: Walk) -> BaseException | None:
    """Do all steps; gives the run's fault, if it has failed."""
    faults: list[BaseException] = []
    value: object = None
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
                if gate.pending and gate.claim(job.run):
                    raise gate.exception
            else:
                with user_code:
                    value = step.function()
        except BaseException as error:  # noqa: BLE001  it is thrown into the walk
            gate.inside = False  # the cancel came right at the end
            faults.append(error)


def _call(user_code: AbstractContextManager[None], function: Callable[[], T]) -> T:
    with user_code:
        return function()


def _yes() -> bool:
    """A cancel that comes between two items is the run's."""
    return True
