"""The one way to write to a stream whose reader may stall: a terminal, a pipe, a file on a slow disk.

A blocking write lasts as long as the reader likes, so no event loop may make it. A ``StreamWriter`` has a thread of its
own that writes what was queued, in the order of the calls, in pieces that one pipe takes. It drops nothing and has no
bound: how much may wait, and what happens beyond that, is the decision of its two users. The log of a server drops
lines and counts them (``log_output.py``); ``run`` makes its model wait (``run/console.py``).
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

PIECE: Final = 2**16  # bytes of one write: what an empty pipe takes at once
THREAD_NAME: Final = "cog_trio stream writer"

Data: TypeAlias = "bytes | Callable[[], bytes]"
"""Bytes, or a function that makes them: the thread calls it, so that the caller does not spend the time."""


class StreamWriter:
    """Writes to descriptors in a thread. One thread at a time may call ``write``.

    Args:
      on_written: called by the thread after each write, and after the first failure of a descriptor.
      pause: seconds that the thread waits after it was woken, so that what comes in that time is one write.
    """

    def __init__(self, on_written: Callable[[], None] = lambda: None, *, pause: float = 0.0) -> None:
        self.faults: dict[int, OSError] = {}  # of descriptors that can't be written any more
        self._on_written = on_written
        self._pause = pause
        self._queue: deque[tuple[int, Data, int]] = deque()
        self._queued = 0  # bytes so far; only ``write`` changes it
        self._done = 0  # bytes so far, written or given up; only the thread changes it
        self._closing = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        """Start the thread. It does not keep the process alive."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Bytes that are queued and not written yet."""
        return self._queued - self._done

    def write(self, descriptor: int, data: Data, size: int | None = None) -> None:
        """Queue data. Never blocks.

        Args:
          size: bytes that it counts for while it waits; needed where ``data`` is a function.
        """
        assert size is not None or isinstance(data, bytes)
        weight = len(data) if size is None and isinstance(data, bytes) else size or 0
        self._queued += weight
        self._queue.append((descriptor, data, weight))
        if not self._awake.is_set():
            self._awake.set()

    def close(self, seconds: float | None = None) -> bool:
        """End the thread once all is written, and wait for that for at most so many seconds; whether all was written.

        What a reader has not taken by then is lost with the process.
        """
        self._closing.set()
        self._awake.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._queue and not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            if not self._queue:
                self._awake.clear()
                if not self._queue:  # still, after the flag was cleared: the next ``write`` sets it
                    if self._closing.is_set():
                        return
                    self._awake.wait()
                    if self._pause:
                        self._closing.wait(self._pause)
                    continue
            self._write(*self._take())

    def _take(self) -> tuple[int, bytes, int]:
        """The next bytes for one descriptor, and what they count for: one item, or several that fit into a piece."""
        descriptor, data, weight = self._queue.popleft()
        pieces = [data if isinstance(data, bytes) else data()]
        size = len(pieces[0])
        while self._queue and self._queue[0][0] == descriptor and size < PIECE:
            if isinstance(self._queue[0][1], bytes) and size + len(self._queue[0][1]) > PIECE:
                break
            _, data, more = self._queue.popleft()
            pieces.append(data if isinstance(data, bytes) else data())
            size += len(pieces[-1])
            weight += more
        return descriptor, b"".join(pieces) if len(pieces) > 1 else pieces[0], weight

    def _write(self, descriptor: int, data: bytes, weight: int) -> None:
        view = memoryview(data)
        while view and descriptor not in self.faults:
            try:
                taken = os.write(descriptor, view[:PIECE])
            except BlockingIOError:  # somebody made the descriptor non-blocking, for all who share it
                _wait_writable(descriptor)
                continue
            except OSError as error:
                self.faults[descriptor] = error
                break
            view = view[taken:]
            if view:
                part = min(taken, weight)
                self._done += part
                weight -= part
                self._on_written()
        self._done += weight
        self._on_written()


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLOUT)
        poll.poll()
    except OSError:  # the next write says what it is
        time.sleep(0.01)
