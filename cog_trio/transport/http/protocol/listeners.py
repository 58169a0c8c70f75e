"""Where the server listens: host and port, a Unix socket, or an inherited descriptor."""

from __future__ import annotations

import errno
import logging
import os
import socket as stdlib_socket
import stat
from ipaddress import ip_address
from typing import Any, Final

import trio

from cog_trio.config.settings import Settings

log = logging.getLogger(__name__)

SOCKET_MODE: Final = 0o666  # of a Unix socket, whatever the umask: the permissions of its folder decide who may connect


class CannotListen(Exception):
    """The address can't be bound; the text is one line for the user."""


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
        os.chmod(path, SOCKET_MODE)
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


async def refuse_client(stream: trio.SocketStream, words: bytes) -> None:
    """Say something to a client that is not served, and let it read that; a second at most."""
    try:
        with trio.move_on_after(1.0):
            await stream.send_all(words)
            await stream.send_eof()
            while await stream.receive_some(2**16):
                pass
    except (trio.BrokenResourceError, OSError):
        log.debug("a client left while it was refused")


def url_of(listener: trio.SocketListener, scheme: str = "http") -> str:
    """The URL of a bound listener; of a Unix socket ``unix:`` and its path."""
    sock = listener.socket
    address = sock.getsockname()
    if sock.family == stdlib_socket.AF_UNIX:
        return f"unix:{os.fsdecode(address)}"
    host = f"[{address[0]}]" if sock.family == stdlib_socket.AF_INET6 else address[0]
    return f"{scheme}://{host}:{address[1]}"


def is_loopback(listener: trio.SocketListener) -> bool:
    """Whether it can be reached from this machine only, by an address that a browser can be led to."""
    sock = listener.socket
    if sock.family == stdlib_socket.AF_UNIX:
        return False
    return ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback
