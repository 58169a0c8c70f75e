"""The life of a prediction as a table, and how a run ends.

``NEXT`` is the whole life cycle: code asks the table; a state with an empty row is terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

import msgspec


class Status(str, Enum):
    __hash__ = str.__hash__  # that of Enum is a call of Python, for each look into a table

    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Fact(Enum):
    """What can happen to a prediction."""

    __hash__ = object.__hash__  # that of Enum is a call of Python, for each look into a table

    DISPATCHED = "dispatched"  # its Predict is about to be written
    RETURNED = "returned"
    RAISED = "raised"  # the model, or a cause of our own
    CUT = "cut"  # it was cancelled, and the work has stopped


NEXT: Final[Mapping[Status, Mapping[Fact, Status]]] = {
    Status.STARTING: {Fact.DISPATCHED: Status.PROCESSING, Fact.RAISED: Status.FAILED, Fact.CUT: Status.CANCELED},
    Status.PROCESSING: {Fact.RETURNED: Status.SUCCEEDED, Fact.RAISED: Status.FAILED, Fact.CUT: Status.CANCELED},
    Status.SUCCEEDED: {},
    Status.FAILED: {},
    Status.CANCELED: {},
}
TERMINAL: Final = frozenset(status for status, row in NEXT.items() if not row)


class IllegalTransition(Exception):
    """A step that the table does not have: our own bug, never the worker's."""


class Blame(Enum):
    """Whose doing the end of a prediction is."""

    MODEL = auto()  # or of those who cancelled it
    WORKER = auto()  # it died, was killed, or broke the protocol
    LIMIT = auto()  # the time limit has passed
    SERVICE = auto()  # it could not be run: refused after a wait, no room on the disk, a bug of ours
    SERVICE_END = auto()  # the service was shut down


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended, once its slot is free or given up."""

    fact: Fact  # RETURNED, RAISED or CUT
    error: str | None = None  # of RAISED: one line, Type: text
    is_stream: bool = False  # of RETURNED: the output is an array, whatever the schema says
    blame: Blame = Blame.MODEL
    refusal: Exception | None = None  # it never began, because of this

    @property
    def ours(self) -> bool:
        """A cause of our own: it stands, also when a cancel was asked for."""
        return self.blame is not Blame.MODEL
