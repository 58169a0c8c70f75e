"""Our own ``serve``: sockets, the accept loop, the nursery of connections, and their end.

In: an ASGI app and the settings. Out: bound URLs through ``started``. Hypercorn gives the protocols; how they are
started and ended is ours, since its own server dies of one bad connection (``connection.py`` has the guard).

The listener stays open while the service drains; the app refuses new work then, and its replies close their
connections. The end of serving is the cancellation of ``serve_app``: no connection is accepted any more, idle
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
from typing import Final

import trio

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.connection import App, serve_connection
from cog_trio.transport.http.protocol.listeners import refuse_client, url_of
from cog_trio.transport.http.protocol.server_state import ServerState
from cog_trio.transport.http.protocol.tls import handshake

log = logging.getLogger(__name__)

CLOSE_GRACE: Final = 3.0  # seconds that open connections get at the end
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    b'content-length: 33\r\nconnection: close\r\n\r\n{"detail":"Too many connections"}'
)


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
        await state.end()
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
            await refuse_client(stream, _FULL)
        await trio.aclose_forcefully(stream)
    finally:
        state.refusing -= 1


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        log.debug("the socket %s is gone already: %s", path, error)
