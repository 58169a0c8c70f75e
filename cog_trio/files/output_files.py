"""What one run puts out as files becomes strings in its output: data URLs, or the URLs of uploaded files.

In come the items of the run that are files or have files inside, in order; each gets its place in the prediction's
output at once, so the order is the model's whatever finishes first. Out comes one JSON value an item, filled
in when its last file is done. A value with files inside has a null at each of their places, told as byte offsets:
the strings are put there, and nothing of the user's is decoded or rebuilt.

Files become data URLs one after the other, so that a prediction has one in memory; uploads run ``UPLOADS`` at once.
Either way they are tasks of the prediction's own nursery, which is open while there is work: a run without files
costs nothing. A file that can't be read fails its prediction and is named; a failed upload cuts the others too.
What the worker made for us (spilled values, copies) is deleted as soon as it was taken.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
import trio

from cog_trio.bridge.protocol import DOWNLOADS, FileOutput, FileOutputKind, OutputChunk
from cog_trio.files.mime import guess_mime
from cog_trio.files.upload import UploadFailed, UploadNames, UploadTarget, keep, upload
from cog_trio.files.workspace import Workspace
from cog_trio.net.http_client import ClientUnusable, open_client
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.prediction import Prediction

if TYPE_CHECKING:
    import httpx

UPLOADS: Final = 8  # of one prediction at once
CHUNK: Final = 3 * 2**16  # bytes a read: a multiple of 3, so that pieces of base64 can be joined, and near the CPU
JOINED_HERE: Final = 2**18  # bytes that are put together without a thread
ITSELF: Final = -1  # in place of a number: the file is the item, or its JSON
_NULL: Final = b"null"
_encode_into: Final = msgspec.json.Encoder().encode_into


class _PendingOutput:
    """One item, until all of its files are taken."""

    def __init__(self, index: int, json: msgspec.Raw | None, files: int) -> None:
        self.index = index
        self.json = json  # None: in a file
        self.due = files + (json is None)
        self.places: list[int] = []
        self.strings: list[msgspec.Raw] = []

    def whole(self) -> msgspec.Raw:
        """The JSON with all strings in their places.

        Raises:
          ValueError: if a place is none.
        """
        assert self.json is not None
        data = memoryview(self.json)
        parts: list[Any] = []
        start = 0
        for place, string in zip(self.places, self.strings, strict=True):
            if place < start or bytes(data[place : place + len(_NULL)]) != _NULL:
                raise ValueError(f"the worker put a file at byte {place} of output {self.index}, where no place is")
            parts += data[start:place], string
            start = place + len(_NULL)
        return msgspec.Raw(b"".join((*parts, data[start:])))

    @property
    def size(self) -> int:
        return sum(len(memoryview(part)) for part in (self.json or b"", *self.strings))


class OutputFiles:
    """The files of one run.

    Args:
      start: starts a task that outlives the calls here; used at the first file, and again after a quiet time.
      target: where to upload; None: data URLs.
      transport: stands in for the network, in tests.
    """

    def __init__(
        self,
        prediction: Prediction,
        folder: str,
        workspace: Workspace,
        start: Callable[..., Any],
        *,
        target: UploadTarget | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._prediction = prediction
        self._folder = folder
        self._workspace = workspace
        self._start = start
        self._target = target
        self._transport = transport
        self._names = UploadNames()
        self._last: _PendingOutput | None = None
        self._queue: deque[tuple[_PendingOutput, int, FileOutput]] = (
            deque()
        )  # names only: the model's own output slows it
        self._nursery: trio.Nursery | None = None  # takes tasks
        self._workers = 0
        self._cut = False
        self._scope: trio.CancelScope | None = None
        self._idle: trio.Event | None = None  # set while nothing is being taken; None: there never was a file
        self.error: str | None = None  # of the first file that could not be taken

    def announce(self, item: OutputChunk | FileOutput) -> None:
        """An item with files, or a file inside the last one: keep its place and start on it."""
        if isinstance(item, FileOutput) and item.place is not None:
            assert self._last is not None
            self._last.places.append(item.place)
            self._last.strings.append(msgspec.Raw(_NULL))
            self._enqueue(self._last, len(self._last.places) - 1, item)
            return
        json = item.output if isinstance(item, OutputChunk) else None
        self._last = _PendingOutput(self._prediction.reserve_output(), json, item.files)
        if isinstance(item, FileOutput):
            self._enqueue(self._last, ITSELF, item)

    def _enqueue(self, item: _PendingOutput, number: int, file: FileOutput) -> None:
        self._queue.append((item, number, file))
        if self._idle is None or self._idle.is_set():
            self._idle = trio.Event()
            self._start(self._run, self._idle)
        elif self._nursery is not None:
            self._hire(self._nursery)

    async def settled(self) -> None:
        """Wait until every file so far has been taken, or has failed.

        Cancellation: uploads are cut; of data URLs the one that is being made is finished.
        """
        if self._idle is not None:
            try:
                await self._idle.wait()
            except trio.Cancelled:
                self._stop()
                raise

    def _stop(self) -> None:
        self._cut = True
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self, idle: trio.Event) -> None:
        try:
            with contain(Where.OUTPUT_FILE, self._fail, id=self._prediction.id), trio.CancelScope() as self._scope:
                while self._queue and not self._cut:
                    await self._take_all()
        finally:
            if self._queue:  # cut, or the whole service is being cancelled
                self._fail("the prediction stopped before its output files were taken")
                self._queue.clear()
            idle.set()

    async def _take_all(self) -> None:
        client: httpx.AsyncClient | None = None
        async with AsyncExitStack() as stack:
            if self._target is not None and self._target.folder is None:
                opening = open_client(step_timeout=self._target.timeout, transport=self._transport)
                try:
                    client = await stack.enter_async_context(opening)
                except ClientUnusable as error:
                    self._fail(f"Failed to upload output: {error}")
                    self._stop()
                    return
            while self._queue:
                async with trio.open_nursery() as nursery:
                    self._nursery, self._client = nursery, client
                    for _ in range(len(self._queue)):
                        self._hire(nursery)

    def _hire(self, nursery: trio.Nursery) -> None:
        if self._workers < (1 if self._target is None else UPLOADS):
            self._workers += 1
            nursery.start_soon(self._work)

    async def _work(self) -> None:
        try:
            while self._queue:
                item, number, file = self._queue.popleft()
                with contain(Where.OUTPUT_FILE, self._fail, id=self._prediction.id):
                    try:
                        await self._take(item, number, file)
                    except (OSError, ValueError) as error:
                        self._fail(f"{type(error).__name__}: {error}")
                    except UploadFailed as error:
                        self._fail(f"Failed to upload output: {error}")
                        self._stop()
        finally:
            self._workers -= 1
            if not self._workers:
                self._nursery = None

    def _fail(self, text: str) -> None:
        self.error = self.error or text

    async def _take(self, item: _PendingOutput, number: int, file: FileOutput) -> None:
        if file.kind.type is FileOutputKind.OVERSIZED:
            item.json = await self._in_thread(load_json, file, self._folder)
        else:
            if self._target is None:
                string = await self._in_thread(load_data_url, file, self._folder)
            elif self._target.folder is not None:
                name = self._names.assign(file.filename)
                string = await self._in_thread(keep_file, file, self._folder, self._target, name)
            else:
                string = await self._upload(self._target, file)
            if number == ITSELF:
                item.json = string
            else:
                item.strings[number] = string
        item.due -= 1
        if item.due:
            return
        json = item.json
        if item.places:
            json = await self._in_thread(item.whole) if item.size > JOINED_HERE else item.whole()
        if not self._prediction.terminal:
            assert json is not None
            self._prediction.fill_output(item.index, json)

    async def _in_thread(self, function: Callable[..., msgspec.Raw], *args: Any) -> msgspec.Raw:
        return await trio.to_thread.run_sync(function, *args, limiter=self._workspace.readers)

    async def _upload(self, target: UploadTarget, file: FileOutput) -> msgspec.Raw:
        assert self._client is not None
        headers = [
            (b"content-type", (file.mime_type or guess_mime(file.filename)).encode()),
            (b"x-prediction-id", header_text(self._prediction.id).encode()),
            *self._prediction.trace,
        ]
        name = self._names.assign(file.filename)
        with await trio.to_thread.run_sync(_open_regular, file.filename) as stream:
            url = await upload(self._client, target, name, stream.fileno(), headers)
        await trio.to_thread.run_sync(_delete_taken, file.filename, self._folder)
        return msgspec.Raw(msgspec.json.encode(url))


def header_text(id: str) -> str:
    """An id as a header can carry it: as it is where that is possible, else percent-encoded."""
    return id if id.isascii() and id == id.strip() else quote(id, safe="")


def load_json(file: FileOutput, folder: str) -> msgspec.Raw:
    """A value that the worker spilled (blocking); its file is deleted, also when it is corrupt.

    Raises:
      OSError: if it is missing, unreadable or no regular file; the text names it.
      ValueError: if it is not JSON.
    """
    try:
        with _open_regular(file.filename) as stream:
            data = stream.read()
    finally:
        _delete_taken(file.filename, folder)
    try:
        if not data.isascii():
            data.decode("utf-8")
        return msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the worker spilled a value that is not JSON: {error}") from error


def load_data_url(file: FileOutput, folder: str) -> msgspec.Raw:
    """A file as a data URL (blocking); deleted where it was made for us.

    Raises: as ``data_url``.
    """
    url = data_url(file.filename, file.mime_type)
    _delete_taken(file.filename, folder)
    return url


def keep_file(file: FileOutput, folder: str, target: UploadTarget, name: str) -> msgspec.Raw:
    """A file in a folder of ours, as its URL (blocking). The model's own files are copied: it may go on using them.

    Raises: as ``data_url``.
    """
    _open_regular(file.filename).close()
    ours = _is_taken(file.filename, folder)
    return msgspec.Raw(msgspec.json.encode(keep(file.filename, target, name, move=ours)))


def data_url(path: str, mime_type: str | None = None) -> msgspec.Raw:
    """A file as a JSON string with a data URL (blocking); at no time are there two whole copies of it.

    Raises:
      OSError: if it is missing, unreadable or no regular file; the text names it.
    """
    head = b'"data:%s;base64,' % msgspec.json.encode(mime_type or guess_mime(path))[1:-1]
    out = bytearray(head)
    with _open_regular(path) as stream:
        piece = memoryview(bytearray(CHUNK))
        while length := stream.readinto(piece):  # full, but for the last one
            last = len(out) - 1
            before = out[last]
            _encode_into(piece[:length], out, last)  # base64 in quotes, twice as fast as binascii's
            out[last] = before  # the quote before it goes, the one behind it is the next piece's to overwrite
            out.pop()
    out += b'"'
    return msgspec.Raw(out)


def _open_regular(path: str) -> BufferedReader:
    """Open for reading without ever waiting: a pipe or device that a name leads to is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"not a regular file: {path!r}")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _delete_taken(path: str, folder: str) -> None:
    """Delete what the worker's runtime made in the run's folder."""
    if _is_taken(path, folder):
        with suppress(OSError):  # it goes with the folder
            os.unlink(path)


def _is_taken(path: str, folder: str) -> bool:
    """It is the runtime's own, done with once taken. Inputs there may be put out twice; they go later."""
    return path.startswith(f"{folder}/") and not path.startswith(f"{folder}/{DOWNLOADS}/")
