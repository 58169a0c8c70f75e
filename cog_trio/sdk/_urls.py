"""What a URL input is before it is a file: its name, the bytes of a ``data:`` URL, and the lazily opened `URLFile`.

Nothing here touches the network before a `URLFile` is first read; only then is httpx imported, so that a model
that takes no files never pays for it.
"""

from __future__ import annotations

import base64
import binascii
import io
import mimetypes
import os
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from cog_trio.net.urls import shown_url

from . import mimetypes_ext

if TYPE_CHECKING:
    import httpx
    from typing_extensions import Buffer

FILENAME_ILLEGAL_CHARS: Final = frozenset("\u0000/")
FILENAME_MAX_LENGTH: Final = 200  # bytes; file systems allow 255, the temporary prefix needs room
FETCH_TIMEOUT: Final = 10.0  # seconds for each step of a URLFile's request: connect, and each read

mimetypes_ext.install_mime_extensions()


def url_scheme(text: str) -> str:
    """The scheme of a URL in lower case, ``""`` if there is none."""
    scheme, colon, _ = text.partition(":")
    return scheme.lower() if colon else ""


def get_filename(url: str) -> str:
    """The file name that a URL stands for; ``""`` when its path has no last segment."""
    if url_scheme(url) == "data":
        kind = data_url_type(url)
        return "file" + (mimetypes.guess_extension(kind) or mimetypes_ext.ALIASES.get(kind, ""))
    segment = os.path.basename(urllib.parse.urlsplit(url).path)
    return _safe_name(urllib.parse.unquote_plus(segment))


def _safe_name(name: str) -> str:
    name = "".join("_" if char in FILENAME_ILLEGAL_CHARS else char for char in name)
    if len(name.encode(errors="surrogatepass")) <= FILENAME_MAX_LENGTH:
        return name
    stem, extension = os.path.splitext(name)
    room = FILENAME_MAX_LENGTH - len(extension.encode()) - 1
    if room < 1:  # an "extension" that is itself too long is none
        stem, extension, room = name, "", FILENAME_MAX_LENGTH - 1
    return stem.encode()[:room].decode(errors="ignore") + "~" + extension


def data_url_type(url: str) -> str:
    """The MIME type of a ``data:`` URL without its parameters; ``text/plain`` where it names none (RFC 2397)."""
    head = url.partition(":")[2].partition(",")[0]
    return head.partition(";")[0].strip().lower() or "text/plain"


def decode_data_url(url: str) -> bytes:
    """The bytes of a ``data:`` URL.

    Blanks and missing padding are forgiven, as browsers do; any other fault is one, not an empty file.

    Raises:
      ValueError: saying what is wrong.
    """
    head, comma, body = url.partition(":")[2].partition(",")
    if not comma:
        raise ValueError("the data: URL has no comma")
    raw = urllib.parse.unquote_to_bytes(body) if "%" in body else body.encode()
    if not head.rstrip().lower().endswith(";base64"):
        return raw
    try:
        return base64.b64decode(raw, validate=True)
    except binascii.Error:
        raw = raw.translate(None, b" \t\r\n\f").rstrip(b"=")
    try:
        return base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the data: URL is not valid base64: {error}") from None


def _open_client(step_timeout: float) -> httpx.Client:
    import httpx

    agent = os.environ.get("COG_USER_AGENT")
    headers = {"User-Agent": agent} if agent else None
    return httpx.Client(timeout=step_timeout, follow_redirects=True, headers=headers)


open_client: Callable[[float], httpx.Client] = _open_client
"""What a `URLFile` asks for a client; a worker puts in its own, which knows what may be fetched."""


class _UrlBody(io.RawIOBase):
    """The decoded body of a running httpx response, as raw bytes to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def brings_file(status: int) -> bool:
    """Whether the body of a response with this status is the file that was asked for."""
    return 200 <= status < 300 and status not in (204, 205)  # these two have none


def _raise_status(response: httpx.Response, url: str) -> None:
    """As ``raise_for_status``, whose text has the URL with password and signature."""
    import httpx

    text = f"the server answered {response.status_code} {response.reason_phrase}".rstrip()
    raise httpx.HTTPStatusError(f"{text} ({shown_url(url)})", request=response.request, response=response)


class URLFile(io.IOBase):
    """A file object over an http(s) URL; the request is made when it is first read.

    Raises:
      ValueError: when made from anything but an http or https URL.
      httpx.HTTPError: from the first read, if the server can't be reached or answers without the file.
    """

    def __init__(self, url: str, filename: str | None = None) -> None:
        if url_scheme(url) not in ("http", "https"):
            raise ValueError(f"URLFile requires an http or https URL, got {shown_url(url)!r}")
        self.url = url
        self.name = get_filename(url) if filename is None else filename
        self._body: io.BufferedReader | None = None
        self._resources = ExitStack()

    def _open(self) -> io.BufferedReader:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._body is None:
            self._body = self._request()
        return self._body

    def _request(self) -> io.BufferedReader:
        with ExitStack() as resources:
            client = resources.enter_context(open_client(FETCH_TIMEOUT))
            response = resources.enter_context(client.stream("GET", self.url))
            if not brings_file(response.status_code):
                _raise_status(response, self.url)
            self._resources = resources.pop_all()
        return io.BufferedReader(_UrlBody(response.iter_bytes()), buffer_size=2**16)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        return self._open().read(size)

    def read1(self, size: int = -1, /) -> bytes:
        return self._open().read1(size)

    def readinto(self, buffer: Buffer, /) -> int:
        return self._open().readinto(buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._open().readline(-1 if size is None else size)

    def __iter__(self) -> URLFile:
        return self

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def close(self) -> None:
        try:
            self._resources.close()
        finally:
            super().close()

    def __del__(self) -> None:
        if hasattr(self, "_resources"):  # not when __init__ refused the URL
            self.close()

    def __repr__(self) -> str:
        return f"<URLFile {self.name!r} from {shown_url(self.url)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._body is not None:
            raise TypeError("cannot pickle a URLFile that has been opened")
        return (type(self), (self.url, self.name))
