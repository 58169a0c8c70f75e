"""Which of several workers a line of the log is about.

The task that owns a worker says so once; all tasks below it inherit that, so none of them has to know its number.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

WORKER: Final[ContextVar[int | None]] = ContextVar("worker", default=None)
"""The number of the worker; None where there is one alone, and outside of the tasks of all."""


class WorkerLogFilter(logging.Filter):
    """Gives each line the field ``worker``, where that is known."""

    def filter(self, record: logging.LogRecord) -> bool:
        number = WORKER.get()
        if number is not None:
            record.worker = number
        return True
