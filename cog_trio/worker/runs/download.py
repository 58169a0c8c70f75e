"""Gets the files of one run's inputs, before the call, in the worker's I/O thread.

In: the sources and a folder. Out: a local path for each source, below that folder, each in a folder of its own so
that its name is exactly the URL's. The first source that fails cancels the others. What was begun by then stays, as it
does after a time-out and a cancel: whoever owns the folder removes it. Up to eight sources are worked on at once.

Bodies come in pieces of at most 64 KiB; they are collected to ``PIECE`` and written in a thread, since a disk
that is busy may hold a write for seconds, and this thread also carries control messages and logs. Small files are
written at once: the way to a thread and back costs more than the write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from io import FileIO
from typing import TYPE_CHECKING, Final

import trio

from cog_trio.net.host_policy import HostPolicy, HostRefused
from cog_trio.net.http_client import ClientUnusable, error_reason, open_body, open_client
from cog_trio.sdk._urls import brings_file, decode_data_url, get_filename, url_scheme
from cog_trio.worker.model.input_values import FileSource, InputError

if TYPE_CHECKING:
    import httpx

AT_ONCE: Final = 8
PIECE: Final = 2**20  # bytes collected for one write in a thread
STEP: Final = 0.2  # seconds between two words of how far it is
INLINE: Final = 2**16  # bytes that are written, or decoded, without a thread
PAUSES: Final = (0.25, 1.0)  # seconds before each further attempt


class _Failed(Exception):
    """One source failed; the text says why."""


class _RetryDownload(_Failed):
    """It failed in a way that may pass: no connection, or the server's own fault."""


