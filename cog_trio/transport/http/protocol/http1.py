"""Hypercorn's HTTP/1.1, with what a public server needs beside it.

Pipelined bytes no longer stop the reading, so that a client's end is seen while its request runs. A body that the
app did not want is dropped after the reply and the connection goes on. 100 Continue leaves when the app asks for
the body, not before. ``Upgrade: h2c`` is answered as if it were absent, Content-Length together with
Transfer-Encoding is refused, refusals have JSON bodies. Tolerated are a missing Host, UTF-8 in a path that is not
percent-encoded, empty lines before a request, and whatever comes behind the last request of a connection.

A protocol is spoken to by one connection (``connection.py``) and knows of it only what ``ConnectionLink`` says.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

import h11
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Data, EndBody, Response
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.ws_stream import FrameTooLargeError, WebsocketBuffer, WSStream

from cog_trio.transport.http.protocol.body_rate import BodyRate

if TYPE_CHECKING:
    from wsproto.events import Message as WebsocketMessage

__all__ = ["ConnectionLink", "H2ProtocolAssumedError", "Http1", "Http1Limits"]

PING: Final = 20.0  # seconds between two pings of a WebSocket, so that proxies keep it and a dead client is found
PONG_TIME: Final = 3 * PING  # seconds until a WebSocket's client that answers nothing is given up
DRAIN_TIME: Final = 30.0  # seconds that the rest of an unwanted body may take, in all
MAX_AHEAD: Final = 64 * 2**10  # bytes of later requests that are read while one runs; then the client waits
_END_OF_HEAD: Final = re.compile(rb"\n(\r?\n)")
_HOST: Final = re.compile(rb"\nhost[ \t]*:", re.IGNORECASE)
_NOT_ASCII: Final = re.compile(rb"[\x80-\xff]")
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_SEND_BODY: Final = h11.SEND_BODY
LISTS: Final = frozenset((b"connection", b"sec-websocket-extensions", b"sec-websocket-protocol"))  # read as ASCII
_BETWEEN: Final = (h11.IDLE, h11.DONE)  # states of a client whose next byte begins a request
_OVER: Final = (h11.MUST_CLOSE, h11.CLOSED)  # of one that has no more to say
EMPTY_LINES: Final = b"\r\n"  # before a request they are ignored (RFC 9112 2.2)


class Http1Limits(Protocol):
    """The limits that both protocols keep; times in seconds."""

    @property
    def drain_limit(self) -> int: ...  # bytes of an unwanted body that are read to keep the connection
    @property
    def header_timeout(self) -> float: ...
    @property
    def write_timeout(self) -> float: ...


class ConnectionLink(Protocol):
    """What a protocol needs of its connection."""

    def wake(self) -> None:
        """Let the reading task call ``proceed`` soon."""

    def corked(self) -> AbstractContextManager[None]:
        """What is written inside waits for the next flush, so that it leaves in one piece and nothing comes between."""

    async def flush(self) -> None:
        """Write what waits."""


class WebSocketMessage(WebsocketBuffer):
    """A WebSocket message that is coming in: of one that is too large nothing more is kept."""

    def extend(self, event: WebsocketMessage[Any]) -> None:
        if self.length > self.max_length:
            raise FrameTooLargeError
        super().extend(event)


def told_apart(method: bytes) -> bytes:
    """A method that is none in lower case, so that it stays none: Hypercorn would take it for that in upper case, and a
    ``head`` would get a length without a body."""
    return method if method == method.upper() else b"*" + method


def tame(stream: object) -> None:
    """Bound what a WebSocket's client can make us hold: no compression, and messages up to the limit."""
    if isinstance(stream, WSStream):
        stream.handshake.extensions = None
        stream.buffer = WebSocketMessage(stream.config.websocket_max_message_size)


def is_overfull(stream: object) -> bool:
    """Whether a message was too large: the client has been told, and nothing good will follow."""
    return isinstance(stream, WSStream) and stream.buffer.length > stream.buffer.max_length


def _told_apart(request: h11.Request) -> h11.Request:
    method = told_apart(request.method)
    if method == request.method:
        return request
    return h11.Request(method=method, headers=request.headers, target=request.target, http_version=request.http_version)


