"""The one HTTP client: input downloads in the worker, webhooks and uploads in the parent.

httpx and its certificates cost more than a tenth of a second, so they are loaded at the first need, and in a
thread: neither the parent's loop nor the worker's I/O thread waits for them. Each client belongs to the block
that opened it; what is kept for the life of the process is the TLS context alone, which has no state of a
connection. Redirects are followed; each step (connect, read, write) has its own limit, the caller sets the total.

Under a policy (``host_policy.py``) names are resolved here and each address is asked for before it is connected to,
also after a redirect. Proxies are not used then: behind one nobody knows where a connection ends.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import trio

from cog_trio.net.host_policy import HostPolicy, HostRefused

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

if TYPE_CHECKING:
    import ssl

    import httpx

STEP_TIMEOUT: Final = 10.0  # seconds for a connect, and between two pieces of a body
CONNECTIONS: Final = 100  # at once; who comes then waits
NOT_ALLOWED: Final = "--input-hosts does not allow the host"


class ClientUnusable(Exception):
    """The client can't be made from this environment (certificate files, proxy variables); the text says why."""


@asynccontextmanager
async def open_client(
    *,
    step_timeout: float = STEP_TIMEOUT,
    connections: int = CONNECTIONS,
    hosts: HostPolicy | None = None,
    cafile: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client for the length of a block.

    The User-Agent is ``COG_USER_AGENT``, else httpx's own. Proxy variables count as in curl.

    Args:
      step_timeout: seconds.
      connections: at once.
      hosts: which may be connected to; ``HostRefused`` comes out of a request to another. None: all.
      cafile: certificates that servers are trusted by; None: the usual ones.
      transport: stands in for the network, in tests.

    Raises:
      ClientUnusable: before the block.
    """
    _quiet.threads.add(threading.get_ident())
    if transport is None:
        client = await trio.to_thread.run_sync(_make, step_timeout, connections, hosts, None, cafile)
    else:  # whoever brought it has loaded httpx, and no TLS is needed
        client = _make(step_timeout, connections, None, transport)
    async with client:
        yield client


@asynccontextmanager
async def open_body(response: httpx.Response, *, decoded: bool = True) -> AsyncIterator[AsyncIterator[bytes]]:
    """The body of a response, in pieces, for the length of a block that may be left at any point.

    ``decoded``: unpacked, if it came packed.

    httpx reads through a chain of async generators that nobody closes: left half-way, they would be finished by
    the garbage collector. So a rest is cut by a cancelled read, which unwinds the whole chain.
    """
    import httpx

    pieces = response.aiter_bytes() if decoded else response.aiter_raw()
    try:
        yield pieces
    finally:
        with trio.CancelScope() as scope:
            scope.cancel()
            with suppress(httpx.HTTPError, httpx.StreamError):  # of a body that nobody wants any more
                async for _ in pieces:
                    pass


def open_sync_client(step_timeout: float, hosts: HostPolicy | None = None) -> httpx.Client:
    """A client for the thread of a model, which reads a file input itself; arguments as of ``open_client``.

    Its owner closes it.
    """
    import httpx

    transport = None
    if hosts is not None:
        transport = httpx.HTTPTransport(verify=tls_context(None))
        pool: Any = transport._pool
        pool._network_backend = _SyncGuard(pool._network_backend, hosts)
    return httpx.Client(
        timeout=step_timeout, follow_redirects=True, headers=_agent(), verify=tls_context(None), transport=transport
    )


def _make(
    step_timeout: float,
    connections: int,
    hosts: HostPolicy | None,
    transport: httpx.AsyncBaseTransport | None,
    cafile: str | None = None,
) -> httpx.AsyncClient:
    try:
        import httpx
    except ImportError as error:
        raise ClientUnusable(f"the HTTP client can't be loaded: {error}") from error

    logging.getLogger("httpx").addFilter(_quiet)  # adding it again changes nothing
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=20)
    try:
        if transport is None and hosts is not None:
            guarded = httpx.AsyncHTTPTransport(verify=tls_context(None), limits=limits)
            pool: Any = guarded._pool
            pool._network_backend = _Guard(pool._network_backend, hosts)
            transport = guarded
        return httpx.AsyncClient(
            timeout=httpx.Timeout(step_timeout, pool=None),
            limits=limits,
            follow_redirects=True,
            headers=_agent(),
            verify=tls_context(cafile) if transport is None else False,
            transport=transport,
        )
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:  # ImportError: a SOCKS proxy needs a package
        raise ClientUnusable(f"the HTTP client can't be set up: {error}") from error


def _agent() -> dict[str, str] | None:
    agent = os.environ.get("COG_USER_AGENT")
    return {"User-Agent": agent} if agent else None


class _Guard:
    """httpcore's way to the network, asked for allowed addresses only. Those are tried one after the other."""

    def __init__(self, inner: Any, hosts: HostPolicy) -> None:
        self._inner = inner
        self._hosts = hosts

    async def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
        import httpcore

        refuse_strangers(self._hosts, host)
        try:
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        *others, last = allowed(self._hosts, host, found)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._inner.connect_tcp(address, port, **options)
        return await self._inner.connect_tcp(last, port, **options)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _SyncGuard:
    def __init__(self, inner: Any, hosts: HostPolicy) -> None:
        self._inner = inner
        self._hosts = hosts

    def connect_tcp(self, host: str, port: int, **options: Any) -> Any:
        import httpcore

        refuse_strangers(self._hosts, host)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        *others, last = allowed(self._hosts, host, found)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return self._inner.connect_tcp(address, port, **options)
        return self._inner.connect_tcp(last, port, **options)


def refuse_strangers(hosts: HostPolicy, name: str) -> None:
    """Before it is looked up.

    Raises:
      HostRefused: if no address of it could be allowed.
    """
    if not hosts.may_allow(name):
        raise HostRefused(f"{NOT_ALLOWED} {name}")


def allowed(hosts: HostPolicy, name: str, found: Iterable[Any]) -> list[str]:
    """The addresses among those that a name was resolved to (as of ``getaddrinfo``) that may be connected to.

    Raises:
      HostRefused: if none may.
    """
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    good = [address for address in addresses if hosts.allows(name, address)]
    if not good:
        where = "" if name in addresses else f" at {', '.join(addresses)}"
        raise HostRefused(f"{NOT_ALLOWED} {name}{where}")
    return good


def error_reason(error: BaseException) -> str:
    """The text of an error, or of the one beneath it: TLS faults reach us in an empty wrapping, and a connect that
    failed says only that all addresses did."""
    text = str(error)
    inner: BaseException | None = error
    for _ in range(8):
        inner = inner and (inner.__cause__ or inner.__context__)
        if inner is None:
            break
        if isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
            if isinstance(inner, OSError) and inner.errno:
                return os.strerror(inner.errno)
        if not text or (isinstance(inner, OSError) and "certificate" in str(inner)):
            text = str(inner)
    return text or type(error).__name__


class _Quiet(logging.Filter):
    """Drops what httpx logs of our own requests: whole URLs, with the passwords and signatures in them.

    A model's requests are its own affair: they are made in other threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread not in self.threads


_quiet: Final = _Quiet()


@lru_cache(maxsize=2)
def tls_context(cafile: str | None) -> ssl.SSLContext:
    """Who is trusted: the usual authorities, or those of a file (blocking).

    Raises:
      OSError: the file can't be used (``ssl.SSLError`` is one).
    """
    if cafile is not None:
        import ssl

        return ssl.create_default_context(cafile=cafile)
    import httpx

    return httpx.create_ssl_context()
