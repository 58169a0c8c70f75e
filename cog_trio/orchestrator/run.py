"""One run in the air: from the writing of its Predict until its terminal frame and its Idle have both come.

The slot's reader applies each frame of the run to its prediction, synchronously and in order, and records how it
ended; the run's own task waits. That wait can't be cut: a cancelled scope only makes it ask the worker to stop, for
``canceled`` may be said only when the work has stopped (D28). What ends the wait is the worker's terminal frame, the
loss of the slot, or the end of the worker (D47).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from cog_trio.bridge.codec import ProtocolBroken
from cog_trio.bridge.protocol import (
    Cancelled,
    Done,
    Failed,
    Fetching,
    FileOutput,
    Idle,
    LogLine,
    Metric,
    OutputChunk,
    ProtocolVersion,
    RunCancelled,
    RunFailed,
    RunFrame,
    SlotId,
    Terminal,
)
from cog_trio.orchestrator.deadlines import SHUT_DOWN
from cog_trio.orchestrator.permits import SlotIdle
from cog_trio.orchestrator.prediction_slot import FileTaker
from cog_trio.state.prediction import Blame, Fact, Outcome, Prediction

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

NamesRun: TypeAlias = Idle | Cancelled | Failed | Terminal
CUT: Final = Outcome(Fact.CUT)


def lost(cause: str, blame: Blame = Blame.WORKER) -> Outcome:
    """The outcome of a run that ended by a cause of our own."""
    return Outcome(Fact.RAISED, cause, blame=Blame.SERVICE_END if cause == SHUT_DOWN else blame)


class Run:
    """One run; made by the orchestrator only."""

    __slots__ = (
        "_due",
        "_files",
        "_waiter",
        "announced",
        "outcome",
        "overrun",
        "prediction",
        "proof",
        "run",
        "settled",
        "slot",
    )

    def __init__(self, slot: SlotId, run: int, prediction: Prediction, files: FileTaker) -> None:
        self.slot = slot
        self.run = run
        self.prediction = prediction
        self.announced = False  # it has put out a file, and the worker waits for FilesTaken
        self.outcome: Outcome | None = None
        self.overrun: Outcome | None = None  # it is being stopped because of this, and that is its outcome then
        self.proof: SlotIdle | None = None
        self._files = files
        self._due = 0  # files inside the last item that have not come yet
        self.settled = False  # the slot is idle or lost
        self._waiter: trio.lowlevel.Task | None = None

    def check_name(self, message: NamesRun) -> None:
        """See that a message names this run.

        Raises:
          ProtocolBroken: if it does not (W18).
        """
        if (message.run, message.id, message.slot) != (self.run, self.prediction.id, self.slot):
            raise ProtocolBroken(
                f"{type(message).__name__} names run {message.run} of slot {message.slot}, "
                f"but run {self.run} of slot {self.slot} is open"
            )

    def apply(self, frame: RunFrame) -> None:
        """Apply one frame of the slot socket.

        Raises:
          ProtocolBroken: if the frame has no place here.
        """
        if self.outcome is not None:
            raise ProtocolBroken(f"{type(frame).__name__} after the end of its run")
        if self._due:
            self._take_inner(frame)
            return
        match frame:
            case OutputChunk():
                self._check_index(frame)
                if frame.files:
                    self._announce(frame)
                else:
                    self.prediction.add_output(frame.output)
            case LogLine():
                self.prediction.append_log(frame.data, frame.source)
            case Done():
                self.check_name(frame)
                self.end(Outcome(Fact.RETURNED, is_stream=frame.is_stream))
            case RunFailed():
                self.check_name(frame)
                self.end(Outcome(Fact.RAISED, frame.error))
            case RunCancelled():
                self.check_name(frame)
                self.end(CUT)
            case Fetching():
                self.prediction.fetched = frame.done, frame.total
            case Metric():
                self.prediction.record_metric(frame.name, frame.value, frame.mode)
            case FileOutput():
                self._check_index(frame)
                self._announce(frame)
            case ProtocolVersion():
                raise ProtocolBroken("ProtocolVersion in the middle of a run")
            case _:
                assert_never(frame)

    def _announce(self, item: OutputChunk | FileOutput) -> None:
        self.announced = True
        self._due = item.files
        self._files.announce(item)

    def _take_inner(self, frame: RunFrame) -> None:
        """One of the files inside the last item: nothing else may come before all of them are there."""
        index = self.prediction.next_index - 1
        if not isinstance(frame, FileOutput) or frame.place is None or frame.index != index:
            raise ProtocolBroken(f"{type(frame).__name__} where a file inside output {index} is due")
        self._due -= 1
        self._files.announce(frame)

    def _check_index(self, frame: OutputChunk | FileOutput) -> None:
        if isinstance(frame, FileOutput) and frame.place is not None:
            raise ProtocolBroken(f"a file inside output {frame.index}, which has room for none")
        if frame.index != self.prediction.next_index:
            raise ProtocolBroken(f"output {frame.index} came where output {self.prediction.next_index} is due")

    @property
    def awaits_idle(self) -> bool:
        """It has ended, and the worker waits for nothing more of us."""
        return self.outcome is not None and self.proof is None and not self.announced

    def end(self, outcome: Outcome) -> None:
        """Record how it ended; the first end stands, and a cause of our own before what the model says last."""
        if self.outcome is None:
            self.outcome = outcome if self.overrun is None or outcome.ours else self.overrun
            self._wake()

    def settle(self, proof: SlotIdle | None) -> None:
        """The slot is idle (with the proof) or lost (without)."""
        self.proof = proof
        self.settled = True
        self._wake()

    def _wake(self) -> None:
        """One wake for outcome and proof together: that is the usual case, and each turn of the scheduler counts."""
        if self._waiter is not None and self.outcome is not None and (self.settled or self.announced):
            trio.lowlevel.reschedule(self._waiter)
            self._waiter = None

    async def wait_ended(self, ask_to_stop: Callable[[], None]) -> None:
        """Wait for the outcome, and for idleness too unless files must be taken before.

        Cancellation: calls ``ask_to_stop`` and waits on; it is delivered at the task's next checkpoint.
        """
        if self.outcome is None or not (self.settled or self.announced):
            await self._sleep(ask_to_stop)

    async def wait_settled(self) -> None:
        """Wait until the slot is idle or lost. Cancellation: waits on."""
        if not self.settled:
            self.announced = False
            await self._sleep(lambda: None)

    async def _sleep(self, on_cancel: Callable[[], None]) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            on_cancel()
            return trio.lowlevel.Abort.FAILED

        self._waiter = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
