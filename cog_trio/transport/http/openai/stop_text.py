"""Stop texts in a stream: the text ends where the first of them is complete, however it comes in pieces.

Nothing of a stop text is ever shown. What may become one is held until that is decided; all else is shown at once.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Takes a text in pieces and gives what may be shown.

    Args:
      stops: the stop texts; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(filter(None, stops))
        self._held = ""
        self.found = False
        """A stop text was complete: nothing more is shown."""

    def feed(self, piece: str) -> str:
        """Return what may be shown now."""
        if self.found:
            return ""
        text = self._held + piece
        complete = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if complete:
            self.found, self._held = True, ""
            return text[: min(complete)[1]]  # the first that ends; of those that end there, the one that began first
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Return what was held: the text has ended, and it did not become a stop text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that is the beginning of a stop text, and not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
