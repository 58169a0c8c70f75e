"""``AsyncClient``: for programs on asyncio and on trio."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import anyio
import httpx

from cog_trio.client.errors import ServerUnreachable
from cog_trio.client.events import ClientEvent
from cog_trio.client.json_body import JsonBody
from cog_trio.client.remote_prediction import PredictionPage, RemotePrediction
from cog_trio.client.server_api import HttpAnswer, NotSent, ServerApi
from cog_trio.net.http_client import error_reason

CONNECT: Final = 10.0  # seconds
RETRIES: Final = 3


class AsyncClient:
    """A server of cog-trio or Cog, as a program on asyncio or trio uses it: ``async with AsyncClient(url) as client``.

    Inputs are plain values of JSON; a path, or a file that is open for reading bytes, is sent as a file. A call that
    is cancelled, by a scope of trio or the task of asyncio, ends the prediction that it waits for.

    Args:
      url: where the server is, with its ``--root-path`` if it has one.
      token: bearer token, of a server with ``--auth-token``.
      retries: how often a request is sent again, with growing pauses, when the server can't be reached, or a stream
        broke; 5 at most.
      client: an ``httpx.AsyncClient`` to be used; it stays open at the end.

    Every call raises ``ServerUnreachable`` if the server can't be reached, and a ``RequestRefused`` (``InputsRefused``,
    ``ServerBusy``, ``ServerNotReady``, ``TokenRefused``, ``NotFound``) if it refuses.
    """

    def __init__(
        self, url: str, *, token: str | None = None, retries: int = RETRIES, client: httpx.AsyncClient | None = None
    ) -> None:
        self.url = url
        self._own = client is None
        self._client = client or httpx.AsyncClient(follow_redirects=True)
        self._api = ServerApi(_AsyncHttp(self._client), url, token, retries)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._own:
            await self._client.aclose()

    async def run(
        self,
        input: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        timeout: float | None = None,
        output_folder: str | PathLike[str] | None = None,
        training: bool = False,
    ) -> Any:
        """Run a prediction to its end; gives its output.

        Args:
          timeout: seconds, after which it is cancelled.
          output_folder: files of the output are saved there, and the output has their paths; without it, their URLs.
          training: run a training.

        Raises:
          ModelError: it has failed.
          RunCanceled: somebody else has cancelled it.
          RunTimedOut: the timeout is over.

        Cancellation: the prediction is cancelled.
        """
        folder = None if output_folder is None else Path(output_folder)
        return await self._api.run(input, training=training, id=id, timeout=timeout, output_folder=folder)

    def stream(
        self, input: Mapping[str, Any] | None = None, *, id: str | None = None, timeout: float | None = None
    ) -> AsyncGenerator[ClientEvent, None]:
        """Run a prediction and give its events, ``CompletedEvent`` last. A stream that breaks is resumed.

        Close the generator (``contextlib.aclosing``) to leave early: the prediction is cancelled then, unless the
        server keeps it for a while (``--stream-grace``). Of a model that does not stream the events come at its end.

        Raises:
          RunTimedOut: ``timeout`` seconds are over; the prediction was cancelled.

        Cancellation: as closing.
        """
        return self._api.stream(input, id=id, timeout=timeout)

    async def create(
        self,
        input: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        webhook: str | None = None,
        webhook_events_filter: list[str] | None = None,
        training: bool = False,
    ) -> RemotePrediction:
        """Start a prediction and leave it to itself; gives it as it is then.

        Cancellation: it may have been started.
        """
        return await self._api.create(
            input, training=training, id=id, webhook=webhook, webhook_events_filter=webhook_events_filter
        )

    async def get(self, id: str, *, training: bool = False) -> RemotePrediction:
        """A prediction as it is now. A server of Cog has no such call: ``RequestRefused``, 405."""
        return await self._api.get(id, training=training)

    async def list(
        self, *, status: str | None = None, cursor: str | None = None, training: bool = False
    ) -> PredictionPage:
        """A page of predictions, newest first; ``cursor`` is the ``next`` or ``previous`` of another page."""
        return await self._api.list(training=training, status=status, cursor=cursor)

    async def cancel(self, id: str, *, training: bool = False) -> None:
        """Cancel a prediction. ``NotFound``: there is none of this id."""
        await self._api.cancel(id, training=training)

    async def wait(self, id: str, *, timeout: float | None = None, training: bool = False) -> RemotePrediction:
        """Wait for the end of a prediction; gives it.

        Raises:
          RunTimedOut: ``timeout`` seconds are over; the prediction goes on.

        Cancellation: it goes on.
        """
        return await self._api.wait(id, training=training, timeout=timeout)

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the server is there and its model is set up.

        Raises:
          ServerNotReady: its setup has failed, or its worker is gone.
          RunTimedOut: ``timeout`` seconds are over.
        """
        await self._api.wait_ready(timeout)

    async def read(self, url: str) -> bytes:
        """The content of a file of an output, from its data URL or from where it is stored."""
        return await self._api.read(url)

    async def save(self, url: str, path: str | PathLike[str]) -> Path:
        """Save a file of an output; gives the path.

        Cancellation: the file may be there in part.
        """
        return await self._api.save(url, Path(path))


class _AsyncHttp:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: JsonBody | None = None,
        *,
        silence: float | None = None,
    ) -> AsyncGenerator[HttpAnswer, None]:
        sized = {} if body is None else {"content-length": str(body.size)}
        content = None if body is None else body.whole or _in_threads(body)
        timeout = httpx.Timeout(CONNECT, read=silence, write=None, pool=None)
        with translated(url):
            async with self._client.stream(
                method, url, headers={**headers, **sized}, content=content, timeout=timeout
            ) as response:
                pieces = response.aiter_bytes()
                try:
                    yield HttpAnswer(response.status_code, response.headers, pieces)
                finally:
                    await _cut(pieces)

    @contextmanager
    def limit(self, seconds: float | None) -> Iterator[None]:
        with anyio.fail_after(seconds):
            yield

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def write(self, path: Path, pieces: AsyncIterator[bytes]) -> None:
        async with await anyio.open_file(path, "wb") as file:
            async for piece in pieces:
                await file.write(piece)

    async def make_body(self, members: Mapping[str, Any]) -> JsonBody:
        return await anyio.to_thread.run_sync(JsonBody, members)


async def _cut(pieces: AsyncIterator[bytes]) -> None:
    """End a body that may be half read. httpx reads it through generators that nobody closes: a cancelled read does."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for _ in pieces:
                pass


async def _in_threads(body: JsonBody) -> AsyncIterator[bytes]:
    """The pieces of a body; files are read by threads."""
    pieces = body.pieces()
    while piece := await anyio.to_thread.run_sync(next, pieces, b""):
        yield piece


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Errors of httpx as ours."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NotSent(f"{url} can't be reached: {error_reason(error)}") from error
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise ServerUnreachable(f"the connection to {url} broke: {error_reason(error)}") from error
