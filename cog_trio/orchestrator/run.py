"""One run: a prediction in flight on one slot, from the writing of its Predict to its terminal message.

The task of the slot applies each message to the prediction, synchronously and in order, and records how the run ended.
``canceled`` is said only when the work has stopped: what ends a run is the worker's terminal message, the loss of the
slot, or the end of the worker. A run that returned files holds its slot until they are read: the model may overwrite
them in its next run.
"""

from __future__ import annotations

import sys
from typing import Final, Protocol

import msgspec

from cog_trio.bridge.codec import ProtocolBroken
from cog_trio.bridge.protocol import (
    Done,
    Failed,
    Fetching,
    FileOutput,
    Idle,
    LogLine,
    Metric,
    OutputBatch,
    OutputChunk,
    ProtocolVersion,
    RunCancelled,
    RunFailed,
    SlotId,
    SlotResponse,
)
from cog_trio.orchestrator.deadlines import SHUT_DOWN
from cog_trio.orchestrator.permits import PermitMisused, SlotFact
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Blame, Fact, Outcome

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

CUT: Final = Outcome(Fact.CUT)
_RETURNED: Final = Outcome(Fact.RETURNED)
_RETURNED_STREAM: Final = Outcome(Fact.RETURNED, is_stream=True)


def lost(cause: str, blame: Blame = Blame.WORKER) -> Outcome:
    """The outcome of a run that ended by a cause of our own."""
    return Outcome(Fact.RAISED, cause, blame=Blame.SERVICE_END if cause == SHUT_DOWN else blame)


class HeldSlot(Protocol):
    """The slot that a run is open on."""

    @property
    def number(self) -> SlotId: ...

    def settle(self, run: Run, fact: SlotFact) -> None:
        """The run has left the slot."""


class FileTaker(Protocol):
    """Reads the files of one run."""

    @property
    def error(self) -> str | None:
        """Why the first file that could not be read was not."""

    def announce(self, item: OutputChunk | FileOutput) -> None:
        """A file has come, or a value with files inside, at the prediction's ``next_index``: keep its place.

        A file with a ``place`` is one of those inside the item before it. Reading starts at once.
        """

    async def settled(self) -> None:
        """Wait until all announced files are read or given up; a bad file raises nothing here."""


class RunOwner(Protocol):
    """Who has a run carried out: the service's side of it. All methods are synchronous."""

    def begun(self, run: Run) -> None:
        """Its Predict is about to be written."""

    def open_files(self, run: Run) -> FileTaker:
        """The run puts out its first file."""

    def ended(self, run: Run) -> None:
        """``run.outcome`` is there. A run that had files still holds its slot: its owner calls ``release``."""


