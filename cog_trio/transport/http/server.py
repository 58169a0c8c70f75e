"""Our own ``serve``: sockets, the accept loop, the nursery of connections, and their end.

In: an ASGI app and the settings. Out: bound URLs through ``started``. Hypercorn gives the protocols; how they are
started and ended is ours, since its own server dies of one bad connection (``connection.py`` has the guard).

The listener stays open while the service drains; the app refuses new work then, and its replies close their
connections. The end of serving is the cancellation of ``serve_http``: no connection is accepted any more, idle
ones close at once, the others get ``CLOSE_GRACE`` to finish what they are writing. For that the connections live
in a task whose shield goes up when it starts and gets its deadline when the end begins.
"""

from __future__ import annotations

import errno
import logging
import os
import socket as stdlib_socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from cog_trio.settings import Settings
from cog_trio.transport.http.connection import App, Connection, serve_connection

if TYPE_CHECKING:
    from cog_trio.service import PredictionService

log = logging.getLogger(__name__)

CLOSE_GRACE: Final = 3.0  # seconds that open connections get at the end
MAX_HEAD: Final = 32 * 2**10  # bytes of a request's head; a larger one gets 431
MIN_DRAIN: Final = 2**20  # bytes of an unwanted body that are read in any case
HTTP2_REQUESTS: Final = 10_000  # on one connection: a bound on rapid resets; HTTP/1.1 needs none
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    b'content-length: 33\r\nconnection: close\r\n\r\n{"detail":"Too many connections"}'
)


class CannotListen(Exception):
    """The address can't be bound; the text is one line for the user."""


class ServerState:
    """What all connections of one server share: limits, Hypercorn's configurations, who is connected."""

    def __init__(self, settings: Settings) -> None:
        self.keep_alive = settings.timeout_keep_alive
        self.header_timeout = settings.header_timeout
        self.write_timeout = settings.write_timeout
        self.drain_limit = max(2 * settings.body_limit, MIN_DRAIN)
        self.limit = settings.limit_connections
        self.context = WorkerContext(None)
        self.config = _config(2**62)
        self.config2 = _config(HTTP2_REQUESTS)
        self.connections: set[Connection] = set()
        self.refusing = 0


def _config(max_requests: int) -> Config:
    config = Config()
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEAD
    config.keep_alive_max_requests = max_requests
    config.errorlog = log
    config.accesslog = None
    return config


async def serve_http(
    service: PredictionService,
    settings: Settings,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the prediction API until cancelled; ``started`` gives the bound URLs.

    Raises:
      CannotListen: before ``started``.
    """
    from cog_trio.transport.http.routes import make_app

    listeners = await open_listeners(settings)
    app = make_app(service, settings, loopback=all(map(_is_loopback, listeners)))
    await serve_app(app, settings, listeners, task_status=task_status)


async def serve_app(
    app: App,
    settings: Settings,
    listeners: list[trio.SocketListener],
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve any ASGI app on listeners that are open, and close them."""
    state = ServerState(settings)
    try:
        async with trio.open_nursery() as outer, _connections(outer, state) as nursery:
            task_status.started([url_of(listener) for listener in listeners])
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
        ending.set()
        await state.context.terminated.set()
        nursery.cancel_scope.deadline = trio.current_time() + CLOSE_GRACE
        for connection in list(state.connections):
            connection.close_if_idle()


async def _hold(ending: trio.Event, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True  # until the end begins, which gives it a deadline
        task_status.started(nursery)
        await ending.wait()


async def _accepted(app: App, state: ServerState, stream: trio.SocketStream) -> None:
    if len(state.connections) < state.limit:
        await serve_connection(app, state, stream)
    else:
        await _refuse(state, stream)


async def _refuse(state: ServerState, stream: trio.SocketStream) -> None:
    """One connection too many: say so, unless many are being told already."""
    state.refusing += 1
    try:
        async with stream:
            if state.refusing <= 64:
                with trio.move_on_after(1.0):
                    await stream.send_all(_FULL)
                    await stream.send_eof()
                    while await stream.receive_some(2**16):
                        pass
    except (trio.BrokenResourceError, OSError):
        log.debug("a client left while it was refused")
    finally:
        state.refusing -= 1


# Sockets.


async def open_listeners(settings: Settings) -> list[trio.SocketListener]:
    """Bind what the settings name: a descriptor, a Unix socket, or host and port.

    Raises:
      CannotListen: with one line that says what failed.
    """
    try:
        if settings.fd is not None:
            where = f"descriptor {settings.fd}"
            return [_listen(trio.socket.from_stdlib_socket(_adopt(settings.fd)), settings.backlog)]
        if settings.uds is not None:
            where = settings.uds
            return [await _open_unix(settings.uds, settings.backlog)]
        host = settings.host.removeprefix("[").removesuffix("]")
        where = f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"
        return await _open_tcp(host, settings.port, settings.backlog)
    except OSError as error:
        raise CannotListen(f"can't listen on {where}: {error.strerror or error}") from error


def _adopt(fd: int) -> stdlib_socket.socket:
    sock = stdlib_socket.socket(fileno=fd)
    if sock.type != stdlib_socket.SOCK_STREAM:
        sock.detach()
        raise OSError(errno.EINVAL, "not a stream socket")
    sock.set_inheritable(False)
    return sock


def _listen(sock: Any, backlog: int) -> trio.SocketListener:
    sock.listen(backlog)
    return trio.SocketListener(sock)


async def _open_unix(path: str, backlog: int) -> trio.SocketListener:
    sock = trio.socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        await sock.bind(path)
        return _listen(sock, backlog)
    except BaseException:
        sock.close()
        raise


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens on; anything else at the path is left to ``bind`` to refuse."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError:
            return


async def _open_tcp(host: str, port: int, backlog: int) -> list[trio.SocketListener]:
    """One listener an address of the name. An address that this machine lacks is passed over if another works."""
    found = await trio.socket.getaddrinfo(
        host or None, port, type=stdlib_socket.SOCK_STREAM, flags=stdlib_socket.AI_PASSIVE
    )
    listeners: list[trio.SocketListener] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listeners.append(await _bind(family, kind, protocol, address, backlog))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    if not listeners:
        raise missing or OSError(errno.EADDRNOTAVAIL, "no address")
    return listeners


async def _bind(family: int, kind: int, protocol: int, address: Any, backlog: int) -> trio.SocketListener:
    sock = trio.socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEADDR, 1)
        if family == stdlib_socket.AF_INET6:
            sock.setsockopt(stdlib_socket.IPPROTO_IPV6, stdlib_socket.IPV6_V6ONLY, 1)
        await sock.bind(address)
        return _listen(sock, backlog)
    except BaseException:
        sock.close()
        raise


def url_of(listener: trio.SocketListener) -> str:
    sock = listener.socket
    address = sock.getsockname()
    if sock.family == stdlib_socket.AF_UNIX:
        return f"unix:{os.fsdecode(address)}"
    host = f"[{address[0]}]" if sock.family == stdlib_socket.AF_INET6 else address[0]
    return f"http://{host}:{address[1]}"


def _is_loopback(listener: trio.SocketListener) -> bool:
    sock = listener.socket
    if sock.family == stdlib_socket.AF_UNIX:
        return False
    return ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        log.debug("the socket %s is gone already: %s", path, error)
