"""The parent's files: temporary folders, spilled inputs, and outputs that a run hands over as files.

One base folder a service, mode 0700, with a random name; inside it one folder a run, also with a random name:
no path is ever built from a prediction's id. A run's folder is made by whoever needs it first (we for a spilled
input, the worker for its output files) and removed when the run has ended, whatever the outcome; a run that
needed none costs one look. The base goes at exit.

A base is locked (flock on the folder itself) for as long as its service lives. The kernel drops the lock when
the process ends, however it ends, so a later start can tell a dead predecessor's base and sweep it. A process
number in the name, the other way, lies as soon as two containers share a temporary folder.

Files are read in threads, one at a time for each prediction, into a place reserved in the output: the order is
the model's. A file that can't be read fails its prediction and is named.
"""

from __future__ import annotations

import binascii
import fcntl
import json
import logging
import mimetypes
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, BinaryIO, Final

import msgspec
import trio

from cog_trio.bridge.protocol import MAX_INLINE, FileOutput, FileOutputKind, Spilled
from cog_trio.prediction import Prediction

log = logging.getLogger("cog_trio.files")

PREFIX: Final = "cog-trio-"
SWEEP_AGE: Final = 60.0  # seconds; a younger base may not have its lock yet
REMOVE_GRACE: Final = 10.0  # seconds that removing a folder may hold up a reply, or the exit
READERS: Final = 4  # files read at once, over all predictions
CHUNK: Final = 3 * 2**20  # bytes a read; a multiple of 3, so that pieces of base64 can be joined
ENVELOPE: Final = 2**16  # bytes that a Predict needs beside input and context, at most
ENCODINGS: Final = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
TYPES: Final = {".webp": "image/webp", ".avif": "image/avif", ".jpg": "image/jpeg", ".md": "text/markdown"}


class Workspace:
    """The base folder of one service; made by ``open_workspace``."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.readers = trio.CapacityLimiter(READERS)

    def run_folder(self) -> str:
        """A name for the folder of one run; nothing is made."""
        return f"{self.base}/{secrets.token_hex(8)}"

    def used(self, folder: str) -> bool:
        """Whether somebody has made this run's folder: one look, the only cost of a run without files."""
        return os.path.lexists(folder)

    async def remove(self, folder: str) -> None:
        """Remove a run's folder. What can't be removed is logged and goes with the base.

        Cancellation: is held off until the folder is gone, for ``REMOVE_GRACE`` at most.
        """
        await _remove_tree(folder)

    async def sweep_predecessors(self) -> None:
        """Remove what services that have died left behind, in a thread."""
        parent = os.path.dirname(self.base)
        for path in await trio.to_thread.run_sync(lambda: sweep(parent, now=time.time())):
            log.info("removed %s, left by a service that has died", path)


@asynccontextmanager
async def open_workspace(parent: str | None = None) -> AsyncIterator[Workspace]:
    """The base folder for as long as the block lasts, in ``parent`` or the system's temporary folder.

    Raises:
      OSError: if it can't be made.
    """
    base = tempfile.mkdtemp(prefix=PREFIX, dir=parent)  # 0700
    lock = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Workspace(base)
    finally:
        await _remove_tree(base)
        os.close(lock)


async def _remove_tree(folder: str) -> None:
    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.lexists(folder):
            log.warning("temporary folder %s could not be removed as a whole", folder)

    with trio.move_on_after(REMOVE_GRACE, shield=True) as grace:
        await trio.to_thread.run_sync(remove, abandon_on_cancel=True)
    if grace.cancelled_caught:
        log.warning("removing %s takes more than %.0f s; going on without waiting for it", folder, REMOVE_GRACE)


def sweep(parent: str, *, now: float) -> list[str]:
    """Remove the bases of services that have died (blocking: call it in a thread); gives what it removed.

    ``now`` is the wall clock, in seconds. Only folders of our own user that nobody holds the lock of are touched.
    """
    removed: list[str] = []
    with os.scandir(parent) as entries:
        names = [entry.path for entry in entries if entry.name.startswith(PREFIX)]
    for path in names:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, not a folder, not ours
        try:
            status = os.fstat(lock)
            if status.st_uid != os.geteuid() or now - status.st_mtime < SWEEP_AGE:
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
            removed.append(path)
        except BlockingIOError:
            continue  # its service lives
        except OSError as error:
            log.warning("temporary folder %s of an earlier service could not be removed: %s", path, error)
        finally:
            os.close(lock)
    return removed


