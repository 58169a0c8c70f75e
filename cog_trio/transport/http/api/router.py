"""A small router: from a raw path and a method to a handler, and from its ``Response`` to what is sent.

The path is split before it is percent-decoded, so that an id may hold slashes; the names of routes are taken as they
stand. Every reply is JSON, one bytes body with its length. What a route has to know of the request is in
``HttpRequest``; nothing is parsed that the route does not ask for.

A route has up to two handlers for a method. The one that answers at once is asked first; it does all there is to do
without a wait, or says that it can't. Then the other one goes on. HTTP/1 asks the first in the step that reads the
request (``answer_now``), so most requests never become a task's; ASGI asks both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

from cog_trio.state.ids import BAD_ID, is_id
from cog_trio.state.raw_json import Pieces, parts
from cog_trio.transport.http.api.access_control import UNAUTHORIZED, AccessControl, ClientGone, answered, is_long
from cog_trio.transport.http.api.bodies import NOT_UTF8, detail, encode, fault
from cog_trio.transport.http.api.request_headers import RequestHeaders
from cog_trio.transport.http.protocol.answer_now import Answer, Pending
from cog_trio.transport.http.protocol.http1_head import RequestHead
from cog_trio.transport.http.protocol.receive_queue import EXTENSION, ReceiveQueue

log = logging.getLogger(__name__)
access_log = logging.getLogger("cog_trio.access")

Message: TypeAlias = "dict[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"

_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")


class Response(NamedTuple):
    """What a handler answers: a whole body, JSON, and headers beside the usual two."""

    status: int
    body: bytes
    headers: Headers = ()


class Stream(Protocol):
    """What a handler answers that lasts: it sends itself."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    async def respond(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None: ...


