"""The lives of a worker process and of its place in the service, as tables.

``PROCESS`` is the life of one process, from its spawn to its burial. ``PLACE`` is the life of a place in the service,
which holds one process, or with ``--respawn`` one after the other. Code asks the tables; a step that a table does not
have raises ``IllegalStep``, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, TypeVar


class ProcessState(Enum):
    SPAWNED = "spawned"
    DESCRIBED = "described"  # the model is imported and understood; setup runs
    READY = "ready"  # it takes runs
    ABORTED = "aborted"  # its end was seen or forced before it was ready: nothing is sent to it any more
    DYING = "dying"  # the same, after it was ready
    BURIED = "buried"  # it was reaped, and all of its runs have ended


class ProcessFact(Enum):
    DESCRIBED = "described"
    READY = "ready"
    ENDING = "ending"
    REAPED = "reaped"


PROCESS: Final[Mapping[ProcessState, Mapping[ProcessFact, ProcessState]]] = {
    ProcessState.SPAWNED: {ProcessFact.DESCRIBED: ProcessState.DESCRIBED, ProcessFact.ENDING: ProcessState.ABORTED},
    ProcessState.DESCRIBED: {ProcessFact.READY: ProcessState.READY, ProcessFact.ENDING: ProcessState.ABORTED},
    ProcessState.READY: {ProcessFact.ENDING: ProcessState.DYING},
    ProcessState.ABORTED: {ProcessFact.ENDING: ProcessState.ABORTED, ProcessFact.REAPED: ProcessState.BURIED},
    ProcessState.DYING: {ProcessFact.ENDING: ProcessState.DYING, ProcessFact.REAPED: ProcessState.BURIED},
    ProcessState.BURIED: {},
}
IN_SETUP: Final = frozenset((ProcessState.SPAWNED, ProcessState.DESCRIBED, ProcessState.ABORTED))
TAKES_MESSAGES: Final = frozenset((ProcessState.SPAWNED, ProcessState.DESCRIBED, ProcessState.READY))


class PlaceState(Enum):
    EMPTY = "empty"  # nothing was started yet
    OCCUPIED = "occupied"  # a process lives, or the next one is waited for
    STOPPING = "stopping"  # its process is the last one
    CLOSED = "closed"  # no process is left, and none follows


class PlaceFact(Enum):
    STARTED = "started"
    STOPPED = "stopped"  # the service wants it no longer
    EMPTIED = "emptied"  # the last process is gone


PLACE: Final[Mapping[PlaceState, Mapping[PlaceFact, PlaceState]]] = {
    PlaceState.EMPTY: {PlaceFact.STARTED: PlaceState.OCCUPIED, PlaceFact.STOPPED: PlaceState.CLOSED},
    PlaceState.OCCUPIED: {PlaceFact.STOPPED: PlaceState.STOPPING, PlaceFact.EMPTIED: PlaceState.CLOSED},
    PlaceState.STOPPING: {PlaceFact.STOPPED: PlaceState.STOPPING, PlaceFact.EMPTIED: PlaceState.CLOSED},
    PlaceState.CLOSED: {PlaceFact.STOPPED: PlaceState.CLOSED},
}

State = TypeVar("State", bound=Enum)
Fact = TypeVar("Fact", bound=Enum)


class IllegalStep(Exception):
    """A step that the table does not have: our own bug."""


class Life(Generic[State, Fact]):
    """One life: where it stands in its table."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Mapping[State, Mapping[Fact, State]]) -> None:
        self._table = table
        self.state = next(iter(table))

    def step(self, fact: Fact) -> None:
        """Take a step.

        Raises:
          IllegalStep: if the table does not have it.
        """
        try:
            self.state = self._table[self.state][fact]
        except KeyError:
            raise IllegalStep(f"{type(self.state).__name__} {self.state.value} can't be {fact.value}") from None
