"""Our own ``serve``: sockets, the accept loop, the nursery of connections, and their end.

In: an ASGI app and the settings. Out: bound URLs through ``started``. Hypercorn gives the protocols; how they are
started and ended is ours, since its own server dies of one bad connection (``connection.py`` has the guard).

The listener stays open while the service drains; the app refuses new work then, and its replies close their
connections. The end of serving is the cancellation of ``serve_http``: no connection is accepted any more, idle
ones and handshakes of TLS close at once, the others get ``CLOSE_GRACE`` to finish what they are writing. For that
the connections live in a task whose shield goes up when it starts and gets its deadline when the end begins.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from cog_trio.certificate import BadCertificate, make_context
from cog_trio.settings import Settings
from cog_trio.transport.http.connection import App, Connection, serve_connection
from cog_trio.transport.http.http1 import PING
from cog_trio.transport.http.sockets import CannotListen, is_loopback, open_listeners, tell, url_of
from cog_trio.transport.http.tls import handshake

if TYPE_CHECKING:
    from cog_trio.service import PredictionService

__all__ = ["CannotListen", "ServerState", "open_listeners", "serve_app", "serve_http"]

log = logging.getLogger(__name__)

CLOSE_GRACE: Final = 3.0  # seconds that open connections get at the end
MAX_HEAD: Final = 32 * 2**10  # bytes of a request's head; a larger one gets 431
MIN_DRAIN: Final = 2**20  # bytes of an unwanted body that are read in any case
HTTP2_REQUESTS: Final = 10_000  # on one connection: a bound on rapid resets; HTTP/1.1 needs none
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    b'content-length: 33\r\nconnection: close\r\n\r\n{"detail":"Too many connections"}'
)


class ServerState:
    """What all connections of one server share: limits, Hypercorn's configurations, who is connected."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.keep_alive = settings.timeout_keep_alive
        self.header_timeout = settings.header_timeout
        self.write_timeout = settings.write_timeout
        self.max_head = MAX_HEAD
        self.drain_limit = max(2 * settings.body_limit, MIN_DRAIN)
        self.limit = settings.limit_connections
        self.context = WorkerContext(None)
        self.config = _config(2**62, settings.body_limit)
        self.config2 = _config(HTTP2_REQUESTS, settings.body_limit)
        self.connections: set[Connection] = set()
        self.handshakes: set[trio.CancelScope] = set()
        self.refusing = 0

    @property
    def full(self) -> bool:
        return len(self.connections) + len(self.handshakes) >= self.limit

    @property
    def ending(self) -> bool:
        return self.context.terminated.is_set()


def _config(max_requests: int, max_message: int) -> Config:
    config = Config()
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEAD
    config.keep_alive_max_requests = max_requests
    config.websocket_max_message_size = max_message
    config.websocket_ping_interval = PING
    config.errorlog = log
    config.accesslog = None
    return config


async def serve_http(
    service: PredictionService,
    settings: Settings | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the prediction API until cancelled; ``started`` gives the bound URLs.

    ``settings``: where and how; those of the service unless said. It goes on when the service is shut down, and refuses
    what is new; ``service.wait_stopped`` tells when nothing is left that clients could ask for.

    Raises:
      CannotListen: before ``started``.
    """
    from cog_trio.observe.metrics import observing
    from cog_trio.transport.http.routes import make_app

    settings = settings or service.settings
    tls = None
    if settings.certfile is not None and settings.keyfile is not None:
        try:
            tls = await trio.to_thread.run_sync(make_context, settings.certfile, settings.keyfile)
        except BadCertificate as error:
            raise CannotListen(str(error)) from error
    listeners = await open_listeners(settings)
    with observing(service) as metrics:
        app = make_app(service, settings, metrics, loopback=all(map(is_loopback, listeners)))
        await serve_app(app, settings, listeners, tls, task_status=task_status)


async def serve_app(
    app: App,
    settings: Settings,
    listeners: list[trio.SocketListener],
    tls: ssl.SSLContext | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve any ASGI app on listeners that are open, and close them."""
    state = ServerState(settings, tls)
    scheme = "http" if tls is None else "https"
    try:
        async with trio.open_nursery() as outer, _connections(outer, state) as nursery:
            task_status.started([url_of(listener, scheme) for listener in listeners])
            await trio.serve_listeners(partial(_accepted, app, state), listeners, handler_nursery=nursery)
    finally:
        for listener in listeners:
            listener.socket.close()
        if settings.uds is not None:
            _unlink(settings.uds)


@asynccontextmanager
async def _connections(outer: trio.Nursery, state: ServerState) -> AsyncIterator[trio.Nursery]:
    """A nursery for connections that outlives the accept loop by ``CLOSE_GRACE``."""
    ending = trio.Event()
    nursery: trio.Nursery = await outer.start(_hold, ending)
    try:
        yield nursery
    finally:
        nursery.cancel_scope.deadline = trio.current_time() + CLOSE_GRACE
        ending.set()
        await state.context.terminated.set()
        for connection in list(state.connections):
            connection.close_if_idle()
        for scope in state.handshakes:
            scope.cancel()


async def _hold(ending: trio.Event, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        await trio.lowlevel.checkpoint_if_cancelled()  # then nobody waits for the nursery, and nobody will end it
        nursery.cancel_scope.shield = True  # until the end begins, which gives it a deadline
        task_status.started(nursery)
        await ending.wait()


async def _accepted(app: App, state: ServerState, stream: trio.SocketStream) -> None:
    if state.full:
        await _refuse(state, stream)
    elif state.tls is None:
        await serve_connection(app, state, stream)
    else:
        with trio.move_on_after(state.header_timeout) as scope:
            state.handshakes.add(scope)
            try:
                secured = await handshake(stream, state.tls)
            finally:
                state.handshakes.discard(scope)
        if not scope.cancelled_caught and secured is not None:
            await serve_connection(app, state, secured)


async def _refuse(state: ServerState, stream: trio.SocketStream) -> None:
    """One connection too many: say so, unless many are being told already, or it takes a handshake to be told."""
    state.refusing += 1
    try:
        if state.refusing <= 64 and state.tls is None:
            await tell(stream, _FULL)
        await trio.aclose_forcefully(stream)
    finally:
        state.refusing -= 1


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        log.debug("the socket %s is gone already: %s", path, error)