async def fetch_all(
    sources: Sequence[FileSource],
    make_folder: Callable[[str], str],
    *,
    timeout: float,
    limit: int | None = None,
    hosts: HostPolicy | None = None,
    tell: Callable[[int, int | None], None] | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> dict[tuple[str, int | None], str]:
    """Get all sources, or none.

    Args:
      make_folder: makes a folder of this name that holds nothing else, and gives its path.
      timeout: seconds for all together.
      limit: bytes of one file.
      hosts: where files may be fetched from; None: anywhere.
      tell: called with the bytes that have come over the network and with those of all, if known: every ``STEP``
        seconds at most, and at the end if it was called before.
      transport: stands in for the network, in tests.

    Raises:
      InputError: naming the first input that failed.

    Cancellation: all transfers are cut, what was written is left.
    """
    if not sources:
        return {}
    run = _Fetches(sources, make_folder, limit, hosts, tell)
    with trio.move_on_after(timeout) as scope:
        await run.fetch(transport)
    if run.failure is not None:
        raise run.failure
    if scope.cancelled_caught:
        source = next(source for source in sources if (source.field, source.index) not in run.files)
        raise _named(source, f"not there within {timeout:g} s")
    run.tell_end()
    return run.files


def _named(source: FileSource, why: str) -> InputError:
    return InputError(source.field, why, index=source.index, url=source.url)


class _Fetches:
    def __init__(
        self,
        sources: Sequence[FileSource],
        make_folder: Callable[[str], str],
        limit: int | None,
        hosts: HostPolicy | None,
        tell: Callable[[int, int | None], None] | None,
    ) -> None:
        self.files: dict[tuple[str, int | None], str] = {}
        self.failure: InputError | None = None
        self._sources = sources
        self._make_folder = make_folder
        self._limit = limit
        self._hosts = hosts
        self._client: httpx.AsyncClient | None = None
        self._pending = iter(enumerate(sources))
        self._tell = tell
        self._next_tell = trio.current_time() + STEP
        self._came = 0  # bytes
        self._lengths: dict[str, int] = {}  # of bodies whose length is known, by path
        self._remote = sum(url_scheme(source.url) != "data" for source in sources)
        self._told = False

    async def fetch(self, transport: httpx.AsyncBaseTransport | None) -> None:
        """Work on all sources; returns early when one has failed."""
        async with AsyncExitStack() as stack:
            remote = next((source for source in self._sources if url_scheme(source.url) != "data"), None)
            if remote is not None:
                try:
                    self._client = await stack.enter_async_context(open_client(hosts=self._hosts, transport=transport))
                except ClientUnusable as error:
                    self.failure = _named(remote, str(error))
                    return
            async with trio.open_nursery() as nursery:
                for _ in range(min(AT_ONCE, len(self._sources))):
                    nursery.start_soon(self._work, nursery.cancel_scope)

    async def _work(self, siblings: trio.CancelScope) -> None:
        for number, source in self._pending:
            try:
                path = self._place(number, source.url)
                await self._one(source.url, path)
            except (_Failed, OSError) as error:
                if self.failure is None:
                    self.failure = _named(source, str(error))
                siblings.cancel()
                return
            self.files[source.field, source.index] = path

    def _place(self, number: int, url: str) -> str:
        try:
            name = get_filename(url)
        except ValueError:
            raise _Failed("not a valid URL") from None
        return os.path.join(self._make_folder(str(number)), "file" if name in ("", ".", "..") else name)

    async def _one(self, url: str, path: str) -> None:
        if self._client is None or url_scheme(url) == "data":
            await self._decode(url, path)
            return
        for pause in (*PAUSES, None):
            try:
                await self._get(self._client, url, path)
            except _RetryDownload:
                if pause is None:
                    raise
                await trio.sleep(pause)
            else:
                return

    async def _decode(self, url: str, path: str) -> None:
        def store() -> None:
            try:
                data = decode_data_url(url)
            except ValueError as error:
                raise _Failed(str(error)) from None
            self._check_size(len(data))
            with FileIO(path, "w") as file:
                _write(file, data)

        if len(url) > INLINE:
            await trio.to_thread.run_sync(store)
        else:
            store()
            await trio.lowlevel.checkpoint()

    async def _get(self, client: httpx.AsyncClient, url: str, path: str) -> None:
        import httpx  # loaded when the client was made

        try:
            async with client.stream("GET", url) as response:
                if not brings_file(response.status_code):
                    kind = _RetryDownload if response.status_code >= 500 else _Failed
                    reason = response.reason_phrase or httpx.codes.get_reason_phrase(response.status_code)
                    raise kind(f"the server answered {response.status_code} {reason}".rstrip())
                length = response.headers.get("content-length", "")
                if length.isdecimal() and "content-encoding" not in response.headers:
                    self._check_size(int(length))
                    self._lengths[path] = int(length)
                with FileIO(path, "w") as file:
                    await self._store(response, file)
        except HostRefused as error:
            raise _Failed(str(error)) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _RetryDownload(f"no connection: {error_reason(error)}") from error
        except httpx.TimeoutException as error:
            raise _Failed("the server did not answer in time") from error
        except httpx.HTTPError as error:
            raise _Failed(error_reason(error)) from error
        except (httpx.InvalidURL, UnicodeError) as error:  # their texts may repeat parts of the URL
            raise _Failed("not a valid URL") from error

    async def _store(self, response: httpx.Response, file: FileIO) -> None:
        size = 0
        piece = bytearray()
        async with open_body(response) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                self._check_size(size)
                self._count(len(chunk))
                piece += chunk
                if len(piece) >= PIECE:
                    await trio.to_thread.run_sync(_write, file, piece)
                    piece = bytearray()
        if len(piece) > INLINE:
            await trio.to_thread.run_sync(_write, file, piece)
        else:
            _write(file, piece)

    def _count(self, size: int) -> None:
        self._came += size
        if self._tell is not None and (now := trio.current_time()) >= self._next_tell:
            self._next_tell = now + STEP
            self._told = True
            total = sum(self._lengths.values()) if len(self._lengths) == self._remote else None
            self._tell(self._came, total)

    def tell_end(self) -> None:
        """All are there."""
        if self._told and self._tell is not None:
            self._tell(self._came, self._came)

    def _check_size(self, size: int) -> None:
        if self._limit is not None and size > self._limit:
            raise _Failed(f"larger than the download limit of {self._limit} bytes")


def _write(file: FileIO, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
