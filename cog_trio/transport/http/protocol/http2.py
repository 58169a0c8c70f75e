"""Hypercorn's HTTP/2, with what a public server needs beside it.

What arrives for a stream that is answered already is dropped instead of raising. A request that can't be understood
ends its stream, not the connection; one whose path is a whole URL is answered with 400. A stream whose client takes
nothing for the write timeout, or whose body makes no progress for the header timeout, is reset; the others go on. A
large body does not come to a halt every 64 KiB, which is what HTTP/2 begins with: each halt is a round trip, and on a
machine that is busy a wait for its turn.
"""

from __future__ import annotations

import re
from typing import Any, Final

import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import trio
from hypercorn.events import Closed, RawData
from hypercorn.protocol.events import Body, Data, EndBody
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.ws_stream import WSStream

from cog_trio.transport.http.protocol.http1 import Http1Limits
from cog_trio.transport.http.protocol.http1_body import BodyRate
from cog_trio.transport.http.protocol.http1_head import LISTS
from cog_trio.transport.http.protocol.websocket import WebSocketStream

# Bytes that a client may send ahead, of a stream and in all; what is not read waits in the kernel.
WINDOW: Final = 2**20
_FIRST_WINDOW: Final = 2**16 - 1  # bytes; the one of the connection can only be raised from there

_REFUSED_PATH: Final = (
    [(b":status", b"400"), (b"content-type", b"application/json"), (b"content-length", b"24")],
    b'{"detail":"Bad Request"}',
)
_CLEAR: Final = re.compile(rb"[\x21-\x7e]+")


class Http2(H2Protocol):
    """HTTP/2, through TLS or by prior knowledge."""

    limits: Http1Limits
    joins_messages = False

    def attach(self, limits: Http1Limits) -> None:
        self.limits = limits
        self._writing: dict[int, trio.CancelScope] = {}  # by stream: its deadline moves with each piece that leaves
        self._bodies: dict[int, BodyRate] = {}  # by stream whose request is not whole
        self.connection.local_settings[h2.settings.SettingCodes.INITIAL_WINDOW_SIZE] = WINDOW
        self.connection.local_settings.acknowledge()  # it goes out with the first, none was promised before

    async def initiate(self, headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None) -> None:
        await super().initiate(headers, settings)
        self.connection.increment_flow_control_window(WINDOW - _FIRST_WINDOW)
        await self._flush()

    def read_deadline(self, now: float, idle_since: float | None, keep_alive: float) -> float:
        if self._bodies:
            return min(pace.deadline for pace in self._bodies.values())
        return float("inf") if idle_since is None else idle_since + keep_alive

    async def refuse(self, status: int) -> None:
        """Something came too slowly: end the streams whose bodies stall."""
        now = trio.current_time()
        for stream_id in [number for number, pace in self._bodies.items() if pace.deadline <= now]:
            await self._give_up(stream_id)

    async def feed(self, data: bytes) -> None:
        """Take what the client has sent; nothing is its end."""
        await self.handle(RawData(data))

    async def connection_lost(self) -> None:
        await self.handle(Closed())
        for buffer in list(self.stream_buffers.values()):  # whoever waits for room in a stream learns of it
            await buffer.close()

    def _note(self, event: Any) -> None:
        """Keep book of the requests that are not whole."""
        if isinstance(event, h2.events.RequestReceived) and event.stream_ended is None:
            self._bodies[event.stream_id] = BodyRate(trio.current_time(), self.limits.header_timeout)
        elif isinstance(event, h2.events.DataReceived) and event.stream_id in self._bodies:
            self._bodies[event.stream_id].add(trio.current_time(), len(event.data))
        elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
            self._bodies.pop(event.stream_id, None)

    async def _close_stream(self, stream_id: int) -> None:
        self._bodies.pop(stream_id, None)
        await super()._close_stream(stream_id)

    async def _handle_events(self, events: list[Any]) -> None:
        for event in events:
            self._note(event)
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.RequestReceived) and not _is_understood(event):
                self.connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            elif isinstance(event, h2.events.RequestReceived) and not _has_path(event):
                self._refuse_path(event.stream_id)
            else:
                if isinstance(event, h2.events.RequestReceived):
                    event.headers = [
                        (name, _told_apart(value) if name == b":method" else value) for name, value in event.headers
                    ]
                await super()._handle_events([event])
                if isinstance(event, h2.events.RequestReceived):
                    _bound(self.streams.get(event.stream_id))
                elif isinstance(event, h2.events.DataReceived) and event.stream_id in self._bodies:
                    self._bodies[event.stream_id].excuse(trio.current_time())
        await self._flush()

    def _refuse_path(self, stream_id: int) -> None:
        """Answer 400 without the app; the rest of the request is dropped."""
        headers = [*_REFUSED_PATH[0], *self.config.response_headers("h2")]
        self.connection.send_headers(stream_id, headers)
        self.connection.send_data(stream_id, _REFUSED_PATH[1], end_stream=True)
        self._bodies.pop(stream_id, None)

    async def stream_send(self, event: StreamEvent) -> None:
        if not isinstance(event, (Body, Data, EndBody)):
            await super().stream_send(event)
            return
        with trio.CancelScope(deadline=trio.current_time() + self.limits.write_timeout) as scope:
            self._writing[event.stream_id] = scope
            await super().stream_send(event)
        self._writing.pop(event.stream_id, None)
        if scope.cancelled_caught:
            await self._give_up(event.stream_id)

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers[stream_id].buffer
        before = len(buffer)
        await super()._send_data(stream_id)
        if len(buffer) < before and (scope := self._writing.get(stream_id)) is not None:
            scope.deadline = trio.current_time() + self.limits.write_timeout

    async def _give_up(self, stream_id: int) -> None:
        """The client takes nothing of this stream: reset it, the others go on."""
        try:
            self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
        except h2.exceptions.ProtocolError:
            return  # it is closed already
        if (buffer := self.stream_buffers.get(stream_id)) is not None:
            await buffer.close()
        await self._close_stream(stream_id)
        await self._window_updated(stream_id)  # whose task finds that it is closed, and takes it off its lists
        await self._flush()


def _told_apart(method: bytes) -> bytes:
    """A method in lower case so that it stays another one: Hypercorn would take it for that in upper case, and a
    ``head`` would get a length without a body."""
    return method if method == method.upper() else b"*" + method


def _bound(stream: object) -> None:
    """Make a WebSocket ours: Hypercorn creates its streams by name."""
    if isinstance(stream, WSStream):
        stream.__class__ = WebSocketStream
        assert isinstance(stream, WebSocketStream)
        stream.bound()


def _is_understood(request: Any) -> bool:
    """Whether Hypercorn can read the headers: it raises on a method, a path or a list of tokens that is absent or not
    ASCII."""
    headers = dict(request.headers)
    if any(name in LISTS and not value.isascii() for name, value in request.headers):
        return False
    return all(_CLEAR.fullmatch(headers.get(name, b"")) for name in (b":method", b":path"))


def _has_path(request: Any) -> bool:
    """Whether ``:path`` begins as RFC 9113 8.3.1 asks: a path, or ``*`` for OPTIONS, and never a whole URL."""
    headers = dict(request.headers)
    path: bytes = headers[b":path"]
    return path.startswith(b"/") or (path == b"*" and headers[b":method"] == b"OPTIONS")
