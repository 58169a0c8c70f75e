"""`cog.server.exceptions` of older releases."""

from cog_trio.sdk.exceptions import CancelationException

__all__ = ["CancelationException", "FatalWorkerException", "InvalidStateException"]


class FatalWorkerException(Exception):
    """The worker can't go on."""


class InvalidStateException(Exception):
    """Not possible in the present state."""
