"""The gate of one thread that is not the main thread: when a cancel may be raised there, and how it gets there.

A signal reaches the main thread alone. Here the interpreter sets the exception in the thread, which raises it before
the next step of Python code; a call into C ends first. The rules are those of ``gate.py``: only while user frames run,
never inside ``runtime``, never below an import, once a run.

The exception is set by the I/O thread, at a moment when neither code of ours nor an import is on the thread's stack. It
is raised at the next entry into a Python function, so code of ours that is called then has done nothing yet.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from cog_trio.worker.cancel.gate import LOSERS, Gate, set_async_exc
from cog_trio.worker.cancel.stack import STATEFUL_FILES, is_unbreakable, lies_below

STATEFUL_FILES.add(__file__)


class _Runtime:
    """Our own code, called by user code in the thread."""

    __slots__ = ("_gate",)

    def __init__(self, gate: ThreadGate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.depth += 1

    def __exit__(self, *_: object) -> None:
        gate = self._gate
        gate.depth -= 1
        if gate.pending:
            gate.deliver()


class _UserCode:
    """User frames of the run."""

    __slots__ = ("_gate",)

    def __init__(self, gate: ThreadGate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        gate = self._gate
        gate.inside = True
        if gate.pending:
            try:
                gate.deliver()
            except BaseException:
                gate.inside = False
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._gate.inside = False


class ThreadGate:
    """Whether a cancel may be raised now in the thread that is between ``begin_run`` and ``end_run``.

    The thread changes all fields but ``requested`` and ``delivered``, which the I/O thread sets as well.
    """

    __slots__ = (
        "_main_gate",
        "_user",
        "current",
        "delivered",
        "depth",
        "exception",
        "inside",
        "requested",
        "runtime",
        "thread",
        "wake_fd",
    )

    def __init__(self, main_gate: Gate) -> None:
        self._main_gate = main_gate
        self._user = _UserCode(self)
        self.exception: Final = main_gate.exception
        self.runtime: Final[AbstractContextManager[None]] = _Runtime(self)
        self.wake_fd: Final = None  # a wait for room goes on until the parent has read
        self.thread = 0
        self.current = 0  # the run that owns the thread; 0: none
        self.requested = 0  # the run that was asked to end last
        self.delivered = 0  # the run that has got its one delivery
        self.depth = 0  # calls of ours on the stack
        self.inside = False  # user frames are on the stack

    @property
    def forked(self) -> bool:
        """This process is a child that user code forked."""
        return self._main_gate.forked

    @property
    def pending(self) -> bool:
        """The run was asked to end and has not got its delivery."""
        return self.requested == self.current != self.delivered and not self.forked

    # In the thread

    def begin_run(self, run: int) -> None:
        """A run takes the calling thread; no user frame is on the stack yet."""
        self.thread = threading.get_ident()
        self.inside = False
        self.depth = 0
        self.current = run
        self._main_gate.threads[self.thread] = self

    def close(self) -> None:
        """Its user code has come to its end."""
        self.inside = False

    def end_run(self) -> None:
        """The run has left. A cancel that was set and not raised yet is taken back."""
        run, self.current = self.current, 0
        self.inside = False
        if self.delivered == run:
            set_async_exc(ctypes.c_ulong(self.thread), ctypes.py_object())
        self._main_gate.threads.pop(self.thread, None)

    def user_code(self, run: int) -> AbstractContextManager[None]:
        """Around every entry into user frames; raises the cancel when one is due."""
        return self._user

    def claim(self, run: int) -> bool:
        """Whether a request waits for this run; if so it counts as delivered, by the caller's own hand."""
        if not self.pending:
            return False
        self.delivered = run
        return True

    def deliver(self) -> None:
        """Raise what is due, if user frames may be interrupted here."""
        if self.depth or not self.inside or _is_no_place(sys._getframe(1)):
            return
        self.delivered = self.current
        raise self.exception

    def lost(self, kind: type[BaseException]) -> bool:
        """Whether this was the delivery to the current run, swallowed by a finalizer; it is due again."""
        if not issubclass(kind, self.exception) or not self.current or self.delivered != self.current:
            return False
        self.delivered = 0
        return True

    # I/O thread

    def request(self, run: int) -> None:
        """Raise the cancel in this run, now or as soon as it may be; to be repeated until the run has ended."""
        self.requested = run
        if self.current != run or self.delivered == run or _is_no_place(sys._current_frames().get(self.thread)):
            return
        raise_there, thread, exception = set_async_exc, ctypes.c_ulong(self.thread), ctypes.py_object(self.exception)
        # No call stands between the look and the deed: the interpreter may change threads after one.
        if self.current == run and self.inside and not self.depth and self.delivered != run:
            self.delivered = run
            raise_there(thread, exception)


def _is_no_place(frame: object) -> bool:
    return is_unbreakable(frame) or lies_below(frame, LOSERS)  # type: ignore[arg-type]
