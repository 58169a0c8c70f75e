"""The right to use a slot: the states of a slot as a table, and the pool of the idle ones.

A slot is reused only with proof that the worker is done with it. *Idle*: it stands in the pool. *Taken*: somebody holds
it, and no byte of a Predict was written, so giving it back needs no proof. *In use*: a run is open on it, and only the
``Idle`` of the worker's terminal message leads back (``Run.into_idle``). *Poisoned*: it is lost for the life of the
worker, by a broken frame, a closed socket or the worker's end; nothing leads back.

All of it is synchronous: registering a prediction and taking its slot is one step without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar, final

from cog_trio.bridge.protocol import SlotId


class SlotState(Enum):
    __hash__ = object.__hash__  # that of Enum is a call of Python, for each look into a table

    IDLE = "idle"
    TAKEN = "taken"
    IN_USE = "in use"
    POISONED = "poisoned"


class SlotFact(Enum):
    __hash__ = object.__hash__  # that of Enum is a call of Python, for each look into a table

    ACQUIRED = "acquired"
    RELEASED = "released"  # nothing was written: it is its own proof
    DISPATCHED = "dispatched"  # the first byte of a Predict is about to be written
    PROVEN = "proven"  # the worker's Idle is there
    LOST = "lost"


NEXT: Final[Mapping[SlotState, Mapping[SlotFact, SlotState]]] = {
    SlotState.IDLE: {SlotFact.ACQUIRED: SlotState.TAKEN, SlotFact.LOST: SlotState.POISONED},
    SlotState.TAKEN: {
        SlotFact.RELEASED: SlotState.IDLE,
        SlotFact.DISPATCHED: SlotState.IN_USE,
        SlotFact.LOST: SlotState.POISONED,
    },
    SlotState.IN_USE: {SlotFact.PROVEN: SlotState.IDLE, SlotFact.LOST: SlotState.POISONED},
    SlotState.POISONED: {},
}


class PermitMisused(Exception):
    """A slot was moved in a way that its state does not have: our own bug, never the worker's."""


@final
@dataclass(frozen=True)
class PermitPoisoned:
    """A slot that is lost, and why. There is nothing to do with it."""

    slot: SlotId
    reason: str


class HasState(Protocol):
    """What the pool needs of a slot."""

    state: SlotState


AnySlot = TypeVar("AnySlot", bound=HasState)


@final
class PermitPool(Generic[AnySlot]):
    """The idle slots of all workers of a service, in one place.

    Each worker has a shelf: a stack of its idle slots. A worker that takes no more runs has its shelf taken away.
    ``on_idle`` is called whenever a slot has come back.
    """

    def __init__(self, on_idle: Callable[[], None] = lambda: None) -> None:
        self.stopping = 0  # slots whose run was cancelled and has not ended
        self._on_idle = on_idle
        self._numbered: dict[int, list[AnySlot]] = {}
        self._shelves: list[list[AnySlot]] = []  # by the number of their worker

    def add(self, shelf: list[AnySlot], number: int = 0) -> None:
        """Hand out the slots of one more worker, of this number."""
        self._numbered[number] = shelf
        self._shelves = [self._numbered[number] for number in sorted(self._numbered)]

    def withdraw(self, shelf: list[AnySlot]) -> None:
        """Hand out no more slots of a worker. Repeatable."""
        self._numbered = {number: other for number, other in self._numbered.items() if other is not shelf}
        self._shelves = [other for other in self._shelves if other is not shelf]

    @property
    def available(self) -> int:
        """Slots that are idle."""
        return sum(map(len, self._shelves))

    def acquire(self) -> AnySlot | None:
        """Take an idle slot, of the worker that has the most of them; ``None`` if there is none.

        Whoever takes a slot starts a run on it or releases it.
        """
        shelves = self._shelves
        shelf = shelves[0] if len(shelves) == 1 else max(shelves, key=len, default=[])
        if not shelf:
            return None
        slot = shelf.pop()  # a stack: the last one used is the warmest
        slot.state = SlotState.TAKEN
        return slot

    def restore(self, shelf: list[AnySlot], slot: AnySlot) -> None:
        """A slot is idle again."""
        shelf.append(slot)
        self._on_idle()
