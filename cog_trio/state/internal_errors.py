"""What contains a fault of our own code, so that it costs one thing and not the server.

Each unit of work for one prediction, receiver, check or connection runs inside ``contain``, be it a task of its own or
one turn of a task that serves many. An exception that nobody foresaw is logged with its traceback, counted, and turned
into the failure of exactly that thing. The code that owns the state of all (the service's own steps, the accept loop)
does not use it: a fault there must end the service, by name.

Faults are counted for the process, as the log is: they are faults of the program, whichever service meets them.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Final, final

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

log: Final = logging.getLogger("cog_trio.internal")

INTERNAL_ERROR: Final = "InternalError: the service failed here; its log says how"


class Where(Enum):
    """The kind of work that failed; the values of the label of ``cog_internal_errors_total``."""

    RUN = "run"  # the task of a prediction, or the turn of a slot's task
    SLOT = "slot"  # a message of a slot
    WORKER = "worker"  # the task of one worker
    SCHEMA = "schema"  # compiling the model's schema
    HEALTH_CHECK = "health_check"
    OUTPUT_FILE = "output_file"  # reading or uploading one
    WEBHOOK = "webhook"
    WATCHER = "watcher"  # the grace of a prediction whose last follower has left
    RELOAD = "reload"
    FILES = "files"  # temporary folders and the readiness file
    CONNECTION = "connection"
    REQUEST = "request"


counts: Final[Counter[Where]] = Counter(dict.fromkeys(Where, 0))


@final
class contain:
    """Contain unforeseen exceptions of a ``with`` block, which may wait.

    An ``Exception``, also a ``RecursionError``, a ``MemoryError`` or a group of such, is logged, counted, and ends
    here, after ``fail`` was called with ``INTERNAL_ERROR``. ``Cancelled``, ``KeyboardInterrupt`` and their like pass,
    also out of a group, whose other members are contained. What ``fail`` raises leaves the block.

    Args:
      where: for the count and the log.
      fail: makes the one thing fail that the block works for; called once, synchronously.
      id: of the prediction, for the log.

    ``failed`` tells afterwards whether something was contained.
    """

    def __init__(self, where: Where, fail: Callable[[str], object] | None = None, *, id: str | None = None) -> None:
        self.failed = False
        self._where = where
        self._fail = fail
        self._id = id

    def __enter__(self) -> contain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        fault, rest = _split(error)
        if fault is not None:
            self.failed = True
            counts[self._where] += 1
            try:
                if self._fail is not None:
                    self._fail(INTERNAL_ERROR)
            finally:
                extra = {} if self._id is None else {"id": self._id}
                with suppress(Exception):  # without the memory for a log line: it is counted, and must go no further
                    text = "internal error (%s): %s"
                    log.error(text, self._where.value, describe_error(fault), exc_info=fault, extra=extra)
            if rest is not None:
                raise rest from None
        return fault is not None


def describe_error(error: BaseException) -> str:
    """Return an error as one line for the log: of a group its only member, and control characters escaped."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".encode("unicode_escape").decode("ascii")


def _split(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """What is to be contained, and what must pass."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(Exception)
    return (error, None) if isinstance(error, Exception) else (None, error)
