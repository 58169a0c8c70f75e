"""Mutual exclusion that never waits: one thread at a time does the work, who comes meanwhile leaves his to it.

User code reaches our writers from anywhere: from threads, but also from a ``__del__`` or a signal handler that
prints while the very thread that it interrupts is printing. A lock that is waited for would sooner or later be
waited for by the thread that holds it, or by two that hold one each. So work is put into a queue first, by one
atomic append, and then ``take`` is tried, in a loop that looks at the queue again after each turn: whoever has the
turn sees what was put there before he gave it back, and what comes later finds it free.

A turn is also never lost to an exception that comes from outside: the interpreter runs signal handlers after calls,
so taking is one call inside of ``try``, and giving back is not a call.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident


class TryLock:
    """Whose turn it is: one key, set to a thread by ``dict.setdefault``, which is atomic."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: dict[int, int] = {}

    @property
    def mine(self) -> bool:
        """A frame below, on this thread, has the turn."""
        return self._holder.get(0) == get_ident()

    @property
    def free(self) -> bool:
        """Nobody has the turn."""
        return not self._holder

    def run_exclusively(self, work: Callable[[], object]) -> bool:
        """Do the work, unless another thread or a frame below has the turn; whether it was done."""
        holder = self._holder
        if holder:
            return False
        me = get_ident()
        try:
            if holder.setdefault(0, me) != me:
                return False
            work()
            return True
        finally:
            if 0 in holder and holder[0] == me:
                del holder[0]
