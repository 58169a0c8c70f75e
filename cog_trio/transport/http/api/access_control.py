"""Who may ask, and how much: the rules for Origin and Host, the bearer token, and the limit on bodies.

A page from anywhere can make a browser send requests to a server on the same machine. So a request that names an
Origin must come from our own host or from one of ``--cors-origin``, unless it only reads; and a server that is
bound to loopback answers to loopback names only, so that no foreign name can be made to point at it.

With ``--auth-token`` a request has to carry that token, whichever protocol it comes by; what is open to all says so in
its route. A WebSocket of a browser can set no header, so there the token may also come as a subprotocol,
``bearer.<token>``, percent-encoded where a subprotocol could not hold it. A browser gives the socket up if none of its
subprotocols is answered: so ``cog-trio`` is, if that was offered too, and else the one with the token.

A body is read whole, up to the limit. What is over it is refused as soon as that is known: by Content-Length,
before anything is read. The connection sees to the rest of it (``http1.py``).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from cog_trio.config.settings import Settings
from cog_trio.transport.http.api.request_headers import remembered

_READS: Final = ("GET", "HEAD")
_PORTS: Final = {"http": ":80", "https": ":443"}
FOREIGN_ORIGIN: Final = "This origin may not use this server. --cors-origin allows it."
PROTOCOL: Final = "cog-trio"  # the subprotocol of a WebSocket
_BEARER: Final = b"bearer."  # before the token, in one
MAX_UNREAD: Final = 64 * 2**10  # bytes of a body that are read and dropped for one who may not ask
UNAUTHORIZED: Final = "This server asks for a bearer token: Authorization: Bearer <token>"
FOREIGN_HOST: Final = "This server answers to loopback names only."


class ClientGone(Exception):
    """The client left before its request was whole."""


class TooLarge(Exception):
    """The body is over the limit."""


class AccessControl:
    """The rules of one server."""

    def __init__(self, settings: Settings, *, loopback: bool) -> None:
        self._origins = {origin.lower().rstrip("/").encode() for origin in settings.cors_origins}
        self._loopback = loopback
        self.renew_token(settings)

    def renew_token(self, settings: Settings) -> None:
        """Take the token of these settings from now on."""
        self._token = None if settings.auth_token is None else settings.auth_token.encode()

    def is_known(self, headers: dict[bytes, bytes], *, websocket: bool = False) -> bool:
        """Whether the request carries the token, if one is asked for."""
        if self._token is None:
            return True
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(b" \t"), self._token):
            return True
        if not websocket:
            return False
        offered = [name.strip(b" \t") for name in headers.get(b"sec-websocket-protocol", b"").split(b",")]
        tokens = [unquote_to_bytes(name[len(_BEARER) :]) for name in offered if name.startswith(_BEARER)]
        return any(hmac.compare_digest(token, self._token) for token in tokens)

    def refusal(self, method: str, headers: dict[bytes, bytes]) -> str | None:
        """Why this request may not be answered, if so."""
        host = headers.get(b"host")
        if self._loopback and host and not is_loopback_name(host):
            return FOREIGN_HOST
        origin = headers.get(b"origin")
        if origin is not None and method not in _READS and not (self.allows(origin) or is_own(origin, host)):
            return FOREIGN_ORIGIN
        return None

    def allows(self, origin: bytes) -> bool:
        """Whether pages of this origin were allowed by setting."""
        return origin.lower() in self._origins

    def cors(self, headers: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that let a page of an allowed origin read the reply."""
        if not self._origins or (origin := headers.get(b"origin")) is None or not self.allows(origin):
            return ()
        return ((b"access-control-allow-origin", origin), (b"vary", b"origin"))

    def preflight(self, method: str, headers: dict[bytes, bytes], allow: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that answer a browser's question before it sends; empty unless it is one that we allow."""
        if method != "OPTIONS" or b"access-control-request-method" not in headers or not (own := self.cors(headers)):
            return ()
        wanted = headers.get(b"access-control-request-headers", b"content-type, prefer")
        return (
            *own,
            (b"access-control-allow-methods", allow),
            (b"access-control-allow-headers", wanted),
            (b"access-control-max-age", b"600"),
        )


def answered(offered: Iterable[str]) -> str | None:
    """The subprotocol that is answered: ours, else one with a token, else none."""
    names = [*offered]
    bearers = (name for name in names if name.startswith(_BEARER.decode()))
    return PROTOCOL if PROTOCOL in names else next(bearers, None)


def is_long(headers: dict[bytes, bytes]) -> bool:
    """Whether the body, as announced, is more than what is dropped to keep the connection of a stranger."""
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not length.isdigit() or len(length) > 18 or int(length) > MAX_UNREAD


@remembered
def is_loopback_name(host: bytes) -> bool:
    """Whether a Host header names this machine: localhost, anything under it, 127.0.0.0/8, ::1."""
    name = host.decode("latin-1").strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    name = name.rstrip(".")
    if name in ("localhost", "::1") or name.endswith(".localhost"):
        return True
    parts = name.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(part.isascii() and part.isdigit() for part in parts)


def is_own(origin: bytes, host: bytes | None) -> bool:
    """Whether an Origin is the host that the request was sent to, whatever the scheme (a proxy may speak TLS)."""
    scheme, found, authority = origin.decode("latin-1").strip().lower().partition("://")
    if not found or host is None or scheme not in _PORTS:
        return False
    own = host.decode("latin-1").strip().lower()
    return authority == own or authority.removesuffix(_PORTS[scheme]) == own.removesuffix(_PORTS[scheme])


async def read_body(
    receive: Callable[[], Awaitable[dict[str, Any]]], length: bytes | None, limit: int
) -> bytes | bytearray:
    """The whole body.

    Args:
      length: Content-Length, if the request has one.

    Raises:
      TooLarge: at once if ``length`` says so, else when the limit is crossed.
      ClientGone: if the client left before the end.
    """
    if length is not None and length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise TooLarge
    body: bytes | bytearray = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        if chunk := message.get("body", b""):
            if len(body) + len(chunk) > limit:
                raise TooLarge
            if not body:
                body = chunk
            elif isinstance(body, bytearray):
                body += chunk  # grows where it is: a list of all chunks and their whole would be two copies
            else:
                body = bytearray(body) + chunk
        if not message.get("more_body", False):
            return body
