"""HTTP/2 and WebSockets on a connection of ours: what joins Hypercorn's classes and ``connection.py``.

The first connection that needs them imports this module, in a thread: h2, wsproto and Hypercorn take a tenth of the
start and 4 MB, and most servers see HTTP/1.1 alone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from cog_trio.transport.http.protocol.http1 import Switch
from cog_trio.transport.http.protocol.http2 import Http2
from cog_trio.transport.http.protocol.server_state import ServerState
from cog_trio.transport.http.protocol.websocket import PING, STREAM_ID, WebSocket, WebSocketLine, WebSocketStream

log = logging.getLogger(__name__)

HTTP2_REQUESTS: Final = 10_000  # on one connection: a bound on rapid resets; HTTP/1.1 needs none


class HypercornLine(WebSocketLine, Protocol):
    """What these protocols need of their connection, which is Hypercorn's task group too."""

    async def set_idle(self, idle: bool) -> None: ...
    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None: ...


class HypercornState:
    """What Hypercorn's classes share in one server: its word for the end, and its configurations."""

    def __init__(self, body_limit: int) -> None:
        self.context = WorkerContext(None)
        self.http1 = _config(2**62, body_limit)
        self.http2 = _config(HTTP2_REQUESTS, body_limit)

    async def end(self) -> None:
        await self.context.terminated.set()


async def make_protocol(
    switch: Switch, connection: HypercornLine, app: Any, server: ServerState, secure: bool, addresses: tuple[Any, Any]
) -> Http2 | WebSocket:
    """The protocol in which a connection goes on; ``initiate`` begins it.

    Args:
      app: the ASGI app, whose types are wider than Hypercorn's.
      addresses: the client's and ours.
    """
    state = server.hypercorn
    if not isinstance(state, HypercornState):
        server.hypercorn = state = HypercornState(server.body_limit)
        if server.ending:
            await state.end()
    group: Any = connection

    async def send(event: Any) -> None:
        """What Hypercorn calls to write, to close, and to tell whether a request is open."""
        if isinstance(event, RawData):
            if event.data:
                await connection.put(event.data)
        elif isinstance(event, Updated):
            await connection.set_idle(event.idle)
        elif isinstance(event, Closed):
            await connection.end()

    if switch.head is None:
        http2 = Http2(app, state.http2, state.context, group, ConnectionState({}), secure, *addresses, send)
        http2.attach(server)
        return http2
    stream = WebSocketStream(app, state.http1, state.context, group, secure, *addresses, send, STREAM_ID)
    return WebSocket(switch.head, connection, stream)


def _config(max_requests: int, max_message: int) -> Config:
    config = Config()
    config.include_server_header = False
    config.keep_alive_max_requests = max_requests
    config.websocket_max_message_size = max_message
    config.websocket_ping_interval = PING
    config.errorlog = log
    config.accesslog = None
    return config