async def keep_ready_file(path: str, settled: trio.Event, unready: trio.Event) -> None:
    """An empty file while the service is ready: from the end of setup until ``unready``, or our cancellation (W30).

    One that a dead predecessor left is removed first. A file that can't be written is logged: nothing depends on it.
    """

    def write() -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    async def off_the_loop(change: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(change)
        except OSError as error:
            log.warning("readiness file: %s", error)

    def remove() -> None:
        _unlink(path)

    try:
        await off_the_loop(remove)
        await settled.wait()
        if not unready.is_set():
            await off_the_loop(write)
            await unready.wait()
    finally:
        with trio.move_on_after(REMOVE_GRACE, shield=True):
            await off_the_loop(remove)


# Inputs.


def needs_spill(input: bytes, context: dict[str, str]) -> bool:
    """Whether a Predict with these would be over the limit for inline payloads (D26)."""
    size = len(input) + (len(msgspec.json.encode(context)) if context else 0)
    return size > MAX_INLINE - ENVELOPE


async def spill(folder: str, input: bytes, context: dict[str, str]) -> str:
    """Write input and context to a file in the run's folder, which is made; gives its path.

    Raises:
      OSError: if it can't be written.
    """
    path = f"{folder}/input-{secrets.token_hex(8)}.json"

    def write() -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        data = msgspec.json.encode(Spilled(input=msgspec.Raw(input), context=context))
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)

    await trio.to_thread.run_sync(write)
    return path


# Outputs.


class OutputFiles:
    """The files that one run hands over. ``start`` starts the reading task; it is called at the first file."""

    def __init__(self, prediction: Prediction, folder: str, workspace: Workspace, start: Callable[..., Any]) -> None:
        self._prediction = prediction
        self._folder = folder
        self._workspace = workspace
        self._start = start
        self._queue: deque[tuple[int, FileOutput]] = deque()  # names only; the model is slowed by its own output
        self._idle: trio.Event | None = None  # set while nothing is being read; None: there never was a file
        self.error: str | None = None  # of the first file that could not be read: Type: text

    def announce(self, file: FileOutput) -> None:
        """A file is ready to be read: keep its place and start on it."""
        self._queue.append((self._prediction.reserve_output(), file))
        if self._idle is None or self._idle.is_set():
            self._idle = trio.Event()
            self._start(self._read, self._idle)

    async def settled(self) -> None:
        """Wait until every file so far has been read, or has failed. Cancellation: the reading goes on."""
        if self._idle is not None:
            await self._idle.wait()

    async def _read(self, idle: trio.Event) -> None:
        try:
            while self._queue:
                index, file = self._queue.popleft()
                try:
                    raw = await trio.to_thread.run_sync(
                        load_output, file, self._folder, limiter=self._workspace.readers
                    )
                except (OSError, ValueError) as error:
                    self.error = self.error or f"{type(error).__name__}: {error}"
                else:
                    if not self._prediction.terminal:
                        self._prediction.fill_output(index, raw)
        finally:
            if self._queue:  # only when the whole service is being cancelled
                self.error = self.error or "the service stopped before the output files were read"
                self._queue.clear()
            idle.set()


def load_output(file: FileOutput, folder: str) -> msgspec.Raw:
    """Read one file (blocking): a spilled JSON value as it is, any other as a data URL.

    Raises:
      OSError: if it is missing, unreadable or no regular file; the text names it.
      ValueError: if a spilled value is no JSON.
    """
    if file.kind.type is FileOutputKind.FILE:
        return data_url(file.filename, file.mime_type)
    try:
        with _open_regular(file.filename) as stream:
            data = stream.read()
    finally:
        if os.path.dirname(file.filename) == folder:  # the worker's runtime made it; nothing else is ours to delete
            _unlink(file.filename)
    try:
        data.decode("utf-8")
        return msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the worker spilled a value that is no JSON: {error}") from error


def data_url(path: str, mime_type: str | None = None) -> msgspec.Raw:
    """A file as a JSON string with a data URL (blocking); at no time are there two whole copies of it.

    Raises:
      OSError: if it is missing, unreadable or no regular file; the text names it.
    """
    mime = json.dumps(mime_type or guess_mime(path))[1:-1]
    with _open_regular(path) as stream:
        out = bytearray(f'"data:{mime};base64,'.encode())
        while chunk := stream.read(CHUNK):
            out += binascii.b2a_base64(chunk, newline=False)
    out += b'"'
    return msgspec.Raw(out)


def guess_mime(path: str) -> str:
    """The media type that a file's name says; ``application/octet-stream`` when it says nothing."""
    extension = os.path.splitext(path)[1].lower()
    if (known := TYPES.get(extension)) is not None:
        return known
    guessed, encoding = mimetypes.guess_type(f"x{extension}", strict=False)  # a whole name could look like a URL
    if encoding is not None:
        return ENCODINGS.get(encoding, "application/octet-stream")
    return guessed or "application/octet-stream"


@contextmanager
def _open_regular(path: str) -> Iterator[BinaryIO]:
    """Open for reading without ever waiting: a pipe or device that a name leads to is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"not a regular file: {path!r}")
        with open(descriptor, "rb", closefd=False) as stream:
            yield stream
    finally:
        os.close(descriptor)


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
