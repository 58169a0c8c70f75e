"""Signal handlers of user code, kept out of ours.

A handler runs in the main thread wherever that is: an alarm that a run left behind comes while we wait for the next
one, or write the end of the last. What it raises there would end the worker; and a ``TimeoutError`` that it raises
inside a ``write`` of ours is an OSError, by which the socket would be taken for broken. So ``signal.signal`` is
wrapped: the handlers it sets are called as ever, and what they raise while no user frame is on top is kept for the
code that was on its way to one, which gets it as soon as it goes on; where there is none it is told to the log and
dropped.

``signal.getsignal`` and the results of ``signal.signal`` name the user's handlers, never ours.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from cog_trio.worker.cancel import Gate

_MARK: Final = "__cog_trio_guards_handlers__"


class _Guarded:
    """A handler in its guard."""

    __slots__ = ("gate", "handler", "report")

    def __init__(self, handler: Callable[..., Any], gate: Gate, report: Callable[[BaseException], None]) -> None:
        self.handler = handler
        self.gate = gate
        self.report = report

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.gate.exposed:
            self.handler(signum, frame)
            return
        try:
            self.handler(signum, frame)
        except BaseException as error:  # noqa: BLE001  it is the user's, and we are not to get it
            if not self.gate.owe(error):
                self.report(error)


def guard(gate: Gate, report: Callable[[BaseException], None]) -> None:
    """Wrap both functions, once; handlers that are set by then stay as they are."""
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


def _bare(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Guarded) else handler
