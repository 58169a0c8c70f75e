"""Deliveries that code which looks for signals has swallowed: where they must not be raised, and who hears of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cog_trio.worker.cancel.stack import STATEFUL_FILES

if TYPE_CHECKING:
    from cog_trio.worker.cancel.gate import Gate

STATEFUL_FILES.add(__file__)


class Unraisable:
    """``sys.unraisablehook`` that tells the gate of a swallowed delivery, and passes on the rest."""

    def __init__(self, gate: Gate, inner: Callable[[Any], object]) -> None:
        self._gate = gate
        self._inner = inner

    def __call__(self, unraisable: Any) -> None:
        gate = self._gate
        gate.depth += 1
        try:
            if not gate.lost(unraisable.exc_type):
                self._inner(unraisable)
        finally:
            gate.depth -= 1


LOSERS: Final = frozenset(
    {
        Unraisable.__call__.__code__,
        socket.socket.__repr__.__code__,  # called by the finalizer, which drops what it raises without a word
    }
)
"""What is raised below them is lost."""
