"""The parent's files: temporary folders, spilled inputs, the readiness file. What a run puts out is in output_files.py.

One base folder a service, mode 0700, with a random name; inside it one numbered folder a run: no path is ever built
from a prediction's id. A run's folder is made by whoever needs it first (we for a spilled input, the worker for its
output files). We alone remove it: ``discard`` hands it to the task ``remove_discarded``, whatever the outcome of the
run, and nobody waits for that. A process that the model has left behind may still write there; the folder is tried
again until it is gone. A run that needed none costs one look. The base goes at exit.

A base is locked (flock on the folder itself) for as long as its service lives. The kernel drops the lock when
the process ends, however it ends, so a later start can tell a dead predecessor's base and sweep it. A base gets its
name only once it is locked: there is no moment at which a living one looks dead. A process number in the name, the
other way, lies as soon as two containers share a temporary folder.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
import trio

from cog_trio.bridge.protocol import MAX_INLINE
from cog_trio.state.internal_errors import Where, contain

log = logging.getLogger("cog_trio.files")

PREFIX: Final = "cog-trio-"
BASE: Final = re.compile(rf"{PREFIX}[0-9a-f]{{16}}")  # nothing else is swept: a folder of a user's may begin like ours
UNLOCKED: Final = ".cog-trio-"  # for a moment
REMOVE_GRACE: Final = 10.0  # seconds that removing the base may hold up the exit
RETRY: Final = 0.5  # seconds until what could not be removed is tried again
AT_ONCE: Final = 64  # of these, each time
LAST_TRIES: Final = 20  # of the base, 50 ms apart
READERS: Final = 4  # files read at once, over all predictions
ENVELOPE: Final = 2**16  # bytes that a Predict needs beside input and context, at most


class Workspace:
    """The base folder of one service; made by ``open_workspace``."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.readers = trio.CapacityLimiter(READERS)
        self._last_run = 0
        self._discarded: list[str] = []  # not tried yet
        self._stuck: deque[str] = deque()  # tried in vain
        self._changed = trio.Event()

    def run_folder(self) -> str:
        """Return a name for the folder of one run; nothing is made."""
        self._last_run += 1
        return f"{self.base}/{self._last_run:x}"

    def discard(self, folder: str) -> None:
        """Have the folder of a run removed that has ended: soon, and by another task. Raises nothing."""
        if os.path.lexists(folder):
            self._discarded.append(folder)
            self._changed.set()

    async def remove_discarded(self) -> None:
        """Remove what was discarded, in a thread, and try again what could not be removed, until our cancellation.

        Cancellation: what is left goes with the base.
        """
        while True:
            with trio.move_on_after(RETRY if self._stuck else math.inf):
                await self._changed.wait()
            self._changed = trio.Event()
            fresh, self._discarded = self._discarded, []
            again = [self._stuck.popleft() for _ in range(min(AT_ONCE, len(self._stuck)))]
            left = fresh + again
            with contain(Where.FILES):
                left = await trio.to_thread.run_sync(_remove_all, left, abandon_on_cancel=True)
            self._stuck += left
            for folder in {*left} & {*fresh}:
                log.warning("temporary folder %s could not be removed as a whole; it is tried again", folder)

    async def sweep_predecessors(self) -> None:
        """Remove what services that have died left behind, in a thread."""
        parent = os.path.dirname(self.base)
        with contain(Where.FILES):
            for path in await trio.to_thread.run_sync(sweep, parent):
                log.info("removed %s, left by a service that has died", path)


@asynccontextmanager
async def open_workspace(parent: str | None = None) -> AsyncIterator[Workspace]:
    """The base folder for as long as the block lasts, in ``parent`` or the system's temporary folder.

    Raises:
      OSError: if it can't be made.
    """
    unlocked = tempfile.mkdtemp(prefix=UNLOCKED, dir=parent)  # 0700
    base = os.path.join(os.path.dirname(unlocked), PREFIX + secrets.token_hex(8))
    lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(unlocked, base)
        except OSError:
            os.rmdir(unlocked)
            raise
        yield Workspace(base)
    finally:
        with contain(Where.FILES):
            await _remove_base(base)
        os.close(lock)


async def _remove_base(base: str) -> None:
    def remove() -> None:
        for _ in range(LAST_TRIES):
            if not _remove_all([base]):
                return
            time.sleep(0.05)  # what the model has left behind still writes there
        log.warning("temporary folder %s could not be removed as a whole", base)

    with trio.move_on_after(REMOVE_GRACE, shield=True) as grace:
        await trio.to_thread.run_sync(remove, abandon_on_cancel=True)
    if grace.cancelled_caught:
        log.warning("removing %s takes more than %.0f s; going on without waiting for it", base, REMOVE_GRACE)


def _remove_all(folders: list[str]) -> list[str]:
    """Remove trees (blocking); return those of which something is left."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder for folder in folders if os.path.lexists(folder)]


def sweep(parent: str) -> list[str]:
    """Remove the bases of services that have died (blocking: call it in a thread); return what was removed.

    Only folders of our own user that nobody holds the lock of are touched.
    """
    removed: list[str] = []
    try:
        with os.scandir(parent) as entries:
            names = [entry.path for entry in entries if BASE.fullmatch(entry.name)]
    except OSError as error:  # a folder that may be entered but not listed will do otherwise
        log.warning("folders of earlier services can't be looked for in %s: %s", parent, error.strerror)
        return removed
    for path in names:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, not a folder, not ours
        try:
            if os.fstat(lock).st_uid != os.geteuid():
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


class Readiness:
    """Whether the service is ready, for one who follows it."""

    def __init__(self) -> None:
        self.ready = False
        self._changed = trio.lowlevel.ParkingLot()

    def set(self, ready: bool) -> None:
        if ready is not self.ready:
            self.ready = ready
            self._changed.unpark_all()

    async def wait(self, ready: bool) -> None:
        """Wait until it is so; what lay between two looks is not seen."""
        while self.ready is not ready:
            await self._changed.park()


async def keep_ready_file(path: str, readiness: Readiness) -> None:
    """An empty file while the service is ready, until our cancellation.

    One that a dead predecessor left is removed first. A file that can't be written is logged: nothing depends on it.
    """

    def write() -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    async def off_the_loop(change: Callable[[], None]) -> None:
        with contain(Where.FILES):
            try:
                await trio.to_thread.run_sync(change)
            except OSError as error:
                log.warning("readiness file: %s", error)

    def remove() -> None:
        _unlink(path)

    try:
        while True:
            await off_the_loop(remove)
            await readiness.wait(True)
            await off_the_loop(write)
            await readiness.wait(False)
    finally:
        with trio.move_on_after(REMOVE_GRACE, shield=True):
            await off_the_loop(remove)


# Inputs.


def needs_spill(input: bytes | memoryview, context: dict[str, str]) -> bool:
    """Whether a Predict with these would be over the limit for inline payloads."""
    size = len(input) + (len(msgspec.json.encode(context)) if context else 0)
    return size > MAX_INLINE - ENVELOPE


async def spill(folder: str, input: bytes | memoryview, context: dict[str, str]) -> str:
    """Write input and context to a file in the run's folder, which is made; gives its path.

    Raises:
      OSError: if it can't be written.
    """
    path = f"{folder}/input-{secrets.token_hex(8)}.json"

    def write() -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        rest = b',"context":%s}' % msgspec.json.encode(context)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            for piece in (b'{"input":', input, rest):  # a Spilled, without a copy of the input
                file.write(piece)

    await trio.to_thread.run_sync(write)
    return path


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