class Http1(H11Protocol):
    """HTTP/1.0 and 1.1."""

    link: ConnectionLink
    limits: Http1Limits

    def attach(self, link: ConnectionLink, limits: Http1Limits) -> None:
        self.link = link
        self.limits = limits
        self.dropping = False  # the reply is out, the rest of the request's body is on its way
        self.drop_deadline = 0.0
        self.head_since: float | None = None  # when the first byte of an unfinished head came
        self._seen = b""  # of that head
        self._bodiless = False  # the open request is a HEAD: its answer has no body, whatever it is
        self._pace: BodyRate  # at which the body comes
        self._dropped = 0
        self._paused = False
        self._recycled = trio.lowlevel.ParkingLot()

    def take_over(self, requests: int, head_since: float | None) -> None:
        """Go on with a connection that has had some requests and, maybe, the beginning of a head."""
        self.keep_alive_requests = requests
        self.head_since = head_since

    @property
    def framed(self) -> bool:
        """It is a WebSocket by now: what comes does not wait for the app, as bodies do."""
        return isinstance(self.stream, WSStream)

    def read_deadline(self, now: float, idle_since: float | None, keep_alive: float) -> float:
        """Until when the next bytes of the client must be here."""
        if self.connection.their_state is _SEND_BODY:
            deadline = self._pace.deadline
            return min(deadline, self.drop_deadline) if self.dropping else deadline
        if isinstance(self.stream, WSStream):
            return now + PONG_TIME
        if self.head_since is not None:
            return self.head_since + self.limits.header_timeout
        return float("inf") if idle_since is None else idle_since + keep_alive

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData):
            data = event.data
            connection = self.connection
            if data and connection.their_state in _BETWEEN:
                if not connection.trailing_data[0]:
                    data = data.lstrip(EMPTY_LINES)
                    if not data:
                        return
                if connection.their_state is h11.IDLE:
                    data = self._mended(data)
                    connection = self.connection
            elif data and connection.their_state in _OVER:
                return
            while self._paused and len(connection.trailing_data[0]) > MAX_AHEAD and self.stream is not None:
                await self._recycled.park()
            connection.receive_data(data)
            await self._handle_events()
        else:
            await super().handle(event)
            self._recycled.unpark_all()

    def _in_ascii(self, data: bytes) -> bytes:
        """The bytes of a head, with all of its target percent-encoded that h11 refuses though it is clear."""
        if data.isascii() or b"\n" in self._seen:
            return data
        line, newline, rest = data.partition(b"\n")
        method, space, target = (b"", b"", line) if b" " in self._seen else line.partition(b" ")
        return method + space + _NOT_ASCII.sub(lambda byte: b"%%%02X" % byte[0][0], target) + newline + rest

    def _mended(self, data: bytes) -> bytes:
        """Bytes of a head as h11 will take them. If they end it without a Host, a new one gets all of the head, with
        an empty Host: h11 insists, we don't."""
        data = self._in_ascii(data)
        head = self._seen + data
        end = _END_OF_HEAD.search(head)
        if end is None or _HOST.search(head, 0, end.end()) is not None:
            return data
        self._begin_anew()
        place = end.start(1)
        return head[:place] + b"host: \r\n" + head[place:]

    def _begin_anew(self) -> None:
        """With a parser that has seen nothing."""
        self.connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)

    async def proceed(self) -> None:
        """Go on with what was read ahead."""
        await self._handle_events()

    async def _handle_events(self) -> None:
        while True:
            if self.connection.their_state in _OVER and self.connection.trailing_data[0]:
                return  # the last request is whole: h11 would take what follows for a fault of it
            try:
                event = self.connection.next_event()
                if isinstance(event, h11.Request):
                    self._bodiless = event.method == b"HEAD"
                    self._refuse_tricks(event)
            except h11.RemoteProtocolError as error:
                await self.refuse(error.error_status_hint)
                return
            if isinstance(event, h11.Request):
                self._seen, self.head_since = b"", None
                self._pace = BodyRate(trio.current_time(), self.limits.header_timeout)
                await self.send(Updated(idle=False))
                await self._check_protocol(event)
                await self._create_stream(_told_apart(event))
                tame(self.stream)
            elif isinstance(event, h11.Data):
                await self._take_body(event.data)
            elif isinstance(event, h11.EndOfMessage):
                if self.dropping:
                    self.dropping = False
                    await self._recycle()
                elif self.stream is not None:
                    await self.stream.handle(EndBody(stream_id=STREAM_ID))
            elif isinstance(event, Data):  # WebSocket
                stream = self.stream
                if stream is None:
                    return
                with self.link.corked():
                    await stream.handle(event)
                await self.link.flush()
                if self.stream is stream and (stream.closed or is_overfull(stream)):  # ended by Hypercorn,
                    if stream.app_put is not None:  # which does not tell the app
                        await stream.app_put({"type": "websocket.disconnect", "code": 1006})
                    await self.send(Closed())
                    return
            elif event is h11.PAUSED:
                self._paused = True
                return
            else:  # nothing more here, or the client's end
                if self.connection.their_state is h11.IDLE:
                    self._await_head()
                return

    def _await_head(self) -> None:
        """Between requests; the bytes that are left, if any, begin a head."""
        self._seen = self.connection.trailing_data[0]
        if not self._seen:
            self.head_since = None
        elif self.head_since is None:
            self.head_since = trio.current_time()

    def _refuse_tricks(self, request: h11.Request) -> None:
        names = [name for name, _ in request.headers if name in (b"content-length", b"transfer-encoding")]
        if len(names) > 1:  # RFC 9112 6.1: an attempt at smuggling
            raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding together", error_status_hint=400)
        if b"transfer-encoding" in names and request.http_version < b"1.1":  # the same
            raise h11.RemoteProtocolError("Transfer-Encoding before HTTP/1.1", error_status_hint=400)
        if any(name in LISTS and not value.isascii() for name, value in request.headers):
            raise h11.RemoteProtocolError("a list of tokens that are none", error_status_hint=400)
        if not request.http_version.startswith(b"1.") and (request.method, request.http_version) != (b"PRI", b"2.0"):
            raise h11.RemoteProtocolError("an unknown version of HTTP", error_status_hint=400)
        if request.method == b"PRI" and self.keep_alive_requests:
            raise h11.RemoteProtocolError("HTTP/2 begins with the connection", error_status_hint=400)

    async def _take_body(self, data: bytes) -> None:
        self._pace.add(trio.current_time(), len(data))
        if not self.dropping:
            if self.stream is not None:
                await self.stream.handle(Body(stream_id=STREAM_ID, data=data))
                self._pace.excuse(trio.current_time())
            if not self.dropping:
                return
        self._dropped += len(data)
        if self._dropped > self.limits.drain_limit:
            self.dropping = False
            await self.send(Closed())

    async def refuse(self, status: int) -> None:
        """Answer what can't be understood or came too slowly, unless an answer is on its way; then close."""
        if self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = b'{"detail":"%s"}' % _REASONS[status]
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
                *self.config.response_headers("h11"),
            ]
            with self.link.corked():
                await self._send_h11_event(h11.Response(status_code=status, headers=headers, reason=_REASONS[status]))
                if not self._bodiless:
                    await self._send_h11_event(h11.Data(data=body))
                await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())

    async def want_body(self) -> None:
        """The app waits for a body: now the client may send it."""
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    def _can_drop_rest(self) -> bool:
        return (
            self.connection.their_state is _SEND_BODY
            and not self.connection.they_are_waiting_for_100_continue
            and self._expected <= self.limits.drain_limit
        )

    async def stream_send(self, event: StreamEvent) -> None:
        if not isinstance(event, Response) or event.status_code < 200:
            await super().stream_send(event)
            return
        headers = [*event.headers, *self.config.response_headers("h11")]
        if self._will_close():
            headers.append((b"connection", b"close"))
        reason = _REASONS.get(event.status_code, b"")
        await self._send_h11_event(h11.Response(status_code=event.status_code, headers=headers, reason=reason))

    def _will_close(self) -> bool:
        return self.connection.their_state is _SEND_BODY and not self._can_drop_rest()

    async def _check_protocol(self, event: h11.Request) -> None:
        self._expected = 0  # bytes of body that the head announces
        for name, value in event.headers:
            if name == b"content-length":
                self._expected = int(value)
        if event.method == b"PRI" and event.target == b"*" and event.http_version == b"2.0":
            raise H2ProtocolAssumedError(b"PRI * HTTP/2.0\r\n\r\n" + self.connection.trailing_data[0])

    async def _maybe_recycle(self) -> None:
        await self._close_stream()
        connection = self.connection
        if connection.our_state is h11.DONE and not self.context.terminated.is_set():
            if connection.their_state is h11.DONE:
                await self._recycle()
                return
            if self._can_drop_rest():
                self.dropping = True
                self._dropped = 0
                self.drop_deadline = trio.current_time() + DRAIN_TIME
                self.link.wake()  # the reader takes its deadline anew
                return
        self._recycled.unpark_all()
        await self.send(Closed())

    async def _recycle(self) -> None:
        ahead, ended = self.connection.trailing_data
        self._bodiless = False
        if ahead:  # it came before a head was expected, so it is not mended yet
            self._begin_anew()
            if ahead := ahead.lstrip(EMPTY_LINES):
                ahead = self._mended(ahead)
                self.connection.receive_data(ahead)
            if ended:
                self.connection.receive_data(b"")
        else:
            self.connection.start_next_cycle()
        await self.send(Updated(idle=True))
        if self._paused:
            self._paused = False
            self._recycled.unpark_all()
            self.link.wake()
