"""Text that grows and is bounded: the logs of one prediction, the logs of setup.

Pieces are appended as they come and joined when somebody looks; the join is kept, so that looking often at a
long text does not copy it each time it has not grown. What goes beyond the limit is counted and dropped, and
one mark says so in the text itself. A limit of 0 keeps nothing but the mark.
"""

from __future__ import annotations

from cog_trio.bridge.protocol import logs_truncated


class BoundedText:
    """Bounded text; ``limit`` in bytes of UTF-8, the mark not counted."""

    __slots__ = ("_limit", "_pieces", "dropped", "dropped_lines", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[str] = []
        self.size = 0  # bytes kept
        self.dropped = 0  # bytes that came after the limit was reached
        self.dropped_lines = 0  # at least one, if bytes were dropped

    def append(self, data: str) -> str:
        """Add a piece; only what fits is kept, cut between characters. Gives what the text has grown by."""
        size = len(data) if data.isascii() else len(data.encode("utf-8", "surrogatepass"))
        if self.size + size <= self._limit and not self.dropped:
            self._pieces.append(data)
            self.size += size
            return data
        return self._overflow(data, size)

    def _overflow(self, data: str, size: int) -> str:
        grown = ""
        if not self.dropped:
            room = self._limit - self.size
            head = data.encode("utf-8", "surrogatepass")[:room].decode("utf-8", "ignore")
            kept = len(head.encode())
            data = data[len(head) :]
            self.dropped_lines = 0 if data.count("\n") else 1
            grown = f"{head}\n{logs_truncated(self._limit)}\n"
            self._pieces.append(grown)
            self.size += kept
            size -= kept
        self.dropped += size
        self.dropped_lines += data.count("\n")
        return grown

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""
