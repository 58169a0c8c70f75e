"""The heads of HTTP/1: requests read from bytes, replies written to bytes. No I/O.

Whatever two parsers could read in two ways is refused, so that nothing can be smuggled past a proxy in front. What
clients do and has one meaning only is tolerated: a missing Host, lines that end with a bare LF, and UTF-8 in a path
that is not percent-encoded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, TypeAlias

Headers: TypeAlias = "list[tuple[bytes, bytes]]"

MAX_CACHED: Final = 2 * 2**10  # bytes of a head that is remembered; those in use are shorter
CACHED: Final = 512  # heads
LISTS: Final = frozenset((b"connection", b"sec-websocket-extensions", b"sec-websocket-protocol"))  # read as ASCII
_SECRETS: Final = frozenset((b"authorization", b"proxy-authorization", b"cookie", b"sec-websocket-protocol"))
_SINGLE: Final = frozenset((b"host", b"content-length", b"transfer-encoding"))  # there may be one of them
_FRAMING: Final = _SINGLE | {b"connection", b"expect", b"upgrade"}
_REQUEST_LINE: Final = re.compile(rb"([-!#$%&'*+.^_`|~0-9a-zA-Z]+) ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])")
_NAME: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]")
_FIT_FOR_A_VALUE: Final = bytes(set(range(256)) - {0, 0x0B, 0x0C, 0x0D})
_FIT_FOR_A_REPLY: Final = bytes(set(range(256)) - {0, 0x0B, 0x0C})
_STATUS: Final = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
_COMMON: Final = (
    *("accept", "accept-encoding", "accept-language", "authorization", "connection", "content-length", "content-type"),
    *("cookie", "date", "expect", "host", "last-event-id", "origin", "prefer", "preference-applied", "referer"),
    *("traceparent", "tracestate", "transfer-encoding", "upgrade", "user-agent", "vary"),
)
_names: Final = {form.encode(): name.encode() for name in _COMMON for form in (name, name.title())}
_heads: Final[dict[bytes, RequestHead]] = {}


class Refused(Exception):
    """A request that is answered with ``status`` without the app, and then the connection is closed."""

    def __init__(self, status: int, *, bodiless: bool = False) -> None:
        super().__init__(status)
        self.status = status
        self.bodiless = bodiless  # it was a HEAD


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of one request."""

    method: str
    target: bytes
    version: str
    headers: Headers  # names in lower case; there is always a Host, if an empty one
    length: int = 0  # bytes of body that Content-Length announces
    chunked: bool = False
    closes: bool = False  # the client does not want the connection to be kept
    expects: bool = False  # the client sends its body after 100 Continue only
    websocket: bool = False
    notes: dict[str, Any] = field(default_factory=dict, compare=False)  # what others make of it, remembered with it


def read_head(head: bytes) -> RequestHead:
    """The head of a request, given without the line ends behind its last line.

    Clients repeat themselves, so heads are remembered by their bytes, up to a bound and never with a secret in them.

    Raises:
      Refused: if it is malformed.
    """
    known = _heads.get(head)
    if known is None:
        known = _parse(head)
        if len(head) <= MAX_CACHED and not any(name in _SECRETS for name, _ in known.headers):
            if len(_heads) >= CACHED:
                del _heads[next(iter(_heads))]  # the oldest
            _heads[head] = known
    return known


def _parse(head: bytes) -> RequestHead:
    first, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
    if not first.isascii():
        method, space, rest = first.partition(b" ")
        first = method + space + _NOT_ASCII.sub(lambda byte: b"%%%02X" % byte[0][0], rest)
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        raise Refused(400)
    method, target, version = request.groups()
    bodiless = method == b"HEAD"
    headers = [_field(line, bodiless) for line in lines]
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _FRAMING:
            if name in found and name in _SINGLE:
                raise Refused(501 if name == b"transfer-encoding" else 400, bodiless=bodiless)
            found[name] = value if name not in found else b"%b,%b" % (found[name], value)
    length, coding = found.get(b"content-length"), found.get(b"transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":
        raise Refused(501, bodiless=bodiless)
    if (
        not version.startswith(b"1.")
        or (length is not None and not (length.isdigit() and len(length) <= 20))
        or (coding is not None and (length is not None or version == b"1.0"))  # RFC 9112 6.1: attempts at smuggling
        or any(name in LISTS and not value.isascii() for name, value in headers)
    ):
        raise Refused(400, bodiless=bodiless)
    if b"host" not in found:
        headers.append((b"host", b""))
    options = _tokens(found.get(b"connection", b""))
    return RequestHead(
        method=method.decode(),
        target=target,
        version=version.decode(),
        headers=headers,
        length=int(length or 0),
        chunked=coding is not None,
        closes=b"close" in options or (version == b"1.0" and b"keep-alive" not in options),
        expects=version != b"1.0" and b"100-continue" in _tokens(found.get(b"expect", b"")),
        websocket=method == b"GET" and b"upgrade" in options and found.get(b"upgrade", b"").lower() == b"websocket",
    )


def _field(line: bytes, bodiless: bool) -> tuple[bytes, bytes]:
    raw, colon, value = line.partition(b":")
    name = _names.get(raw) or _lowered(raw)
    if name is None or not colon or value.translate(None, _FIT_FOR_A_VALUE):
        raise Refused(400, bodiless=bodiless)
    value = value.strip(b" \t")
    return name, value.lower() if name == b"transfer-encoding" else value


def _lowered(raw: bytes) -> bytes | None:
    """The lower-case form of a name, if it is one."""
    return raw.lower() if _NAME.fullmatch(raw) else None


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip() for token in value.lower().split(b",")]


def has_close(value: bytes) -> bool:
    """Whether a Connection header says that it is the last message."""
    return value != b"keep-alive" and b"close" in _tokens(value)


def render_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a reply, blank line included.

    Raises:
      ValueError: if a name or a value would be something else on the wire.
    """
    lines = [_STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        if not (name in _names or _lowered(name)):
            raise ValueError(f"not the name of a header: {name!r}")
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
