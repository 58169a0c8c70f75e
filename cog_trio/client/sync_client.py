"""``Client``: for programs without an event loop.

It runs the coroutines of ``server_api.py`` over a client of httpx that blocks. None of their awaits ever suspends, so
the first step of each is also its last.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from cog_trio.client.async_client import CONNECT, RETRIES, translated
from cog_trio.client.events import ClientEvent
from cog_trio.client.json_body import JsonBody
from cog_trio.client.remote_prediction import PredictionPage, RemotePrediction
from cog_trio.client.server_api import HttpAnswer, ServerApi

T = TypeVar("T")


class Client:
    """A server of cog-trio or Cog, as a plain program uses it: ``with Client(url) as client``.

    Arguments, calls and errors are those of ``AsyncClient``; calls block. Ctrl-C ends the prediction that a call waits
    for. A client is for one thread at a time.
    """

    def __init__(
        self, url: str, *, token: str | None = None, retries: int = RETRIES, client: httpx.Client | None = None
    ) -> None:
        self.url = url
        self._own = client is None
        self._client = client or httpx.Client(follow_redirects=True)
        self._api = ServerApi(_BlockingHttp(self._client), url, token, retries)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._own:
            self._client.close()

    def run(
        self,
        input: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        timeout: float | None = None,
        output_folder: str | PathLike[str] | None = None,
        training: bool = False,
    ) -> Any:
        """Run a prediction to its end; gives its output. See ``AsyncClient.run``."""
        folder = None if output_folder is None else Path(output_folder)
        return _done(self._api.run(input, training=training, id=id, timeout=timeout, output_folder=folder))

    def stream(
        self, input: Mapping[str, Any] | None = None, *, id: str | None = None, timeout: float | None = None
    ) -> Generator[ClientEvent, None, None]:
        """Run a prediction and give its events, ``CompletedEvent`` last. See ``AsyncClient.stream``."""
        events = self._api.stream(input, id=id, timeout=timeout)
        try:
            while True:
                try:
                    event = _done(anext(events))
                except StopAsyncIteration:
                    return
                yield event
        finally:
            _done(events.aclose())

    def create(
        self,
        input: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        webhook: str | None = None,
        webhook_events_filter: list[str] | None = None,
        training: bool = False,
    ) -> RemotePrediction:
        """Start a prediction and leave it to itself; gives it as it is then."""
        return _done(
            self._api.create(
                input, training=training, id=id, webhook=webhook, webhook_events_filter=webhook_events_filter
            )
        )

    def get(self, id: str, *, training: bool = False) -> RemotePrediction:
        """A prediction as it is now."""
        return _done(self._api.get(id, training=training))

    def list(self, *, status: str | None = None, cursor: str | None = None, training: bool = False) -> PredictionPage:
        """A page of predictions, newest first; ``cursor`` is the ``next`` or ``previous`` of another page."""
        return _done(self._api.list(training=training, status=status, cursor=cursor))

    def cancel(self, id: str, *, training: bool = False) -> None:
        """Cancel a prediction."""
        _done(self._api.cancel(id, training=training))

    def wait(self, id: str, *, timeout: float | None = None, training: bool = False) -> RemotePrediction:
        """Wait for the end of a prediction; gives it. See ``AsyncClient.wait``."""
        return _done(self._api.wait(id, training=training, timeout=timeout))

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the server is there and its model is set up. See ``AsyncClient.wait_ready``."""
        _done(self._api.wait_ready(timeout))

    def read(self, url: str) -> bytes:
        """The content of a file of an output, from its data URL or from where it is stored."""
        return _done(self._api.read(url))

    def save(self, url: str, path: str | PathLike[str]) -> Path:
        """Save a file of an output; gives the path."""
        return _done(self._api.save(url, Path(path)))


class _BlockingHttp:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._end: float | None = None  # of what is cut, on the clock of ``now``

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
        content = None if body is None else body.pieces()
        with (
            translated(url),
            self._as_time_out(),
            self._client.stream(
                method, url, headers={**headers, **sized}, content=content, timeout=self._timeout(silence)
            ) as response,
        ):
            yield HttpAnswer(response.status_code, response.headers, self._pieces(response))

    def _timeout(self, silence: float | None) -> httpx.Timeout:
        left = self._left()
        limits = [limit for limit in (silence, left) if limit is not None]
        connect = CONNECT if left is None else min(CONNECT, left)
        return httpx.Timeout(connect, read=min(limits, default=None), write=left, pool=None)

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        for piece in response.iter_bytes():
            self._left()
            yield piece

    def _left(self) -> float | None:
        """Seconds until the end of what is cut.

        Raises:
          TimeoutError: it is over.
        """
        if self._end is None:
            return None
        left = self._end - self.now()
        if left <= 0:
            raise TimeoutError
        return left

    @contextmanager
    def _as_time_out(self) -> Iterator[None]:
        """A time-out of httpx is ours, if our time is over with it."""
        try:
            yield
        except httpx.TimeoutException:
            if self._end is not None and self.now() >= self._end:
                raise TimeoutError from None
            raise

    @contextmanager
    def limit(self, seconds: float | None) -> Iterator[None]:
        before = self._end
        self._end = None if seconds is None else self.now() + seconds
        try:
            yield
        finally:
            self._end = before

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        left = self._left()
        time.sleep(seconds if left is None else min(seconds, left))  # noqa: ASYNC251 (no loop is there to be held up)
        self._left()

    async def write(self, path: Path, pieces: AsyncIterator[bytes]) -> None:
        with path.open("wb") as file:
            async for piece in pieces:
                file.write(piece)

    async def make_body(self, members: Mapping[str, Any]) -> JsonBody:
        return JsonBody(members)


def _done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a blocking call was suspended")
