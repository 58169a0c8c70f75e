"""Who may run: one permit a slot, and a slot is reused only with proof that the worker is done with it.

A permit is in one of three states. *Idle*: the slot stands in the pool. *In use*: one ``PermitInUse`` object stands
for it. *Poisoned*: the slot is lost for the life of the worker. In use becomes idle with the worker's ``Idle`` message
in hand (``SlotIdle``), or if no byte of a Predict was ever written: then the permit is its own proof (D22). Any other
way out of the block poisons the slot. Nothing leads back from poisoned, and only the pool makes permits.

All of it is synchronous: registering a prediction and taking its permit is one step without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, final

import trio

from cog_trio.bridge.protocol import PredictionId, SlotId

NO_PROOF: Final = "left without proof of idleness"


class PermitMisused(Exception):
    """A permit was moved in a way that its state does not have: our own bug, never the worker's."""


@final
@dataclass(frozen=True)
class SlotIdle:
    """Proof that nothing of one run is left on its slot; made by the orchestrator only, from an Idle message."""

    slot: SlotId
    id: PredictionId
    run: int


@final
@dataclass(frozen=True)
class PermitPoisoned:
    """A slot that is lost, and why. There is nothing to do with it."""

    slot: SlotId
    reason: str


@final
@dataclass(frozen=True)
class PoolStatistics:
    capacity: int  # slots that are not poisoned
    available: int  # of these, the idle ones
    poisoned: tuple[PermitPoisoned, ...]


@final
class PermitInUse:
    """The right to use one slot for one run; leaving its ``with`` block ends it."""

    __slots__ = ("_id", "_left", "_pool", "_proof", "_run", "slot")

    def __init__(self, pool: PermitPool, slot: SlotId) -> None:
        self.slot = slot
        self._pool = pool
        self._id: PredictionId | None = None
        self._run: int | None = None
        self._proof: SlotIdle | None = None
        self._left = False

    @property
    def dispatched(self) -> bool:
        return self._run is not None

    def dispatch(self, id: PredictionId, run: int) -> None:
        """The first byte of this run's Predict is about to be written: from here on only Idle is proof.

        Raises:
          PermitMisused: if it was dispatched before, or has been given back.
        """
        if self._left or self.dispatched:
            raise PermitMisused(f"slot {self.slot} can't be dispatched now")
        self._id, self._run = id, run

    def into_idle(self, proof: SlotIdle) -> None:
        """Accept the worker's proof; the slot returns to the pool when the block is left.

        Raises:
          PermitMisused: if the proof is for another slot or run.
        """
        if self._left or (proof.slot, proof.id, proof.run) != (self.slot, self._id, self._run):
            raise PermitMisused(f"no proof for run {self._run} on slot {self.slot}: {proof}")
        self._proof = proof

    def __enter__(self) -> PermitInUse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._left:
            raise PermitMisused(f"the permit of slot {self.slot} was left twice")
        self._left = True
        if self.dispatched and self._proof is None:
            self._pool.poison(self.slot, NO_PROOF)
        self._pool._give_back(self.slot)


@final
class PermitPool:
    """The slots of one worker."""

    def __init__(self, slots: Iterable[SlotId] = ()) -> None:
        self._idle = list(slots)[::-1]  # a stack: slot 0 first, and the last one used is the warmest
        self._size = len(self._idle)
        self._poisoned: dict[SlotId, PermitPoisoned] = {}
        self.on_idle: Callable[[], None] = lambda: None  # called whenever a slot has come back

    @property
    def capacity(self) -> int:
        """Slots that are not poisoned."""
        return self._size - len(self._poisoned)

    @property
    def available(self) -> int:
        """Slots that are idle."""
        return len(self._idle)

    def acquire_nowait(self) -> PermitInUse:
        """Take a slot, at once: use the permit in a ``with`` block, whose end gives it back.

        Raises:
          trio.WouldBlock: if no slot is idle.
        """
        if not self._idle:
            raise trio.WouldBlock
        return PermitInUse(self, self._idle.pop())

    def poison(self, slot: SlotId, reason: str) -> None:
        """Lose a slot, idle or in use. The first reason stands."""
        self._poisoned.setdefault(slot, PermitPoisoned(slot, reason))
        if slot in self._idle:
            self._idle.remove(slot)

    def is_poisoned(self, slot: SlotId) -> bool:
        return slot in self._poisoned

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(self.capacity, self.available, tuple(self._poisoned.values()))

    def _give_back(self, slot: SlotId) -> None:
        if slot not in self._poisoned:
            self._idle.append(slot)
            self.on_idle()
