"""A WebSocket on one HTTP/1.1 connection: Hypercorn's stream, with what a public server needs beside it.

It takes over from ``http1.py`` with the request for it, and lasts to the end of the connection. Every end has its Close
frame, with the code that says why (RFC 6455 7.4.1); a refused handshake is a reply with a JSON body, after which the
connection is closed. What a client can make us hold is bounded: no compression, and messages up to the limit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any, Final, Protocol

from hypercorn.protocol.events import Body, Data, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.ws_stream import FrameTooLargeError, WebsocketBuffer, WSStream
from hypercorn.typing import ConnectionState
from wsproto.connection import ConnectionState as WebSocketState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from cog_trio.transport.http.protocol.http1_head import RequestHead, clock, render_head
from cog_trio.transport.http.protocol.http1_response import ResponseWriter

STREAM_ID: Final = 1
PING: Final = 20.0  # seconds between two pings, so that proxies keep the socket and a dead client is found
PONG_TIME: Final = 3 * PING  # seconds until a client that answers nothing is given up
VERSION: Final = b"13"


class WebSocketLine(Protocol):
    """What a WebSocket needs of its connection."""

    def corked(self) -> AbstractContextManager[None]: ...
    async def flush(self) -> None: ...
    async def write(self, *pieces: bytes) -> None: ...
    async def put(self, data: bytes) -> None: ...
    async def end(self) -> None: ...


class BoundedMessage(WebsocketBuffer):
    """A message that is coming in: of one that is too large nothing more is kept."""

    def extend(self, event: Message[Any]) -> None:
        if self.length > self.max_length:
            raise FrameTooLargeError
        super().extend(event)


class WebSocketStream(WSStream):
    """One WebSocket, over HTTP/1.1 or as a stream of HTTP/2."""

    def bound(self) -> None:
        """Bound what its client can make us hold; right after the request for it."""
        self.handshake.extensions = None
        self.buffer = BoundedMessage(self.config.websocket_max_message_size)

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                try:
                    self.buffer.extend(event)
                except FrameTooLargeError:
                    await self._close(CloseConnection(CloseReason.MESSAGE_TOO_BIG))
                    return
                if event.message_finished:
                    assert self.app_put is not None  # it was accepted
                    await self.app_put(self.buffer.to_message())
                    self.buffer.clear()
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):  # also for what breaks the protocol, with the code for it
                await self._close(event.response())
                return

    async def _close(self, event: CloseConnection) -> None:
        """Send a Close frame, if none was sent, and end the stream."""
        if self.connection.state in (WebSocketState.OPEN, WebSocketState.REMOTE_CLOSING):
            await self._send_wsproto_event(event)
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_error_response(self, status_code: int) -> None:
        """Refuse the handshake; one of another version is told ours."""
        headers = [(b"content-type", b"application/json")]
        if status_code == HTTPStatus.BAD_REQUEST and self.handshake.version != VERSION:
            status_code = HTTPStatus.UPGRADE_REQUIRED
            headers.append((b"sec-websocket-version", VERSION))
        body = b'{"detail":"%b"}' % HTTPStatus(status_code).phrase.encode()
        headers.append((b"content-length", b"%d" % len(body)))
        await self.send(Response(stream_id=self.stream_id, status_code=status_code, headers=headers))
        await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))


class WebSocket:
    """The protocol of a connection that was HTTP/1.1 up to the request for a WebSocket."""

    joins_messages = True  # of the app, for one send

    def __init__(self, head: RequestHead, line: WebSocketLine, stream: WebSocketStream) -> None:
        self._head = head
        self._line = line
        self._reply = ResponseWriter(head)
        self._stream = stream
        stream.send = self._send

    async def initiate(self) -> None:
        """Answer the request; what follows it comes through ``feed``."""
        head = self._head
        request = Request(STREAM_ID, head.headers, head.version, head.method, head.target, ConnectionState({}))
        await self._stream.handle(request)
        self._stream.bound()

    def read_deadline(self, now: float, idle_since: float | None, keep_alive: float) -> float:
        return now + PONG_TIME

    async def refuse(self, status: int) -> None:
        """Something came too slowly: a client that does not answer to pings is gone."""
        await self._line.end()

    async def connection_lost(self) -> None:
        await self._stream.handle(StreamClosed(STREAM_ID))

    async def feed(self, data: bytes) -> None:
        """Take what the client has sent; nothing is its end."""
        if data:
            with self._line.corked():
                await self._stream.handle(Data(STREAM_ID, data))
            await self._line.flush()

    async def _send(self, event: StreamEvent) -> None:
        """What the stream calls to write and to close."""
        if isinstance(event, Response) and event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            head = render_head(event.status_code, [*event.headers, (b"date", clock.date())])
            await self._line.put(head)
        elif isinstance(event, Response):
            headers = [header for header in event.headers if header[0] != b"connection"]
            self._reply.start(event.status_code, headers, last=True)
        elif isinstance(event, Body):
            await self._line.write(*self._reply.body(event.data, True))
        elif isinstance(event, Data):
            await self._line.put(event.data)
        elif isinstance(event, EndBody):
            await self._line.write(*self._reply.body(b"", False))
            await self._line.end()
        elif isinstance(event, StreamClosed):
            await self._stream.handle(event)
            await self._line.end()
