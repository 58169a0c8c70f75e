"""A cancel of a sync run that is inside an event loop of its own: ``trio.run``, ``asyncio.run`` and the like.

Raised in the middle of the loop's own code it would end the loop there and then: tasks would lose their next step, and
no clean-up would run. So the loop is asked, thread-safely, and comes to it between two steps. trio cancels its main
task, which raises ``trio.Cancelled`` out of ``trio.run``. ``asyncio.run`` is left by the run's exception, and cancels
its tasks on the way out. Below a bare ``run_until_complete``, which cancels none, the tasks are cancelled here.

Only code of the user's that blocks the loop is interrupted in place. What is raised there is a KeyboardInterrupt too:
any other exception asyncio would keep as the result of a helper task, or log as the fault of a callback.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final, Protocol

import trio
from trio.lowlevel import currently_ki_protected

from cog_trio.worker.cancel.stack import STATEFUL_FILES, top_is_of

ABOVE_MAIN: Final = 2  # nurseries of trio's own around that of the main task
TRIO: Final = frozenset({"trio", "outcome"})
ASYNCIO: Final = frozenset({"asyncio", "selectors", "uvloop", "nest_asyncio"})
STATEFUL_FILES.add(__file__)


class CancelSource(Protocol):
    """What a loop asks of the gate."""

    exception: type[BaseException]

    def claim(self, run: int) -> bool:
        """Return whether a request waits for this run; if so it counts as delivered by the caller."""


class NestedLoop:
    """The loop that the current run may be in."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked = 0  # the run whose loop was asked last

    def ask(self, source: CancelSource, run: int) -> bool:
        """Ask the loop that is at work in this frame to cancel; on the main thread, in signal handlers too.

        Return False where the exception is to be raised here: where no loop is, or where one was asked, has not come
        to it by the next signal, and code of the user's is on top.
        """
        loop = _running_asyncio_loop()
        if loop is not None:
            if self._asked == run:
                return top_is_of(ASYNCIO)
            self._asked = run
            loop.call_soon_threadsafe(_end_asyncio, source, run, loop)
            return True
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:  # no loop of trio's runs in this thread
            return False
        if self._asked == run or (not currently_ki_protected() and not top_is_of(TRIO)):
            return False
        self._asked = run
        token.run_sync_soon(_cancel_main, source, run)
        return True

    def exception(self, kind: type[BaseException]) -> type[BaseException]:
        """Return what to raise in this frame for this kind of exception."""
        return kind if _running_asyncio_loop() is None else _passing_asyncio(kind)


def _cancel_main(source: CancelSource, run: int) -> None:
    root = trio.lowlevel.current_root_task()
    nurseries = [] if root is None else root.child_nurseries[ABOVE_MAIN:]
    if nurseries and source.claim(run):
        nurseries[0].cancel_scope.cancel()


def _end_asyncio(source: CancelSource, run: int, loop: Any) -> None:
    """Called by the loop, between two steps of its tasks."""
    if not source.claim(run):
        return
    entries = _entries(sys._getframe())
    if "run_until_complete" not in entries or "run" in entries:
        raise _passing_asyncio(source.exception)
    for task in sys.modules["asyncio"].all_tasks(loop):
        task.cancel()


def _running_asyncio_loop() -> Any:
    """Return the loop that runs in this thread, or None; without importing asyncio for models that do without."""
    events: Any = sys.modules.get("asyncio.events")
    return None if events is None else getattr(events, "_get_running_loop", _nothing)()  # half imported: none yet


def _nothing() -> None:
    """Return None."""


def _entries(frame: FrameType | None) -> set[str]:
    """Return the names of asyncio's functions on the stack: they say how its loop was entered."""
    names = set()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in ASYNCIO:
            names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def _passing_asyncio(kind: type[BaseException]) -> type[BaseException]:
    """Return the kind as an exception that asyncio lets through: it keeps all others for itself."""
    if issubclass(kind, KeyboardInterrupt):
        return kind
    return type(kind.__name__, (kind, KeyboardInterrupt), {"__module__": kind.__module__, "__doc__": kind.__doc__})