class Run:
    """One run. Its owner makes it, ``Slot.start`` sends it, and the slot's task carries it."""

    __slots__ = (
        "_closed",
        "_due",
        "context",
        "files",
        "folder",
        "folder_made",
        "input",
        "input_file",
        "number",
        "outcome",
        "overrun",
        "owner",
        "prediction",
        "proof",
        "slot",
    )

    def __init__(
        self,
        prediction: Prediction,
        owner: RunOwner,
        folder: str,
        input: bytes | memoryview = b"{}",
        context: dict[str, str] | None = None,
    ) -> None:
        self.prediction = prediction
        self.owner = owner
        self.folder = folder  # its name: whoever needs it first makes it
        self.input = input  # JSON
        self.input_file: str | None = None  # in its place, and in that of the context
        self.context = context or {}
        self.number = 0  # of the worker, once it is sent
        self.slot: HeldSlot | None = None
        self.files: FileTaker | None = None  # from its first file on
        self.folder_made = False  # known to have been made; else unknown until the terminal message
        self.outcome: Outcome | None = None
        self.overrun: Outcome | None = None  # it is being stopped because of this, and that is its outcome then
        self.proof: Idle | None = None
        self._closed = False  # its owner knows that it has ended
        self._due = 0  # files inside the last item that have not come yet

    def __repr__(self) -> str:
        return f"<Run {self.number} of {self.prediction.id!r}>"

    def apply(self, message: SlotResponse) -> None:
        """Apply one message of the slot socket.

        Raises:
          ProtocolBroken: if the message has no place here.
        """
        if self.outcome is not None:
            raise ProtocolBroken(f"{type(message).__name__} after the end of its run")
        if self._due:
            self._apply_inner_file(message)
            return
        match message:
            case Done():
                self._check_proof(message.idle)
                if not isinstance(message.output, msgspec.UnsetType):
                    if self.prediction.next_index:
                        raise ProtocolBroken("a result after outputs of the same run")
                    self.prediction.add_output(message.output)
                self._end(_RETURNED_STREAM if message.is_stream else _RETURNED, message.idle, message.folder)
            case OutputChunk():
                self._check_index(message)
                if message.files:
                    self._announce(message)
                else:
                    self.prediction.add_output(message.output)
            case OutputBatch():
                self._check_index(message)
                self._add_batch(message)
            case LogLine():
                self.prediction.append_log(message.data, message.source)
            case RunFailed():
                self._check_proof(message.idle)
                self._end(Outcome(Fact.RAISED, message.error), message.idle, message.folder)
            case RunCancelled():
                self._check_proof(message.idle)
                self._end(CUT, message.idle, message.folder)
            case Fetching():
                self.prediction.fetched = message.done, message.total
            case Metric():
                self.prediction.record_metric(message.name, message.value, message.mode)
            case FileOutput():
                self._check_index(message)
                self._announce(message)
            case ProtocolVersion():
                raise ProtocolBroken("ProtocolVersion in the middle of a run")
            case _:
                assert_never(message)

    def _add_batch(self, batch: OutputBatch) -> None:
        try:
            items = msgspec.json.decode(batch.outputs, type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise ProtocolBroken(f"the outputs from {batch.index} on are not a list: {error}") from error
        if len(items) != batch.count:
            raise ProtocolBroken(f"{len(items)} outputs came where {batch.count} were told")
        self.prediction.add_outputs(items)

    def _announce(self, item: OutputChunk | FileOutput) -> None:
        if self.files is None:
            self.files = self.owner.open_files(self)
        self._due = item.files
        self.files.announce(item)

    def _apply_inner_file(self, message: SlotResponse) -> None:
        """One of the files inside the last item: nothing else may come before all of them are there."""
        index = self.prediction.next_index - 1
        if not isinstance(message, FileOutput) or message.place is None or message.index != index:
            raise ProtocolBroken(f"{type(message).__name__} where a file inside output {index} is due")
        assert self.files is not None
        self._due -= 1
        self.files.announce(message)

    def _check_index(self, message: OutputChunk | OutputBatch | FileOutput) -> None:
        if isinstance(message, FileOutput) and message.place is not None:
            raise ProtocolBroken(f"a file inside output {message.index}, which has room for none")
        if message.index != self.prediction.next_index:
            raise ProtocolBroken(f"output {message.index} came where output {self.prediction.next_index} is due")

    def check_name(self, message: Idle | Failed) -> None:
        """See that a message names this run.

        Raises:
          ProtocolBroken: if it does not.
        """
        assert self.slot is not None
        if (message.run, message.id, message.slot) != (self.number, self.prediction.id, self.slot.number):
            raise ProtocolBroken(
                f"{type(message).__name__} names run {message.run} of slot {message.slot}, "
                f"but run {self.number} of slot {self.slot.number} is open"
            )

    def _check_proof(self, idle: Idle) -> None:
        self.check_name(idle)
        self.proof = idle

    def _end(self, outcome: Outcome, proof: Idle, folder_made: bool) -> None:
        self.proof = proof
        self.folder_made = folder_made or self.folder_made
        self.outcome = outcome if self.overrun is None else self.overrun

    def lose(self, outcome: Outcome) -> None:
        """End it by a cause of our own, without a word of the worker. An end that has come stands."""
        if self.outcome is None:
            self.outcome = outcome
            self.folder_made = True  # nobody can say that it was not
        self.close()

    def close(self) -> None:
        """Tell the owner that it has ended: once."""
        if not self._closed:
            self._closed = True
            self.owner.ended(self)

    def into_idle(self, proof: Idle) -> None:
        """Give the slot back, with the worker's proof. A slot that was lost meanwhile stays lost.

        Raises:
          PermitMisused: if the proof is not of this run, or the slot is not in use by it.
        """
        slot = self.slot
        if slot is None or (proof.slot, proof.id, proof.run) != (slot.number, self.prediction.id, self.number):
            raise PermitMisused(f"no proof for {self!r}: {proof}")
        slot.settle(self, SlotFact.PROVEN)
