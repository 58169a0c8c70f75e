"""The heads of plain HTTP/1: requests read from bytes, replies written to bytes. No I/O.

What is plain is said by a list of what is allowed, never of what is forbidden: printable ASCII, CRLF at each end of
a line, a known method, names that are tokens, one Host at most, and a body that is announced by one Content-Length or
not at all. Of such a head no two parsers think differently. All others (chunked bodies, ``Expect``, ``Upgrade``, bytes
beyond ASCII, whatever is malformed) are ``None`` here, and h11 decides about them, refusals included.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias

Headers: TypeAlias = "list[tuple[bytes, bytes]]"

MAX_NAMES: Final = 1000  # of headers that are remembered as valid; clients have few, and a bound is a bound
_REQUEST_LINE: Final = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ([\x21-\x7e]+) HTTP/(1\.[01])")
_NAME: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_PLAIN: Final = bytes(range(0x20, 0x7F)) + b"\t\r\n"
_FIT_FOR_A_REPLY: Final = bytes(set(range(256)) - {0, 0x0B, 0x0C})
_FRAMING: Final = frozenset((b"host", b"content-length", b"connection", b"transfer-encoding", b"expect", b"upgrade"))
_STATUS: Final = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
_names: Final[dict[bytes, bytes]] = {}


class RequestHead(NamedTuple):
    method: str
    target: bytes
    version: str
    headers: Headers  # names in lower case; there is always a Host, if an empty one
    length: int  # bytes of body
    closes: bool  # whether the client wants the connection closed


def parse(head: bytes) -> RequestHead | None:
    """A head without the blank line at its end, if it is plain."""
    if head.translate(None, _PLAIN):
        return None
    first, *lines = head.split(b"\r\n")
    if head.count(b"\r") != len(lines) or head.count(b"\n") != len(lines):
        return None
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        return None
    method, target, version = request.groups()
    headers = []
    length = host = None
    closes = version == b"1.0"
    for line in lines:
        raw, colon, value = line.partition(b":")
        name = _names.get(raw) or _learn(raw)
        if name is None or not colon:
            return None
        value = value.strip(b" \t")
        headers.append((name, value))
        if name in _FRAMING:
            if name == b"host" and host is None:
                host = value
            elif name == b"content-length" and length is None and value.isdigit() and len(value) <= 18:
                length = int(value)
            elif name == b"connection":
                closes = closes or has_close(value)
            else:
                return None
    if host is None:
        headers.append((b"host", b""))
    return RequestHead(method.decode(), target, version.decode(), headers, length or 0, closes)


def _learn(raw: bytes) -> bytes | None:
    """The lower-case form of a name, if it is one."""
    if _NAME.fullmatch(raw) is None:
        return None
    name = raw.lower()
    if len(_names) < MAX_NAMES and len(raw) <= 64:
        _names[raw] = name
    return name


def has_close(value: bytes) -> bool:
    """Whether a Connection header says that it is the last message."""
    return value != b"keep-alive" and b"close" in [token.strip() for token in value.lower().split(b",")]


def render(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a reply, blank line included.

    Raises:
      ValueError: if a name or a value would be something else on the wire.
    """
    lines = [_STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        if not (name in _names or _learn(name)):
            raise ValueError(f"no name of a header: {name!r}")
        lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"\r\n")
    head = b"".join(lines)
    if head.count(b"\r") != len(lines) or head.count(b"\n") != len(lines) or head.translate(None, _FIT_FOR_A_REPLY):
        raise ValueError("a header with a line end or a control character in it")
    return head


class Clock:
    """The Date header, made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._date = b""

    def date(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._date = formatdate(now, usegmt=True).encode()
        return self._date


clock: Final = Clock()
