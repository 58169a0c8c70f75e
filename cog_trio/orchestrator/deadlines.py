"""Why a worker or a run ends by a cause of our own: one fixed text each, in this one table.

``Deadlines`` are causes that wait for their time: many of them, by name, under the one scope of who waits for the
worker.
"""

from __future__ import annotations

import math
from typing import Final

import trio

# The worker ends.
DIED: Final = "Worker died: {}"  # how, as process.describe_exit says it
UNKILLABLE: Final = "Worker was killed but does not end"
SETUP_TIMED_OUT: Final = "Setup timed out after {:g} s"
BROKE_PROTOCOL: Final = "Worker broke the protocol: {}"  # of one slot, too: its run fails with this
OTHER_VERSION: Final = "Worker speaks version {} of the protocol, not version {}"
CLOSED_CONTROL: Final = "Worker closed its control channel"
NO_SOCKETS: Final = "The sockets of the slots can't be opened: {}"
FAILED: Final = "Worker failed: {}"
LEFT: Final = "Worker shut down unasked"
UNUSABLE: Final = "Worker has no usable slot left: {}"
DID_NOT_STOP: Final = "Worker killed: a canceled prediction did not stop within {:g} s"
OVERRAN: Final = "Worker killed: a prediction over its time limit did not stop within {:g} s"
SHUT_DOWN: Final = "Worker was shut down"

# A run ends.
TIMED_OUT: Final = "Prediction timed out after {:g} s"

# One slot is lost.
CLOSED_SLOT: Final = "Worker closed the socket of slot {}"

EOF_GRACE: Final = 1.0  # seconds between a channel's end and the kill: the dying close first, then their exit is seen


class Deadlines:
    """Deadlines, each with the cause that holds once it has passed; ``scope`` is cancelled by the first."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._due: dict[str | int, tuple[float, str]] = {}

    def set(self, name: str | int, seconds: float, cause: str) -> None:
        """From now on counted; the last one of a name stands."""
        self._due[name] = (trio.current_time() + seconds, cause)
        self.scope.deadline = self.first[0]

    def __contains__(self, name: str | int) -> bool:
        return name in self._due

    def lift(self, name: str | int) -> None:
        """A limit holds no longer; one that never did is not an error."""
        if self._due.pop(name, None) is not None:
            self.scope.deadline = self.first[0]

    @property
    def first(self) -> tuple[float, str]:
        """The earliest deadline and its cause."""
        return min(self._due.values(), default=(math.inf, ""))
