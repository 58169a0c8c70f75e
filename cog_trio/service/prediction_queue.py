"""Who waits for a slot (D5): first come, first served, within a bound and for a time.

A prediction enters with a slot in hand when one is free, else it goes to the end of the line; a bound of none is a
line where nobody can stand. Slots are handed over synchronously, as soon as one is free, so a slot is never free
while somebody waits and nobody overtakes. Who is cancelled has left in that moment. Who waits too long, or for
nothing, is refused: the prediction ends without having begun, and ``Prediction.refusal`` tells why.
"""

from __future__ import annotations

import trio

from cog_trio.orchestrator.worker_handle import FreeSlot
from cog_trio.orchestrator.worker_pool import WorkerPool
from cog_trio.state.health import HealthSnapshot
from cog_trio.state.prediction import Blame, Fact, Outcome, Prediction
from cog_trio.state.refusals import QueueTimedOut, Rejected, not_ready


class QueueEntry:
    """A prediction's slot, or its place in the line until then; made by the queue only."""

    __slots__ = ("deadline", "decided", "free_slot", "prediction", "refusal")

    def __init__(self, prediction: Prediction, deadline: float) -> None:
        self.prediction = prediction
        self.deadline = deadline
        self.free_slot: FreeSlot | None = None
        self.refusal: Rejected | None = None
        self.decided = trio.Event()

    def grant(self, free_slot: FreeSlot) -> None:
        self.free_slot = free_slot
        self.decided.set()

    def refuse(self, refusal: Rejected) -> None:
        self.refusal = refusal
        self.decided.set()


class PredictionQueue:
    """The line of one service. ``size``: how many may wait; ``timeout``: for how many seconds."""

    def __init__(self, worker_pool: WorkerPool, size: int, timeout: float) -> None:
        self._worker_pool = worker_pool
        self._size = size
        self._timeout = timeout
        self._line: dict[Prediction, QueueEntry] = {}  # in the order in which they came

    def __len__(self) -> int:
        """How many wait. Those that were cancelled do not, though their tasks have not heard of it yet."""
        return sum(not prediction.cancel_requested for prediction in self._line)

    @property
    def has_room(self) -> bool:
        """One more can be taken: to run, or to wait."""
        size = self._size
        return (
            self._worker_pool.available > 0 or len(self._line) < size or len(self) < size
        )  # who has left is counted last

    def enter(self, prediction: Prediction) -> QueueEntry:
        """Take a slot, or a place at the end of the line; there must be room."""
        turn = QueueEntry(prediction, trio.current_time() + self._timeout)
        if self._worker_pool.available:
            turn.grant(self._worker_pool.acquire_nowait())
        else:
            prediction.queued = True
            self._line[prediction] = turn
        return turn

    def advance(self) -> None:
        """Hand over what is free to those who are first."""
        while self._line and self._worker_pool.available:
            prediction = next(iter(self._line))
            if not prediction.cancel_requested:
                self._line[prediction].grant(self._worker_pool.acquire_nowait())
            self._leave(prediction)

    def dissolve(self, health: HealthSnapshot) -> None:
        """Nobody's turn will come: refuse all, because of the service's health."""
        for prediction, turn in list(self._line.items()):
            turn.refuse(not_ready(health, prediction.id))
            self._leave(prediction)

    def _leave(self, prediction: Prediction) -> None:
        prediction.queued = False
        self._line.pop(prediction, None)

    async def wait(self, turn: QueueEntry) -> FreeSlot | Outcome:
        """The slot, when the turn has come (no checkpoint if it has), or the outcome of a refusal.

        Cancellation: the place is left; a slot that was handed over in that moment goes to the next.
        """
        if not turn.decided.is_set():
            try:
                with trio.move_on_at(turn.deadline):
                    await turn.decided.wait()
            except trio.Cancelled:
                if turn.free_slot is not None:
                    with turn.free_slot.permit:
                        pass
                raise
            finally:
                self._leave(turn.prediction)
        if turn.free_slot is not None:
            return turn.free_slot
        refusal = turn.refusal or QueueTimedOut(turn.prediction.id, self._timeout)
        return Outcome(Fact.RAISED, refusal.text, blame=Blame.SERVICE, refusal=refusal)
