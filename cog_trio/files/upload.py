"""One output file to one URL: ``PUT``, streamed from disk, repeated while that may help.

What is in memory is one piece of the file, read in a thread unless it is small. A try has no fixed length: it is
given up when nothing has moved for the timeout, be it the connect, a piece of the body or the answer. No connection,
a timeout, 408, 429 and 5xx may pass, so they are tried again after a pause; any other answer is final. Redirects that
keep the method are followed here by hand: followed by httpx, a 302 would turn the ``PUT`` into a ``GET`` and look like
a success.

The result is the URL to publish: ``Location`` of the answer, else the URL that took the file, without query (where
signatures stand) and without user and password. Error texts show URLs in that form too.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import trio

from cog_trio.net.http_client import error_reason
from cog_trio.net.urls import public_url, shown_url

if TYPE_CHECKING:
    import httpx

Headers: TypeAlias = "Sequence[tuple[bytes, bytes]]"

PAUSES: Final = (0.5, 1.5)  # seconds before the second and the third try
PIECE: Final = 2**20  # bytes read from disk at a time
CHUNK: Final = 2**16  # bytes sent at a time: progress is seen after each
MAX_REDIRECTS: Final = 10
REDIRECTS: Final = (301, 302, 307, 308)
MAY_PASS: Final = (408, 429)  # and all from 500


@dataclass(frozen=True)
class UploadTarget:
    """Where the files of a service go."""

    url: str  # http or https; or file, for a program of ours that wants files rather than data URLs: see ``keep``
    timeout: float  # seconds without progress

    @property
    def folder(self) -> str | None:
        """The folder of a ``file:`` URL."""
        parts = urlsplit(self.url)
        return unquote(parts.path) if parts.scheme == "file" else None


class UploadFailed(Exception):
    """A file could not be uploaded; the text says which and why."""


class _RetryUpload(UploadFailed):
    """It may work at the next try."""


class UploadNames:
    """The names of one prediction's files at their target: distinct, and the file's own where that is free."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def assign(self, path: str) -> str:
        name = os.path.basename(path)
        stem, extension = os.path.splitext(name)
        while name in self._taken:
            name = f"{stem}-{secrets.token_hex(4)}{extension}"
        self._taken.add(name)
        return name


def file_url(base: str, name: str) -> str:
    """The URL of a file below the base, which may end with a slash or not."""
    parts = urlsplit(base)
    path = parts.path if parts.path.endswith("/") else parts.path + "/"
    return urlunsplit(parts._replace(path=path + quote(os.fsencode(name), safe="")))


def keep(path: str, target: UploadTarget, name: str, *, move: bool) -> str:
    """Put a file into the folder of the target under a name (blocking); gives its ``file:`` URL.

    ``move``: it is ours, so its own place need not keep it.

    Raises:
      OSError: it can't be read or written.
    """
    assert target.folder is not None
    os.makedirs(target.folder, mode=0o700, exist_ok=True)
    place = os.path.join(target.folder, name)
    if move:
        shutil.move(path, place)
    else:
        shutil.copyfile(path, place)
    return file_url(target.url, name)


async def upload(client: httpx.AsyncClient, target: UploadTarget, name: str, file: int, headers: Headers) -> str:
    """Upload an open regular file under a name; gives the URL to publish.

    Args:
      file: its descriptor; its position does not matter and is not moved.
      headers: beside Content-Length.

    Raises:
      UploadFailed: after the last try, or at once where another one can't help.
      OSError: if the file can't be read.

    Cancellation: the transfer is cut; the server may have seen any part of it.
    """
    size = os.fstat(file).st_size
    headers = [*headers, (b"content-length", b"%d" % size)]
    for pause in (*PAUSES, None):
        url = file_url(target.url, name)
        try:
            with trio.CancelScope(deadline=trio.current_time() + target.timeout) as limit:
                return await _put(client, url, headers, _body(file, size, limit, target.timeout))
            raise _RetryUpload(f"no progress for {target.timeout:g} s")
        except UploadFailed as failure:
            if pause is None or not isinstance(failure, _RetryUpload):
                raise UploadFailed(f"{name}: {failure} ({shown_url(url)})") from failure
        await trio.sleep(pause)
    raise AssertionError("the last try returns or raises")


async def _put(client: httpx.AsyncClient, url: str, headers: Headers, body: httpx.AsyncByteStream) -> str:
    import httpx

    try:
        for _ in range(MAX_REDIRECTS):
            request = client.build_request("PUT", url, headers=headers, content=body)
            response = await client.send(request, stream=True, follow_redirects=False)
            await response.aclose()
            location = response.headers.get("location")
            if response.is_success:
                return public_url(urljoin(url, location) if location else url)
            if response.status_code not in REDIRECTS or not location:
                raise _refused(response)
            url = urljoin(url, location)
        raise UploadFailed("too many redirects")
    except (httpx.InvalidURL, ValueError) as error:  # their texts may repeat parts of the URL
        raise UploadFailed("not a valid URL") from error
    except httpx.UnsupportedProtocol as error:
        raise UploadFailed("redirected to what is not an http or https URL") from error
    except httpx.HTTPError as error:
        raise _RetryUpload(error_reason(error)) from error


def _refused(response: httpx.Response) -> UploadFailed:
    status = response.status_code
    kind = _RetryUpload if status >= 500 or status in MAY_PASS else UploadFailed
    return kind(f"the server answered {status} {response.reason_phrase}".rstrip())


def _body(file: int, size: int, limit: trio.CancelScope, timeout: float) -> httpx.AsyncByteStream:
    body: httpx.AsyncByteStream = _body_class()(file, size, limit, timeout)
    return body


@lru_cache(maxsize=1)
def _body_class() -> type[Any]:
    """Made at the first upload, since httpx is loaded then."""
    import httpx

    class Body(httpx.AsyncByteStream):
        """A file as a body that can be sent again. No async generator: one that is left half-way stays unfinished."""

        def __init__(self, file: int, size: int, limit: trio.CancelScope, timeout: float) -> None:
            self._file = file
            self._size = size
            self._limit = limit
            self._timeout = timeout
            self._at = self._read = 0
            self._piece = b""

        def __aiter__(self) -> AsyncIterator[bytes]:
            self._at = self._read = 0
            self._piece = b""
            return self

        async def __anext__(self) -> bytes:
            self._limit.deadline = trio.current_time() + self._timeout  # what was given before is on its way
            if self._at == len(self._piece):
                if self._read == self._size:
                    raise StopAsyncIteration
                wanted = min(PIECE, self._size - self._read)
                if wanted <= CHUNK:  # the way to a thread and back costs more
                    self._piece = os.pread(self._file, wanted, self._read)
                else:
                    self._piece = await trio.to_thread.run_sync(os.pread, self._file, wanted, self._read)
                if not self._piece:
                    raise OSError("the file became shorter while it was uploaded")
                self._read += len(self._piece)
                self._at = 0
            chunk = self._piece[self._at : self._at + CHUNK]
            self._at += len(chunk)
            return chunk

    return Body
