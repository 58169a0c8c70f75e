"""A cancel of a sync run that is inside of ``trio.run``: it goes through that loop, as a cancel of its main task.

Raised in the middle of trio's own code it would end the loop there and then, and no clean-up of the tasks would run.
Frames of the user's own below ``trio.run`` are interrupted as everywhere. ``trio.run`` raises ``trio.Cancelled`` then,
as of any main task that lets one out. (``asyncio.run`` needs nothing of the kind: it cancels its tasks on the way out.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import currently_ki_protected

from cog_trio.worker.cancel.stack import STATEFUL_FILES, top_is_trio

if TYPE_CHECKING:
    from cog_trio.worker.cancel.gate import Gate

ABOVE_MAIN: Final = 2  # nurseries of trio's own around that of the main task
STATEFUL_FILES.add(__file__)


class NestedLoop:
    """The loop that the current run may be in."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked = 0  # the run whose loop was asked last

    def ask(self, gate: Gate, run: int) -> bool:
        """Have the loop that is at work in this frame cancel its main task; on the main thread, in signal handlers too.

        False where none is, or where one was asked and has not come to it by the next signal: it is at its end, or
        deaf, and the exception is to be raised here.
        """
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:  # no loop of trio's runs in this thread
            return False
        if self._asked == run or (not currently_ki_protected() and not top_is_trio()):
            return False
        self._asked = run
        token.run_sync_soon(_cancel_main, gate, run)
        return True


def _cancel_main(gate: Gate, run: int) -> None:
    root = trio.lowlevel.current_root_task()
    nurseries = [] if root is None else root.child_nurseries[ABOVE_MAIN:]
    if nurseries and gate.claim(run):
        nurseries[0].cancel_scope.cancel()
