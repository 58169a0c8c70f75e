"""The predictions that wait for a slot: first come, first served, within a bound and for a time.

A prediction enters with a slot in hand when one is free, else it goes to the end of the line; a bound of none is a line
where nothing waits but for slots whose runs are being cancelled, one for each and for a moment. Slots are handed over
synchronously, as soon as one is free, so a slot is never free while a prediction waits and nothing overtakes. A
cancelled prediction has left in that moment. One that waits too long, or for nothing, is refused: it ends without
having begun, and ``Prediction.refusal`` says why.
"""

from __future__ import annotations

from typing import Final

import trio

from cog_trio.orchestrator.permits import PermitPool
from cog_trio.orchestrator.slot import Slot
from cog_trio.state.health import HealthSnapshot
from cog_trio.state.prediction import Prediction
from cog_trio.state.refusals import AtCapacity, QueueTimedOut, Rejected, not_ready
from cog_trio.state.status import Blame, Fact, Outcome

STOPPING_WAIT: Final = 0.02  # seconds that a prediction waits for a run that is being cancelled, without a queue


class QueueEntry:
    """A prediction's place in the line; made by the queue only."""

    __slots__ = ("deadline", "decided", "late", "prediction", "refusal", "slot")

    def __init__(self, prediction: Prediction, deadline: float, late: Rejected) -> None:
        self.prediction = prediction
        self.deadline = deadline
        self.late = late  # the refusal of one that has waited until its deadline
        self.slot: Slot | None = None
        self.refusal: Rejected | None = None
        self.decided = trio.Event()

    def grant(self, slot: Slot) -> None:
        self.slot = slot
        self.decided.set()

    def refuse(self, refusal: Rejected) -> None:
        self.refusal = refusal
        self.decided.set()


class PredictionQueue:
    """The line of one service. ``size``: how many may wait; ``timeout``: for how many seconds."""

    def __init__(self, pool: PermitPool[Slot], size: int, timeout: float) -> None:
        self._pool = pool
        self._size = size
        self._timeout = timeout
        self._line: dict[Prediction, QueueEntry] = {}  # in the order in which they came

    def __len__(self) -> int:
        """How many wait. Those that were cancelled do not, though their tasks have not heard of it yet."""
        return sum(not prediction.cancel_requested for prediction in self._line)

    @property
    def has_room(self) -> bool:
        """One more can be taken: to run, or to wait."""
        size = self._size or self._pool.stopping
        return self._pool.available > 0 or len(self._line) < size or len(self) < size  # who has left is counted last

    def enter(self, prediction: Prediction) -> Slot | QueueEntry:
        """Take a slot, or a place at the end of the line; there must be room."""
        if (slot := self._pool.acquire()) is not None:
            return slot
        now = trio.current_time()
        if self._size:
            entry = QueueEntry(prediction, now + self._timeout, QueueTimedOut(prediction.id, self._timeout))
        else:
            prediction.waits_briefly = True
            entry = QueueEntry(prediction, now + STOPPING_WAIT, AtCapacity(prediction.id))
        prediction.queued = True
        self._line[prediction] = entry
        return entry

    def advance(self) -> None:
        """Hand over what is free to those who are first."""
        while self._line:
            prediction, entry = next(iter(self._line.items()))
            if not prediction.cancel_requested:
                if (slot := self._pool.acquire()) is None:
                    return
                entry.grant(slot)
            self._leave(prediction)

    def dissolve(self, health: HealthSnapshot) -> None:
        """No turn will come: refuse all, because of the service's health."""
        for prediction, entry in list(self._line.items()):
            entry.refuse(not_ready(health, prediction.id))
            self._leave(prediction)

    def _leave(self, prediction: Prediction) -> None:
        prediction.queued = False
        self._line.pop(prediction, None)

    async def wait(self, entry: QueueEntry) -> Slot | Outcome:
        """The slot, when the turn has come (no checkpoint if it has), or the outcome of a refusal.

        Cancellation: the place is left; a slot that was handed over in that moment goes to the next.
        """
        if not entry.decided.is_set():
            try:
                with trio.move_on_at(entry.deadline):
                    await entry.decided.wait()
            except trio.Cancelled:
                if entry.slot is not None:
                    entry.slot.release()
                raise
            finally:
                self._leave(entry.prediction)
        if entry.slot is not None:
            return entry.slot
        refusal = entry.refusal or entry.late
        return Outcome(Fact.RAISED, refusal.text, blame=Blame.SERVICE, refusal=refusal)
