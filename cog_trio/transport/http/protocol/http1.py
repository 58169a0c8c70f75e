"""HTTP/1.1 and 1.0 on one connection, from its first byte on.

In: bytes of a connection (``ConnectionInterface``). Out: replies. The connection's own task reads; it hands a request
to the app as soon as its head is there, and goes on reading, so that the end of the client is seen while its request
runs. Requests are served one at a time; what is read ahead of time waits as bytes, and with too much of it the client
waits.

- A request is answered in the reader's step if the app can (``answer_now``). All others go to the ASGI app, in one task
  that is kept from request to request.
- A request for a WebSocket and the preface of HTTP/2 end ``run``: the connection goes on in another protocol.
- The head of a reply waits for its first body, so that a reply that is one body leaves with one write.
- Reading has one deadline. It is only ever brought forward; one that fires early is set again.
- A client that closes its side has gone, as far as the app is told. What it asked before that is served all the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

import trio

from cog_trio.transport.http.protocol.answer_now import Answer, AnswerNow, Pending
from cog_trio.transport.http.protocol.http1_body import BodyRate, ChunkedBody, RequestBody, SizedBody
from cog_trio.transport.http.protocol.http1_head import Refused, RequestHead, read_head
from cog_trio.transport.http.protocol.http1_response import ResponseWriter
from cog_trio.transport.http.protocol.receive_queue import EXTENSION, Message, ReceiveQueue

log = logging.getLogger(__name__)

MAX_READ: Final = 64 * 2**10  # bytes
LARGE_READ: Final = 120 * 2**10  # bytes, while so much comes; from 128 KiB on malloc maps fresh pages for each read
MAX_AHEAD: Final = 64 * 2**10  # bytes of later requests that are read while one runs; then the client waits
DRAIN_TIME: Final = 30.0  # seconds that the rest of an unwanted body may take, in all
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
PREFACE: Final = b"PRI * HTTP/2.0"  # the head of HTTP/2's
_EMPTY_LINES: Final = b"\r\n"  # before a request they are ignored (RFC 9112 2.2)
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")
_NOBODY: Final = {method: RequestHead(method, b"", "1.1", []) for method in ("GET", "HEAD")}  # asked what was refused


class ConnectionInterface(Protocol):
    """What this protocol needs of its connection."""

    closing: bool  # our side is shut, what comes is dropped
    idle_since: float | None  # when the last request ended; None while one is open
    reading: trio.CancelScope  # round the wait for the next bytes

    async def receive(self, size: int, at_once: bool) -> bytes | bytearray: ...
    async def write(self, *pieces: bytes) -> None: ...
    def write_now(self, *pieces: bytes) -> bool: ...
    async def end(self) -> None: ...  # once what was written is out
    def linger_deadline(self) -> float: ...


class Http1Limits(Protocol):
    """Limits; times in seconds."""

    @property
    def drain_limit(self) -> int: ...  # bytes of an unwanted body that are read to keep the connection
    @property
    def header_timeout(self) -> float: ...
    @property
    def write_timeout(self) -> float: ...
    @property
    def keep_alive(self) -> float: ...
    @property
    def max_head(self) -> int: ...  # bytes
    @property
    def ending(self) -> bool: ...  # the server ends: no request follows the one that is open


class Switch(NamedTuple):
    """The connection goes on in another protocol."""

    head: RequestHead | None  # of the request for a WebSocket; None: HTTP/2
    data: bytes  # that came after that head; of HTTP/2 with its preface


async def _nothing() -> None:
    """The client sends its body unasked."""


class Http1:
    """One connection's requests."""

    joins_messages = False

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        line: ConnectionInterface,
        limits: Http1Limits,
        nursery: trio.Nursery,
        scheme: str,
        client: Any,
        server: Any,
    ) -> None:
        self._app = app
        self._answer_now: AnswerNow | None = getattr(app, "answer_now", None)
        self._line = line
        self._limits = limits
        self._nursery = nursery
        self._scheme = scheme
        self._client = client
        self._server = server
        self._requests = 0
        self._head_since: float | None = None  # when the first byte of an unfinished head came
        self._ahead = b""  # what is not looked at yet
        self._ended = False  # the client has closed its side
        self._switch: Switch | None = None
        self._over = False
        # The open request.
        self._open = False  # from its head to the end of its reply and of its body
        self._running = False  # the app has it
        self._head: RequestHead
        self._body: RequestBody | None = None  # while it is to come
        self._pace: BodyRate  # at which it comes
        self._withheld = False  # the client waits for 100 Continue
        self._dropping = False  # its body is not wanted
        self._dropped = 0  # bytes
        self._drop_deadline = 0.0
        self._scope: Message
        self._receive_queue = ReceiveQueue(_nothing)
        self._reply: ResponseWriter
        self._pending: Pending | None = None
        self._refused = False  # by us: whatever the app says is dropped
        self._app_waits = trio.lowlevel.ParkingLot()
        self._reader_waits = trio.lowlevel.ParkingLot()
        self._has_task = False

    # Reading, all in the connection's task.

    async def run(self) -> Switch | None:
        """Serve to the end of the connection, or until it goes on in another protocol."""
        try:
            return await self._read()
        finally:
            self._over = True
            self._app_waits.unpark_all()

    async def _read(self) -> Switch | None:
        line = self._line
        while True:
            if line.closing:
                deadline = line.linger_deadline()
            else:
                try:
                    while self._begin() and self._ahead and not self._occupied:
                        await trio.lowlevel.checkpoint()  # it is answered already, and so may be very many behind it
                except Refused as refused:
                    await self.refuse(refused.status, bodiless=refused.bodiless)
                    continue
                if self._switch is not None:
                    return self._switch
                if self._ended and not self._occupied:
                    if self._ahead:
                        await self.refuse(400)  # it broke off
                    return None
                if self._ended or self._must_wait():
                    await self._wait()
                    continue
                deadline = self._deadline()
                if deadline <= trio.current_time():
                    if line.idle_since is not None and self._head_since is None:
                        return None
                    await self.refuse(408)
                    continue
            try:
                data = await self._receive(deadline)
            except GONE:
                return None
            except Refused as refused:
                await self.refuse(refused.status, bodiless=refused.bodiless)
                continue
            if data is None:
                if line.closing and line.reading.cancelled_caught:
                    return None
            elif line.closing:
                return None
            elif self._body is not None:
                await self.refuse(400)  # it broke off
                return None
            else:
                self._ended = True
                if self._open:
                    self._tell_gone()

    async def _receive(self, deadline: float) -> bytes | None:
        """Read until something is to be done that may take a wait: None; nothing at the end of the client."""
        line = self._line
        with trio.CancelScope(deadline=deadline) as line.reading:
            while True:
                # The rest of a body is often here already; the receive queue bounds how often there is no wait.
                body = self._body
                size = LARGE_READ if body is not None and body.left > MAX_READ else MAX_READ
                data = await line.receive(size, body is not None and not self._dropping)
                if not data:
                    return b""
                if line.closing or not self._take(bytes(data)):
                    return None
                self._bring_forward()
        return None

    @property
    def _occupied(self) -> bool:
        return self._open or self._running

    def _take(self, data: bytes) -> bool:
        """Deal with bytes as far as that needs no wait; say whether more can be read.

        Raises:
          Refused: for a malformed body or head.
        """
        if self._body is not None:
            data = self._take_body(self._body, data)
        if not data or (self._open and self._head.closes):  # what follows the last request is nobody's
            return not self._must_wait()
        self._ahead = self._ahead + data if self._ahead else data
        if self._begin() and not self._occupied:
            return not self._ahead  # it is answered already: the next one has its turn later
        return self._switch is None and not self._must_wait()

    def _take_body(self, body: RequestBody, data: bytes) -> bytes:
        """Hand on what belongs to the body; what follows it is returned."""
        piece, rest = body.take(data)
        self._withheld = False
        self._pace.add(trio.current_time(), len(data) - len(rest))
        if body.whole:
            self._body = None
        if not self._dropping:
            if piece or body.whole:
                self._receive_queue.add({"type": "http.request", "body": piece, "more_body": not body.whole})
        elif body.whole:
            self._recycle()
        else:
            self._dropped += len(piece)
            if self._dropped > self._limits.drain_limit:
                self._drop_deadline = -float("inf")
        return rest

    def _must_wait(self) -> bool:
        if self._body is not None and self._receive_queue.full:
            return True
        return len(self._ahead) > MAX_AHEAD and self._occupied

    async def _wait(self) -> None:
        """Until the app took a part of the body, or took the next request."""
        if self._body is not None and self._receive_queue.full:
            await self._receive_queue.room()
            self._pace.excuse(trio.current_time())
        else:
            await self._reader_waits.park()

    def _deadline(self) -> float:
        """Until when the next bytes of the client must be here."""
        if self._body is not None:
            deadline = self._pace.deadline
            return min(deadline, self._drop_deadline) if self._dropping else deadline
        if self._head_since is not None:
            return self._head_since + self._limits.header_timeout
        since = self._line.idle_since
        return float("inf") if since is None else since + self._limits.keep_alive

    def _bring_forward(self) -> None:
        deadline = self._deadline()
        if deadline < self._line.reading.deadline:
            self._line.reading.deadline = deadline

    def _begin(self) -> bool:
        """Begin the next request, if none is open and its head is here; say whether that was so.

        Raises:
          Refused: if it is malformed.
        """
        if not self._ahead or self._occupied:
            return False
        ahead = self._ahead = self._ahead.lstrip(_EMPTY_LINES)
        if not ahead:
            return False
        end = _END_OF_HEAD.search(ahead)
        if end is None or end.start() > self._limits.max_head:
            if ahead[0] <= 0x20:
                raise Refused(400)
            if len(ahead) > self._limits.max_head:
                raise Refused(431)
            if self._head_since is None:
                self._head_since = trio.current_time()
            return False
        raw = ahead[: end.start()].removesuffix(b"\r")
        if raw == PREFACE and not self._requests:
            self._switch = Switch(None, ahead)
            return False
        head, rest = read_head(raw), ahead[end.end() :]
        self._head_since = None
        if head.websocket:
            self._switch = Switch(head, rest)
            return False
        body = ChunkedBody(self._limits.max_head) if head.chunked else SizedBody(head.length)
        piece, self._ahead = body.take(rest)
        self._requests += 1
        self._open = True
        self._line.idle_since = None
        self._head = head
        self._body = None if body.whole else body
        self._dropping = False
        self._dropped = 0
        self._reply = ResponseWriter(head)
        answer = self._answer_now(head, piece) if body.whole and self._answer_now is not None else None
        if answer is None:
            self._start_app(head, piece)
        elif isinstance(answer, Pending):
            self._pending = answer
            answer.leave_to(self._write_reply)
        else:
            self._write_reply(answer)
        if self._ended and self._open:
            if self._body is not None:
                raise Refused(400)  # it broke off
            self._tell_gone()
        return True

    def _start_app(self, head: RequestHead, piece: bytes) -> None:
        """Give the open request to the app's task."""
        path, _, query = head.target.partition(b"?")
        text = path.decode("ascii")
        self._withheld = head.expects and self._body is not None and not piece
        self._receive_queue = ReceiveQueue(self._ask_for_body if self._withheld else _nothing)
        self._scope = {
            "type": "http",
            "http_version": head.version,
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": head.method,
            "scheme": self._scheme,
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(head.headers),
            "client": self._client,
            "server": self._server,
            "state": {},
            "extensions": {EXTENSION: self._receive_queue},
        }
        if self._body is not None:
            self._pace = BodyRate(trio.current_time(), self._limits.header_timeout)
        if piece or self._body is None:
            self._receive_queue.add({"type": "http.request", "body": piece, "more_body": self._body is not None})
        self._running = True
        if self._has_task:
            self._app_waits.unpark()
        else:
            self._has_task = True
            self._nursery.start_soon(self._serve)

    async def _ask_for_body(self) -> None:
        """The app waits for a body: now the client may send it."""
        if self._withheld and not self._reply.started:
            self._withheld = False
            await self._line.write(b"HTTP/1.1 100 \r\n\r\n")

    def _tell_gone(self) -> None:
        """The client of the open request has gone."""
        self._receive_queue.add({"type": "http.disconnect"})
        pending, self._pending = self._pending, None
        if pending is not None and pending.open:
            pending.client_has_gone()
            self._open, self._ahead = False, b""  # nothing is answered any more, so the connection ends without a word

    async def connection_lost(self) -> None:
        """The connection is closed: tell the app that its client has gone."""
        if self._open:
            self._tell_gone()
        self._reader_waits.unpark_all()

    async def refuse(self, status: int, *, bodiless: bool = False) -> None:
        """Answer what is malformed, came too slowly or broke off, unless an answer is on its way; then close."""
        reply = self._reply if self._open else ResponseWriter(_NOBODY["HEAD" if bodiless else "GET"])
        self._refused = True
        if not reply.started:
            body = b'{"detail":"%b"}' % HTTPStatus(status).phrase.encode()
            reply.start(status, [_JSON, (b"content-length", b"%d" % len(body)), _CLOSE], last=False)
            await self._line.write(*reply.body(body, False))
        elif reply.waiting is not None:
            await self._line.write(reply.waiting)
        await self._line.end()

    # Replies in one call.

    def _write_reply(self, answer: Answer) -> None:
        """Write a whole reply: at once what the kernel takes, the rest by a task."""
        self._pending = None
        if self._line.closing or self._refused:
            return
        reply = self._reply
        reply.start(answer.status, answer.headers, last=False)
        if not isinstance(answer.body, bytes):
            self._nursery.start_soon(self._write_parts, answer.body)
            return
        out = self._line.write_now(*reply.body(answer.body, False))
        if out and reply.keeps and not self._limits.ending:
            self._recycle()
            if self._ahead:
                self._wake_reader()
        else:
            self._nursery.start_soon(self._finish_reply)

    async def _write_parts(self, parts: Iterator[bytes]) -> None:
        for part in parts:
            await self._line.write(*self._reply.body(part, True))
        await self._line.write(*self._reply.body(b"", False))
        await self._finish_reply()

    async def _finish_reply(self) -> None:
        await self._line.write()
        await self._end_reply()
        self._wake_reader()

    def _wake_reader(self) -> None:
        """Have the reader begin what is ahead, wherever it waits."""
        self._reader_waits.unpark_all()
        if not self._line.closing:
            self._line.reading.cancel()

    # The app and its replies, all in the app's task.

    async def _serve(self) -> None:
        """Call the app for one request after the other."""
        while True:
            while not self._running:
                if self._over:
                    return
                await self._app_waits.park()
            receive_queue = self._receive_queue
            try:
                await self._app(self._scope, receive_queue.receive, self._send)
            except Exception:
                log.exception("the app failed")
            receive_queue.abandon()
            if not self._reply.whole and not self._line.closing:
                await self._fail()
            self._running = False
            self._reader_waits.unpark_all()
            if self._ahead and not self._line.closing:
                self._line.reading.cancel()  # the reader begins the next one

    async def _fail(self) -> None:
        """The app left without a whole reply; a client that has gone is told nothing."""
        reply = self._reply
        if not reply.started and not self._ended:
            reply.start(500, ((b"content-length", b"0"), _CLOSE), last=self._is_last())
        reply.whole = True
        if reply.waiting is not None:
            await self._line.write(reply.waiting)
        await self._line.end()

    async def _send(self, message: Message) -> None:
        if self._line.closing or self._refused:
            await trio.lowlevel.checkpoint()  # the client is gone; for an app that sends on and on
            return
        kind, reply = message["type"], self._reply
        if kind == "http.response.start" and not reply.started:
            reply.start(int(message["status"]), message.get("headers", ()), last=self._is_last())
            return
        if kind != "http.response.body" or not reply.started or reply.whole:
            raise RuntimeError(f"{kind} is not what comes next")
        more = message.get("more_body", False)
        pieces = reply.body(message.get("body", b""), more)
        if not more:
            self._receive_queue.abandon()
        if pieces:
            await self._line.write(*pieces)
        if more:
            await trio.lowlevel.checkpoint()  # for an app that sends on and on to a client that keeps up
        else:
            await self._end_reply()

    def _is_last(self) -> bool:
        """Whether the rest of the body is more than what is read to keep the connection, or was never asked for."""
        return self._body is not None and (self._withheld or self._head.length > self._limits.drain_limit)

    async def _end_reply(self) -> None:
        """The reply is out: the next request, or the rest of the body, or the end."""
        self._receive_queue.add({"type": "http.disconnect"})
        if self._line.closing:
            return
        if not self._reply.keeps or self._limits.ending or self._is_last():
            await self._line.end()
        elif self._body is not None:
            self._dropping = True
            self._drop_deadline = trio.current_time() + DRAIN_TIME
            self._bring_forward()
        else:
            self._recycle()

    def _recycle(self) -> None:
        self._open = False
        self._line.idle_since = trio.current_time()
        self._bring_forward()
