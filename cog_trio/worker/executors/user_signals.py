"""Signal handlers of user code, kept out of ours.

A handler runs in the main thread wherever that is: an alarm that a run left behind comes while we wait for the next
one, or write the end of the last. What it raises there would end the worker; and a ``TimeoutError`` that it raises
inside a ``write`` of ours is an OSError, by which the socket would be taken for broken. So ``signal.signal`` is
wrapped: the handlers it sets are called as ever, and what they raise while no user frame is on top is kept for the
code that was on its way to one, which gets it as soon as it goes on; where there is none it is told to the log and
dropped. An alarm that comes again and again would find every gap between two lines of ours, so it is not enough that
a flag says "user code": the very frame that is interrupted must not be one of those that keep the flags, nor may it
lie below a handler that is just finding that out (``gate.judging``).

``signal.getsignal`` and the results of ``signal.signal`` name the user's handlers, never ours.

Timers are wrapped as well: one that runs have set and left behind ends when no run is left, since nobody is there who
expects it. Which of several async runs a timer belongs to is not known: whatever task is at work when it rings gets it,
as in any asyncio program.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from cog_trio.worker.cancel.gate import Gate
from cog_trio.worker.cancel.stack import HANDLERS, STATEFUL_FILES, STATELESS

_MARK: Final = "__cog_trio_guards_handlers__"


class _Guarded:
    """A handler in its guard."""

    __slots__ = ("gate", "handler", "report")

    def __init__(self, handler: Callable[..., Any], gate: Gate, report: Callable[[BaseException], None]) -> None:
        self.handler = handler
        self.gate = gate
        self.report = report

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        gate = self.gate
        nested, gate.judging = gate.judging, True
        try:
            theirs = not nested and gate.exposed(frame)
        finally:
            gate.judging = nested
        if theirs:
            self.handler(signum, frame)
            return
        try:
            self.handler(signum, frame)
        except BaseException as error:  # noqa: BLE001  it is the user's, and we are not to get it
            gate.judging = True
            try:
                if not gate.owe(error):
                    self.report(error)
            finally:
                gate.judging = nested


def guard(gate: Gate, report: Callable[[BaseException], None]) -> None:
    """Wrap the functions, once; handlers that are set by then stay as they are."""
    set_handler, get_handler = signal.signal, signal.getsignal
    if hasattr(set_handler, _MARK):
        return

    @functools.wraps(set_handler)
    def guarded_signal(signalnum: Any, handler: Any) -> Any:
        return _bare(set_handler(signalnum, _Guarded(handler, gate, report) if callable(handler) else handler))

    @functools.wraps(get_handler)
    def guarded_getsignal(signalnum: Any) -> Any:
        return _bare(get_handler(signalnum))

    setattr(guarded_signal, _MARK, True)
    signal.signal = guarded_signal
    signal.getsignal = guarded_getsignal
    _keep_no_state(guarded_signal, guarded_getsignal, _bare)
    STATEFUL_FILES.add(__file__)
    HANDLERS.add(_Guarded.__call__.__code__)
    _watch_timers()


class RunTimers:
    """The timers that runs have set. All methods are for the main thread."""

    def __init__(self) -> None:
        self._runs = 0  # that are running
        self._set: set[int] = set()  # kinds of timers that were set last while one was

    def begin_run(self) -> None:
        self._runs += 1

    def end_run(self) -> None:
        """Stop the timers that runs have left behind, if this was the last one."""
        self._runs -= 1
        if not self._runs and self._set:
            for which in list(self._set):
                signal.setitimer(which, 0)  # which is noted as ours

    def note(self, which: int) -> None:
        """A timer is set; one that is set outside of runs is the model's, to go on for the worker's life."""
        if self._runs:
            self._set.add(which)
        else:
            self._set.discard(which)


timers: Final = RunTimers()


def _watch_timers() -> None:
    set_timer, set_alarm = signal.setitimer, signal.alarm

    @functools.wraps(set_timer)
    def watched_setitimer(which: Any, *times: Any) -> Any:
        timers.note(which)
        return set_timer(which, *times)

    @functools.wraps(set_alarm)
    def watched_alarm(seconds: Any) -> Any:
        timers.note(signal.ITIMER_REAL)
        return set_alarm(seconds)

    signal.setitimer = watched_setitimer
    signal.alarm = watched_alarm
    _keep_no_state(watched_setitimer, watched_alarm, RunTimers.note)


def _keep_no_state(*functions: Any) -> None:
    """A signal that comes inside of these finds user code on top: they are called by it, and hold nothing half done."""
    STATELESS.update(function.__code__ for function in functions)


def _bare(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Guarded) else handler
