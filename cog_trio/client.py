"""The one HTTP client: input downloads in the worker, later webhooks and uploads in the parent.

httpx and its certificates cost more than a tenth of a second, so they are loaded at the first need, and in a
thread: neither the parent's loop nor the worker's I/O thread waits for them. Each client belongs to the block
that opened it; what is kept for the life of the process is the TLS context alone, which has no state of a
connection. Redirects are followed; each step (connect, read, write) has its own limit, the caller sets the total.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    import ssl

    import httpx

STEP_TIMEOUT: Final = 10.0  # seconds for a connect, and between two pieces of a body


class ClientUnusable(Exception):
    """The client can't be made from this environment (certificate files, proxy variables); the text says why."""


@asynccontextmanager
async def open_client(
    *, step_timeout: float = STEP_TIMEOUT, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client for the length of a block.

    The User-Agent is ``COG_USER_AGENT``, else httpx's own. Proxy variables count as in curl.

    Args:
      step_timeout: seconds.
      transport: stands in for the network, in tests.

    Raises:
      ClientUnusable: before the block.
    """
    _quiet.threads.add(threading.get_ident())
    if transport is None:
        client = await trio.to_thread.run_sync(_make, step_timeout, None)
    else:  # whoever brought it has loaded httpx, and no TLS is needed
        client = _make(step_timeout, transport)
    async with client:
        yield client


@asynccontextmanager
async def open_body(response: httpx.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """The decoded body of a response, in pieces, for the length of a block that may be left at any point.

    httpx reads through a chain of async generators that nobody closes: left half-way, they would be finished by
    the garbage collector. So a rest is cut by a cancelled read, which unwinds the whole chain.
    """
    import httpx

    pieces = response.aiter_bytes()
    try:
        yield pieces
    finally:
        with trio.CancelScope() as scope:
            scope.cancel()
            with suppress(httpx.HTTPError, httpx.StreamError):  # of a body that nobody wants any more
                async for _ in pieces:
                    pass


def _make(step_timeout: float, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    import httpx

    logging.getLogger("httpx").addFilter(_quiet)  # adding it again changes nothing
    agent = os.environ.get("COG_USER_AGENT")
    try:
        return httpx.AsyncClient(
            timeout=httpx.Timeout(step_timeout, pool=None),
            follow_redirects=True,
            headers={"User-Agent": agent} if agent else None,
            verify=_tls_context() if transport is None else False,
            transport=transport,
        )
    except (OSError, ValueError, httpx.InvalidURL) as error:
        raise ClientUnusable(f"the HTTP client can't be set up: {error}") from error


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


@lru_cache(maxsize=1)
def _tls_context() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()
