"""Cuts one stream of user text into the pieces that travel, without I/O and without locks.

Text is given out at each newline and each carriage return, many lines in one piece when they came together. What
stands after the last of them waits for more, for ``flush``, or for 64 KiB. Bytes are decoded as they come, a
character that straddles two writes is whole. No piece has more than 64 Ki characters, so it is far below
``MAX_LOG_PIECE`` however it is escaped. A line over ``MAX_LOG_LINE`` is cut and ends in ``TRUNCATED``;
nothing else is ever left out, changed or put in another order.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Final

from cog_trio.bridge.protocol import MAX_LOG_LINE, TRUNCATED

PIECE: Final = 64 * 2**10  # characters; 6 bytes each when all are escaped, so 384 KiB at most
_UNCUT: Final = MAX_LOG_LINE - len(TRUNCATED)  # bytes of a line that may go before its length is known
_END: Final = re.compile(r"[\r\n]")
_new_decoder: Final = codecs.getincrementaldecoder("utf-8")


class LineSplitter:
    """One stream's text on its way."""

    __slots__ = ("_cut", "_decoder", "_held", "_parts", "_sent", "_size")

    def __init__(self) -> None:
        self._parts: list[str] = []  # waiting for the end of their line
        self._size = 0  # characters in them
        self._sent = 0  # bytes of the present line that are out
        self._held = ""  # its characters from _UNCUT on, until its length is known
        self._cut = False  # it was over the limit: the rest of it is left out
        self._decoder: codecs.IncrementalDecoder | None = None

    @property
    def waiting(self) -> bool:
        """``flush`` would give something."""
        return bool(self._parts)

    @property
    def clean(self) -> bool:
        """Nothing is kept: a fresh one would do the same."""
        return not (self._parts or self._sent or (self._decoder is not None and self._decoder.getstate()[0]))

    def feed(self, text: str) -> Sequence[str]:
        """What can go now. Lone surrogates, which no JSON can hold, become backslash escapes."""
        if not text.isascii():
            text = _clean(text)
        size = self._size + len(text)
        if size <= PIECE:
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            if not end:
                if text:
                    self._parts.append(text)
                    self._size = size
                return ()
            if not self._sent:
                parts = self._parts
                if end == len(text):
                    if not parts:
                        return (text,)
                    parts.append(text)
                    self._parts = []
                    self._size = 0
                else:
                    parts.append(text[:end])
                    self._parts = [text[end:]]
                    self._size = len(text) - end
                return ("".join(parts),)
        return self._feed_long(text)

    def feed_bytes(self, data: bytes) -> Sequence[str]:
        """The same for UTF-8; what is none becomes U+FFFD."""
        if self._decoder is None:
            self._decoder = _new_decoder("replace")
        return self.feed(self._decoder.decode(data))

    def flush(self) -> Sequence[str]:
        """What waits for the end of its line."""
        if not self._parts:
            return ()
        text = self._take()
        if not self._sent:
            self._sent = len(text.encode())
            return (text,)
        return self._extend(text)

    def finish(self) -> Sequence[str]:
        """All that is left; what comes afterwards begins a new line."""
        if not (self._parts or self._sent or self._held or self._decoder is not None):
            return ()  # as a rule
        pieces: list[str] = []
        if self._decoder is not None:
            pieces += self.feed(self._decoder.decode(b"", final=True))
            self._decoder = None
        pieces += self.flush()
        if self._held:
            pieces.append(self._held)
        self._new_line()
        return pieces

    def _take(self) -> str:
        text = "".join(self._parts)
        self._parts = []
        self._size = 0
        return text

    def _new_line(self) -> None:
        self._sent = 0
        self._held = ""
        self._cut = False

    def _feed_long(self, text: str) -> list[str]:
        """Inside a line that has begun to go out, or text that is more than one piece."""
        text = self._take() + text
        pieces: list[str] = []
        place = 0
        while place < len(text):
            window = text[place : place + PIECE]
            if not self._sent:
                end = max(window.rfind("\n"), window.rfind("\r")) + 1
                if end:
                    pieces.append(window[:end])
                    place += end
                    continue
            end_of_line = _END.search(window)
            if end_of_line is None:
                place += len(window)
                if len(window) < PIECE:  # the rest of the text
                    self._parts = [window]
                    self._size = len(window)
                else:
                    pieces += self._extend(window)
            else:
                place += end_of_line.end()
                line = "".join(self._extend(window[: end_of_line.start()]))
                pieces.append(line + self._held + end_of_line.group())
                self._new_line()
        return pieces

    def _extend(self, text: str) -> Sequence[str]:
        """More of the line that is going out, as far as it may go; at most one piece of text, without its end."""
        if self._cut or not text:
            return ()
        size = len(text.encode())
        if not self._held and self._sent + size <= _UNCUT:
            self._sent += size
            return (text,)
        data = (self._held + text).encode()
        room = _UNCUT - self._sent
        if self._sent + len(data) > MAX_LOG_LINE:
            self._held = ""
            self._cut = True
            self._sent += room
            return (data[:room].decode(errors="ignore") + TRUNCATED,)
        go = data[:room].decode(errors="ignore")
        self._held = data[len(go.encode()) :].decode()
        self._sent += len(go.encode())
        return (go,) if go else ()


def _clean(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
