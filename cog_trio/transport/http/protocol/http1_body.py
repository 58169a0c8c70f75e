"""The body of one HTTP/1 request as it comes in: where it ends, and how slowly it may come. No I/O.

A body is announced by a length or comes in chunks. Both take bytes of the connection and return the bytes of the body
and what follows them.

A body has to make progress within the header timeout, and must not trickle on for ever. A client that sends a byte now
and then always makes progress, so a body as a whole gets ten times the header timeout, and on top of that the time that
its bytes would take at 500 a second. What we make the client wait for does not count.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from cog_trio.transport.http.protocol.http1_head import Refused

PATIENCE: Final = 10  # header timeouts that any body gets
SLOWEST: Final = 500  # bytes a second
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[^\n]*)?[ \t]*")
_END: Final = re.compile(rb"(?:^|\n)\r?\n")
_TRAILER: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+:[^\x00\x0b\x0c\r\n]*")


class RequestBody(Protocol):
    """The body of one request."""

    @property
    def whole(self) -> bool: ...
    @property
    def left(self) -> int: ...  # bytes that are sure to come
    def take(self, data: bytes) -> tuple[bytes, bytes]: ...


class SizedBody:
    """A body of a known length."""

    __slots__ = ("left",)

    def __init__(self, length: int) -> None:
        self.left = length

    @property
    def whole(self) -> bool:
        return not self.left

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """What belongs to the body, and what follows it."""
        if len(data) <= self.left:
            self.left -= len(data)
            return data, b""
        piece, rest = data[: self.left], data[self.left :]
        self.left = 0
        return piece, rest


class ChunkedBody:
    """A body in chunks; extensions and trailers are dropped. ``limit``: bytes of a line, or of all trailers."""

    __slots__ = ("_after_chunk", "_held", "_in_trailers", "_limit", "left", "whole")

    def __init__(self, limit: int) -> None:
        self.left = 0  # bytes of the chunk that is coming in
        self.whole = False
        self._limit = limit
        self._held = b""  # the beginning of a line
        self._after_chunk = False  # the line end of a chunk is what comes next
        self._in_trailers = False

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """What belongs to the body, and what follows it.

        Raises:
          Refused: if it is malformed, or a line is too long.
        """
        data, self._held = self._held + data, b""
        pieces: list[bytes] = []
        place = 0
        while not self.whole:
            if self.left:
                piece = data[place : place + self.left]
                pieces.append(piece)
                place += len(piece)
                self.left -= len(piece)
                self._after_chunk = True
            after = self._read_line(data, place)
            if after is None:
                self._held = data[place:]
                break
            place = after
        return b"".join(pieces), data[place:] if self.whole else b""

    def _read_line(self, data: bytes, place: int) -> int | None:
        """Read what stands between two chunks, or behind the last; where that ends, or None if it is not all here."""
        if self.left:
            return None
        if self._after_chunk:
            end = data[place : place + 2]
            if not b"\r\n".startswith(end):
                raise Refused(400)
            if len(end) < 2:
                return None
            self._after_chunk = False
            return place + 2
        if self._in_trailers:
            found = _END.search(data[place:])
            if found is None:
                self._check_limit(data, place)
                return None
            lines = data[place : place + found.start()].replace(b"\r\n", b"\n").removesuffix(b"\r").split(b"\n")
            if found.start() and not all(map(_TRAILER.fullmatch, lines)):
                raise Refused(400)
            self.whole = True
            return place + found.end()
        end_of_line = data.find(b"\r\n", place)
        if end_of_line < 0:
            self._check_limit(data, place)
            return None
        chunk = _CHUNK.fullmatch(data, place, end_of_line)
        if chunk is None:
            raise Refused(400)
        self.left = int(chunk[1], 16)
        self._in_trailers = not self.left
        return end_of_line + 2

    def _check_limit(self, data: bytes, place: int) -> None:
        if len(data) - place > self._limit:
            raise Refused(431)


class BodyRate:
    """How fast one body comes; times in seconds."""

    __slots__ = ("_began", "_last", "_received", "_timeout")

    def __init__(self, now: float, timeout: float) -> None:
        self._began = self._last = now
        self._received = 0
        self._timeout = timeout

    def add(self, now: float, size: int) -> None:
        """Some bytes came."""
        self._last = now
        self._received += size

    def excuse(self, now: float) -> None:
        """Since then it was us who did not read."""
        self._began += now - self._last
        self._last = now

    @property
    def deadline(self) -> float:
        """Until when the next bytes must be here."""
        whole = self._began + PATIENCE * self._timeout + self._received / SLOWEST
        return min(self._last + self._timeout, whole)
