"""Why a worker or a run ends by a cause of our own: one fixed text each, in this one table (D14)."""

from __future__ import annotations

from typing import Final

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
SHUT_DOWN: Final = "Worker was shut down"

# One slot is lost.
CLOSED_SLOT: Final = "Worker closed the socket of slot {}"
NOT_IDLE: Final = "Worker did not free slot {} within {:g} s"
NOT_READ: Final = "Worker does not read slot {}"
