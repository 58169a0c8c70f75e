"""The lane: plain HTTP/1.1 and 1.0 without h11, Hypercorn's classes, or a task a request.

In: bytes of a connection (``ConnectionInterface``). Out: calls of the app, one at a time, in one task that stays. The
connection's own task reads; it hands a whole head over as soon as it is there, and goes on reading, so that the end of
the client is seen while its request runs. What is read ahead of time waits as bytes, and with too much of it the client
waits.

- The lane serves what ``head.parse`` calls plain. With the first head that is not, be it an upgrade, HTTP/2, chunked,
  or nonsense, it ends, and ``run`` gives back the bytes from there on: the connection goes on with them in
  ``http1.py``, which answers as if there had been no lane. So only one of the two has to know what is wrong, and how
  it is said.
- The head of a reply waits for its first body, so that a reply that is one body leaves with one write.
- Reading has one deadline. It is only ever brought forward; one that fires early is set anew. So a request that is
  read and answered moves none.
- Nothing is awaited under that deadline but the next bytes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import unquote

import trio
from hypercorn.events import Closed, Event

from cog_trio.transport.http.protocol.body_rate import BodyRate
from cog_trio.transport.http.protocol.http1 import DRAIN_TIME, EMPTY_LINES, MAX_AHEAD, Http1Limits
from cog_trio.transport.http.protocol.http1_head import RequestHead, clock, parse, render
from cog_trio.transport.http.protocol.http1_response import ResponseWriter
from cog_trio.transport.http.protocol.receive_queue import EXTENSION, Message, ReceiveQueue

log = logging.getLogger(__name__)

MAX_READ: Final = 64 * 2**10  # bytes
LARGE_READ: Final = 120 * 2**10  # bytes, while so much comes; from 128 KiB on malloc maps fresh pages for each read
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")


class ConnectionInterface(Protocol):
    """What the lane needs of its connection."""

    closing: bool  # our side is shut, what comes is dropped
    idle_since: float | None  # when the last request ended; None while one is open
    reading: trio.CancelScope  # round the wait for the next bytes

    async def receive(self, size: int, at_once: bool) -> bytes | bytearray: ...
    async def write(self, *pieces: bytes) -> None: ...
    async def protocol_send(self, event: Event) -> None: ...
    def linger_deadline(self) -> float: ...


class FastHttp1Limits(Http1Limits, Protocol):
    """The limits of ``http1.py`` and those of the lane."""

    @property
    def keep_alive(self) -> float: ...  # seconds
    @property
    def max_head(self) -> int: ...  # bytes
    @property
    def ending(self) -> bool: ...  # the server ends: no request follows the one that is open


async def _nothing() -> None:
    """The client sends its body unasked."""


class FastHttp1:
    """One connection's plain requests."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        line: ConnectionInterface,
        limits: FastHttp1Limits,
        nursery: trio.Nursery,
        client: Any,
        server: Any,
    ) -> None:
        self._app = app
        self._line = line
        self._limits = limits
        self._nursery = nursery
        self._client = client
        self._server = server
        self.requests = 0
        self.head_since: float | None = None  # when the first byte of an unfinished head came
        self._ahead: bytes | bytearray = b""  # what is not looked at yet
        self._over = False
        # The open request.
        self._open = False  # from its head to the end of its reply and of its body
        self._running = False  # the app has it
        self._head: RequestHead
        self._scope: Message
        self._receive_queue = ReceiveQueue(_nothing)
        self._left = 0  # bytes of its body that are to come
        self._pace: BodyRate  # at which they come
        self._dropping = False  # they are not wanted
        self._drop_deadline = 0.0
        self._reply: ResponseWriter
        self._app_waits = trio.lowlevel.ParkingLot()
        self._reader_waits = trio.lowlevel.ParkingLot()
        self._has_task = False

    # Reading, all in the connection's task.

    async def run(self) -> bytes | None:
        """Serve to the end of the connection, or until something comes that is for others: that is returned."""
        try:
            return await self._read()
        finally:
            self._over = True
            self._app_waits.unpark_all()

    async def _read(self) -> bytes | None:
        line = self._line
        data: bytes | bytearray
        while True:
            if not line.closing:
                if self._ahead and not self._occupied and not self._begin():
                    return bytes(self._ahead)
                if self._must_wait():
                    await self._wait()
                    continue
                deadline = self._deadline()
                if deadline <= trio.current_time():
                    if line.idle_since is not None and self.head_since is None:
                        return None
                    await self.refuse(408)
                    continue
            else:
                deadline = line.linger_deadline()
            with trio.CancelScope(deadline=deadline) as line.reading:
                while True:
                    try:
                        # The rest of a body is often here already; the inbox bounds how often there is no wait.
                        data = await line.receive(*self._how())
                    except GONE:
                        return None
                    if not data or line.closing or not self._take(data):
                        break
                    self._bring_forward()
            if line.reading.cancelled_caught:
                if line.closing:
                    return None
            elif not data:
                if not line.closing and (self._left or (self._ahead and not self._occupied)):
                    await self.refuse(400)  # it broke off
                return None

    def _how(self) -> tuple[int, bool]:
        """How much to read, and whether to look before the first wait."""
        left = self._left
        return (LARGE_READ if left > MAX_READ else MAX_READ), left > 0 and not self._dropping

    @property
    def _occupied(self) -> bool:
        return self._open or self._running

    def _take(self, data: bytes | bytearray) -> bool:
        """Deal with bytes as far as that needs no wait."""
        if self._left:
            rest = len(data) - self._left
            piece, data = (data[: self._left], data[self._left :]) if rest > 0 else (data, b"")
            self._take_body(bytes(piece))
        if data and not (self._open and self._head.closes):  # what follows the last request is nobody's
            self._ahead = self._ahead + data if self._ahead else data
            if not self._occupied:
                return self._begin() and not self._must_wait()
        return not self._must_wait()

    def _take_body(self, piece: bytes) -> None:
        self._left -= len(piece)
        self._pace.add(trio.current_time(), len(piece))
        if not self._dropping:
            self._receive_queue.add({"type": "http.request", "body": piece, "more_body": self._left > 0})
        elif not self._left:
            self._recycle()

    def _must_wait(self) -> bool:
        return (self._left > 0 and self._receive_queue.full) or (len(self._ahead) > MAX_AHEAD and self._occupied)

    async def _wait(self) -> None:
        """Until the app took a part of the body, or took the next request."""
        if self._left > 0 and self._receive_queue.full:
            await self._receive_queue.room()
            self._pace.excuse(trio.current_time())
        else:
            await self._reader_waits.park()

    def _deadline(self) -> float:
        """Until when the next bytes of the client must be here."""
        if self._left:
            deadline = self._pace.deadline
            return min(deadline, self._drop_deadline) if self._dropping else deadline
        if self.head_since is not None:
            return self.head_since + self._limits.header_timeout
        since = self._line.idle_since
        return float("inf") if since is None else since + self._limits.keep_alive

    def _bring_forward(self) -> None:
        deadline = self._deadline()
        if deadline < self._line.reading.deadline:
            self._line.reading.deadline = deadline

    def _begin(self) -> bool:
        """Begin the next request, if its head is there; say False if it is not for the lane."""
        ahead = self._ahead
        if ahead[0] in EMPTY_LINES:
            self._ahead = ahead = ahead.lstrip(EMPTY_LINES)
            if not ahead:
                return True
        end = ahead.find(b"\r\n\r\n")
        if end < 0:
            if ahead[0] <= 0x20 or len(ahead) > self._limits.max_head or _BLANK_LINE.search(ahead) is not None:
                return False
            if self.head_since is None:
                self.head_since = trio.current_time()
            return True
        head = parse(bytes(ahead[:end]))
        if head is None:
            return False
        start, self.head_since = end + 4, None
        available = len(ahead) - start
        if available > head.length:
            body, self._ahead = bytes(ahead[start : start + head.length]), ahead[start + head.length :]
        else:
            body, self._ahead = bytes(ahead[start:]), b""
        self._left = head.length - len(body)
        self._open_request(head)
        if self._left:
            self._pace = BodyRate(trio.current_time(), self._limits.header_timeout)
        if body or not self._left:
            self._receive_queue.add({"type": "http.request", "body": body, "more_body": self._left > 0})
        if self._has_task:
            self._app_waits.unpark()
        else:
            self._has_task = True
            self._nursery.start_soon(self._serve)
        return True

    def _open_request(self, head: RequestHead) -> None:
        path, _, query = head.target.partition(b"?")
        text = path.decode("ascii")
        self._receive_queue = ReceiveQueue(_nothing)
        self._head = head
        self._scope = {
            "type": "http",
            "http_version": head.version,
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": head.method,
            "scheme": "http",
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "client": self._client,
            "server": self._server,
            "state": {},
            "extensions": {EXTENSION: self._receive_queue},
        }
        self.requests += 1
        self._open = self._running = True
        self._line.idle_since = None
        self._dropping = False
        self._reply = ResponseWriter(head)

    async def handle(self, event: Event) -> None:
        """The connection's word that it is closed (``Closed``)."""
        if self._open and isinstance(event, Closed):
            self._receive_queue.add({"type": "http.disconnect"})
        self._reader_waits.unpark_all()

    async def refuse(self, status: int) -> None:
        """Answer what came too slowly or broke off, unless an answer is on its way; then close."""
        if not (self._open and self._reply.started):
            if self._open:
                self._reply.started = True
            body = b'{"detail":"%b"}' % HTTPStatus(status).phrase.encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
                (b"date", clock.date()),
            ]
            if self._open and self._head.closes:
                headers[2:] = [headers[3], (b"Connection", b"close")]
            bodiless = self._open and self._head.method == "HEAD"
            await self._line.write(render(status, headers) + (b"" if bodiless else body))
        elif self._reply.waiting is not None:
            await self._line.write(self._reply.waiting)
        await self._line.protocol_send(Closed())

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
        """The app left without a whole reply."""
        reply = self._reply
        if not reply.started:
            reply.start(500, ((b"content-length", b"0"), (b"connection", b"close")), last=self._is_last())
        reply.whole = True
        if reply.waiting is not None:
            await self._line.write(reply.waiting)
        await self._line.protocol_send(Closed())

    async def _send(self, message: Message) -> None:
        if self._line.closing:
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
        """Whether the rest of the body is more than what is read to keep the connection."""
        return self._left > 0 and not self._may_drop()

    def _may_drop(self) -> bool:
        return self._head.length <= self._limits.drain_limit

    async def _end_reply(self) -> None:
        """The reply is out: the next request, or the rest of the body, or the end."""
        self._receive_queue.add({"type": "http.disconnect"})
        if self._line.closing:
            return
        if not self._reply.keeps or self._limits.ending or self._is_last():
            await self._line.protocol_send(Closed())
        elif self._left:
            self._dropping = True
            self._drop_deadline = trio.current_time() + DRAIN_TIME
            self._bring_forward()
        else:
            self._recycle()

    def _recycle(self) -> None:
        self._open = False
        self._line.idle_since = trio.current_time()
        self._bring_forward()