class Large(NamedTuple):
    """A whole body as well, JSON, too large for a copy of it: it is sent in parts."""

    status: int
    pieces: Pieces
    headers: Headers

    async def respond(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        length = (b"content-length", b"%d" % sum(map(len, self.pieces)))
        await send({"type": "http.response.start", "status": self.status, "headers": [_JSON, length, *headers]})
        for part in parts(self.pieces):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Text(NamedTuple):
    """A whole body of text for Prometheus."""

    body: bytes
    status: int
    headers: Headers

    async def respond(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        length = (b"content-length", b"%d" % len(self.body))
        await send({"type": "http.response.start", "status": self.status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": self.body})


def snapshot_response(status: int, pieces: Pieces, headers: Headers) -> Response | Large:
    """A reply with a body in pieces, of which there may be one."""
    if len(pieces) > 1:
        return Large(status, pieces, headers)
    return Response(status, bytes(pieces[0]), headers)


class HttpRequest:
    """One request, as handlers see it. One that is answered at once has no ``receive`` and no ``receive_queue``."""

    __slots__ = ("began", "body", "headers", "id", "method", "path", "query", "receive", "receive_queue", "version")

    receive: Receive
    receive_queue: ReceiveQueue

    def __init__(self, method: str, path: bytes, version: str, headers: RequestHeaders, query: bytes = b"") -> None:
        self.began = time.perf_counter()
        self.method = method
        self.path = path
        self.query = query
        self.version = version
        self.headers = headers
        self.id = ""  # out of the path, where the route has one
        self.body: bytes | None = None  # where it is whole already


class Later(NamedTuple):
    """A reply that comes when something has happened.

    ``when`` is called with the function that takes the reply, and calls that once. ``gone`` is called if the client
    leaves before.
    """

    when: Callable[[Callable[[Response | Large], None]], None]
    gone: Callable[[], None]


Handler: TypeAlias = "Callable[[HttpRequest], Awaitable[Response | Stream]]"
NowHandler: TypeAlias = (
    "Callable[[HttpRequest], Response | Later | None]"  # None: the other one has to, nothing has happened
)


class Resource:
    """What one path answers to, by methods.

    Args:
      open: to all, whether they have the token or not; or which requests are, by their headers.
      now: handlers that answer at once, or leave it to those of ``methods``.
    """

    def __init__(
        self,
        *,
        open: bool | Callable[[dict[bytes, bytes]], bool] = False,
        now: Mapping[str, NowHandler] | None = None,
        **methods: Handler,
    ) -> None:
        self._open = open
        self.now = dict(now or {})
        self.methods = dict(methods)
        if "GET" in self.now:
            self.now["HEAD"] = self.now["GET"]
        if "GET" in self.methods:
            self.methods["HEAD"] = self.methods["GET"]
        self.allowed = sorted({*self.now, *self.methods}, key=("GET", "PUT", "POST", "HEAD").index)
        self.allow = ",".join(self.allowed).encode()

    def is_open(self, headers: dict[bytes, bytes]) -> bool:
        return self._open if isinstance(self._open, bool) else self._open(headers)


class Routes(NamedTuple):
    """Fixed paths, and paths with an id between a first and, maybe, a last part."""

    fixed: Mapping[bytes, Resource]  # b"/predictions"
    with_id: Mapping[tuple[bytes, bytes | None], Resource]  # (b"predictions", b"cancel")
    websocket: bytes  # the path of the only WebSocket
    converse: Callable[[dict[bytes, bytes], str | None, Receive, Send], Awaitable[None]]


PROBES: Final = frozenset((b"/health-check", b"/livez", b"/readyz", b"/metrics"))  # they come often: debug lines
_UNKNOWN: Final = Response(401, encode({"detail": UNAUTHORIZED}), ((b"www-authenticate", b"Bearer"),))
NOT_FOUND: Final = Response(404, encode({"detail": "Not Found"}))
FAILED: Final = "a route failed: %s %s"  # its log line
_BROKEN: Final = Response(500, encode({"detail": "Internal Server Error"}))
_NOT_UTF8: Final = Response(400, detail([fault(["path", "id"], NOT_UTF8)]))
_BAD_ID: Final = Response(422, detail([fault(["path", "id"], BAD_ID)]))


class App:
    """The ASGI app.

    Args:
      closing: whether replies shall close their connections (the service drains).
      root: the path under which a proxy shows this server; requests may carry it or not.
    """

    def __init__(
        self,
        routes: Routes,
        access: AccessControl,
        *,
        closing: Callable[[], bool],
        root: str = "",
        log_requests: bool = True,
    ) -> None:
        self._root = root.encode()
        self._routes = routes
        self.access = access
        self._closing = closing
        self._log_requests = log_requests

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._converse(scope, receive, send)
            return
        request = HttpRequest(
            scope["method"],
            scope["raw_path"],
            scope["http_version"],
            RequestHeaders(scope["headers"]),
            scope["query_string"],
        )
        request.receive = receive
        request.receive_queue = scope["extensions"][EXTENSION]
        try:
            decided = self._decide(request)
            assert not isinstance(decided, Later)  # which needs the body, and there is none yet
            reply = decided if isinstance(decided, Response) else await decided(request)
        except ClientGone:
            self._log(request, 499, 0)  # as proxies call it: the client closed the request
            return
        except Exception:
            log.exception(FAILED, request.method, _shown(request.path))
            reply = _BROKEN
        headers = self._headers(request, reply)
        status = reply.status
        if isinstance(reply, Response):
            size = len(reply.body)
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})
        else:
            size = 0

            async def count(message: Message) -> None:
                nonlocal size
                await send(message)
                size += len(message.get("body", b""))

            try:
                await reply.respond(count, headers)
            except ClientGone:
                status = 499
        self._log(request, status, size)

    def answer_now(self, head: RequestHead, body: bytes) -> Answer | Pending | None:
        """Answer a request of HTTP/1 whose body is whole, if that needs no wait (see ``AnswerNow``)."""
        resource = self._routes.fixed.get(head.target)
        if resource is not None and head.method in resource.methods and head.method not in resource.now:
            return None  # without another look at it
        path, _, query = head.target.partition(b"?")
        headers = head.notes.get("headers")
        if headers is None:
            headers = head.notes["headers"] = RequestHeaders(head.headers)
        request = HttpRequest(head.method, path, head.version, headers, query)
        request.body = body
        try:
            decided = self._decide(request)
        except Exception:
            log.exception(FAILED, request.method, _shown(request.path))
            decided = _BROKEN
        if isinstance(decided, Response):
            return self._whole(request, decided)
        if not isinstance(decided, Later):
            return None

        def gone() -> None:
            self._log(request, 499, 0)
            decided.gone()

        def answer(reply: Response | Large) -> None:
            if pending.open:
                pending.reply(self._whole(request, reply))

        pending = Pending(gone)
        decided.when(answer)
        return pending

    def _whole(self, request: HttpRequest, reply: Response | Large) -> Answer:
        """A reply as it is written, with the headers that all have; it gets its line in the access log."""
        if isinstance(reply, Large):
            length = sum(map(len, reply.pieces))
            self._log(request, reply.status, length)
            headers = [_JSON, (b"content-length", b"%d" % length), *self._headers(request, reply)]
            return Answer(reply.status, headers, parts(reply.pieces))
        self._log(request, reply.status, len(reply.body))
        return Answer(reply.status, self._headers(request, reply), reply.body)

    def _headers(self, request: HttpRequest, reply: Response | Stream) -> list[tuple[bytes, bytes]]:
        headers = list(reply.headers)
        if isinstance(reply, Response) and reply.status != 204:
            headers = [_JSON, (b"content-length", b"%d" % len(reply.body)), *headers]
        if b"origin" in request.headers:
            headers += self.access.cors(request.headers)
        closes = self._closing() or (reply.status in (401, 403) and is_long(request.headers))
        if closes and request.version in ("1.0", "1.1"):
            headers.append(_CLOSE)
        return headers

    async def _converse(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """A request to become a WebSocket. A page from anywhere can make it, so it is none that only reads."""
        request = HttpRequest("GET", scope["raw_path"], scope["http_version"], RequestHeaders(scope["headers"]))
        headers = request.headers
        reply = self._refusal("CONNECT", headers) or (
            None if self.access.is_known(headers, websocket=True) else _UNKNOWN
        )
        if reply is None and self._below(scope["raw_path"]) != self._routes.websocket:
            reply = NOT_FOUND
        if reply is None:
            status = 101
            await self._routes.converse(headers, answered(scope["subprotocols"]), receive, send)
        else:
            status = reply.status
            told = [_JSON, (b"content-length", b"%d" % len(reply.body)), *reply.headers]
            await send({"type": "websocket.http.response.start", "status": status, "headers": told})
            await send({"type": "websocket.http.response.body", "body": reply.body})
        self._log(request, status)

    def _refusal(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        refused = self.access.refusal(method, headers)
        return None if refused is None else Response(403, encode({"detail": refused}))

    def _decide(self, request: HttpRequest) -> Response | Later | Handler:
        """The reply to a request, now or later, or the handler that has to be awaited for it."""
        method, headers = request.method, request.headers
        refusal = self._refusal(method, headers)
        if refusal is not None:
            return refusal
        found = self._routes.fixed.get(request.path) or self._find(request)
        resource = found if isinstance(found, Resource) else None
        handler = now = None
        if resource is not None:
            handler, now = resource.methods.get(method), resource.now.get(method)
            if handler is None and now is None:  # a browser asks that without the token
                preflight = self.access.preflight(method, headers, resource.allow)
                if preflight:
                    return Response(204, b"", preflight[2:])
        if not (resource is not None and resource.is_open(headers)) and not self.access.is_known(headers):
            return _UNKNOWN
        if isinstance(found, Response):
            return found
        reply = None if now is None else now(request)
        if reply is not None:
            return reply
        return handler or Response(405, encode({"detail": "Method Not Allowed"}), ((b"allow", found.allow),))

    def _below(self, path: bytes) -> bytes:
        """A path without what is not ours: the host of an absolute target, a fragment, the root."""
        if not path.startswith(b"/"):
            path = _of_absolute(path)
        path = path.partition(b"#")[0]  # a fragment is for the client itself
        root = self._root
        if root and path.startswith(root) and path[len(root) : len(root) + 1] in (b"", b"/"):
            path = path[len(root) :] or b"/"
        return path

    def _find(self, request: HttpRequest) -> Resource | Response:
        """The resource of a path that is none of the fixed ones as it stands; sets the request's id."""
        path = self._below(request.path)
        resource = self._routes.fixed.get(path)
        if resource is not None:
            return resource
        parts = path.split(b"/")[1:]
        if not 2 <= len(parts) <= 3 or not parts[1]:
            return NOT_FOUND
        resource = self._routes.with_id.get((parts[0], parts[2] if len(parts) == 3 else None))
        if resource is None:
            return NOT_FOUND
        try:
            request.id = unquote_to_bytes(parts[1]).decode()
        except UnicodeDecodeError:
            return _NOT_UTF8
        return resource if is_id(request.id) else _BAD_ID

    def _log(self, request: HttpRequest, status: int, size: int | None = None) -> None:
        """Write the line of one request; ``size``: bytes of the reply's body, None where there is none."""
        if not self._log_requests or not access_log.isEnabledFor(logging.INFO):
            return
        level = logging.DEBUG if self._below(request.path) in PROBES else logging.INFO
        if access_log.isEnabledFor(level):
            taken = round((time.perf_counter() - request.began) * 1000, 1)
            path = _shown(request.path)
            fields: dict[str, Any] = {"method": request.method, "path": path, "status": status, "ms": taken}
            if request.id:
                fields["id"] = request.id
            if size is not None:
                fields["bytes"] = size
            access_log.log(level, "%s %s %d %.1f ms", request.method, path, status, taken, extra=fields)


def _shown(path: bytes) -> str:
    return path.decode("latin-1").encode("unicode_escape").decode("ascii")


def _of_absolute(target: bytes) -> bytes:
    """The path of an absolute target (RFC 9112 3.2.2), or nothing that is routed."""
    _, found, rest = target.partition(b"://")
    slash = rest.find(b"/")
    return (rest[slash:] if slash >= 0 else b"/") if found else b""
