"""The trio side of one worker process: its streams, its exit, its death and what it leaves behind.

``WorkerLink`` is what the orchestrator needs of a worker; a fake one stands in for it in tests. ``adopt`` makes it from
the handle that ``spawn`` returned. The exit is awaited on a pidfd, so it is seen whatever descriptors the worker's
children hold; where there is none, ``Popen.wait`` in a thread does it. The order at the end is fixed: the exit is seen
(the worker is a zombie), its group is killed, what is left in the sockets and capture pipes is read without waiting,
then it is reaped.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import signal
import socket
import termios
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import trio

from cog_trio.bridge.protocol import LogSource
from cog_trio.orchestrator.spawn import WorkerProcess

DESCRIPTORS_A_MESSAGE: Final = 200  # the kernel takes at most 253
LOOK: Final = 0.5  # seconds between two looks at the capture pipes
NEXT_LOOK: Final = 0.02  # the same while one of them stays full
_PIPE: Final = 2**16  # bytes that a pipe holds, where the system does not say
_CHUNK: Final = 2**18  # bytes a read of what was left
_CGROUP: Final = Path("/proc/self/cgroup")
_CGROUPS: Final = Path("/sys/fs/cgroup")


class WorkerLink(Protocol):
    """One worker, as the orchestrator sees it."""

    control: trio.abc.Stream
    control_descriptor: int | None  # that ``control`` writes to; None: it is none of the system's
    slot0: trio.abc.Stream
    age: float  # seconds since its spawn, when it was adopted

    async def more_slots(self, count: int) -> list[trio.abc.Stream]:
        """Open slots 1 to ``count`` by sending the worker its ends over slot 0.

        Raises:
          OSError: if there are no descriptors left, or the worker is gone.
        """

    async def wait_exit(self) -> None:
        """Wait until the worker has ended. Repeatable; does not reap. Cancellation: nothing is lost."""

    def kill(self) -> None:
        """SIGKILL the worker and its group. Repeatable; a no-op once it was reaped."""

    async def leftover(self, stream: trio.abc.Stream) -> bytes:
        """All bytes that stand in this stream, without waiting for more; nobody else reads it any more."""

    def captured(self) -> list[tuple[LogSource, str]]:
        """Text that the ended worker wrote to descriptors 1 and 2 and did not read back itself."""

    async def relieve(self, take: Callable[[LogSource, str], None]) -> None:
        """Read what the living worker wrote to descriptors 1 and 2 and can't read back itself; never returns.

        C code that holds the interpreter and writes more than a pipe holds would wait for its own process for ever.
        Cancellation: nothing is lost.
        """

    def reap(self) -> str:
        """Reap the ended worker and close our ends; return how it ended, as in ``Worker died: <this>``."""

    def abandon(self) -> None:
        """Close our ends of a worker that was killed and does not end: it hangs in the kernel."""


class _PipeReader(trio.abc.ReceiveStream):
    """Reads a pipe that it owns, without the turn of the scheduler that ``FdStream`` takes before each read."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            data = os.read(self.descriptor, max_bytes or _CHUNK)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(self.descriptor)
            return os.read(self.descriptor, max_bytes or _CHUNK)  # the only reader: it is still there
        await trio.lowlevel.cancel_shielded_checkpoint()
        return data

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            trio.lowlevel.notify_closing(descriptor)
            os.close(descriptor)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


class ProcessLink:
    """A real worker process."""

    def __init__(self, process: WorkerProcess, *, pidfd: bool = True) -> None:
        """``pidfd=False`` forces the way of systems that have none."""
        self._process = process
        assert process.popen.stdin is not None
        assert process.popen.stdout is not None
        self._down = trio.lowlevel.FdStream(os.dup(process.popen.stdin.fileno()))
        self._up = _PipeReader(os.dup(process.popen.stdout.fileno()))
        self.control: trio.abc.Stream = trio.StapledStream(self._down, self._up)
        self.control_descriptor: int | None = self._down.fileno()
        process.popen.stdin.close()
        process.popen.stdout.close()
        self._sockets = [trio.socket.from_stdlib_socket(process.slot0)]
        self.slot0: trio.abc.Stream = trio.SocketStream(self._sockets[0])
        self._pidfd = _open_pidfd(process.pid) if pidfd else None
        self._oom_kills = _oom_kills()
        self.age = time.perf_counter() - process.started

    async def more_slots(self, count: int) -> list[trio.abc.Stream]:
        while (missing := 1 + count - len(self._sockets)) > 0:
            with ExitStack() as theirs:
                numbers = array("i")
                for _ in range(min(DESCRIPTORS_A_MESSAGE, missing)):
                    mine, other = socket.socketpair()
                    theirs.callback(other.close)
                    numbers.append(other.fileno())
                    self._sockets.append(trio.socket.from_stdlib_socket(mine))
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers.tobytes())
                await self._sockets[0].sendmsg([b"\0"], [rights])
        return [trio.SocketStream(sock) for sock in self._sockets[1:]]

    async def wait_exit(self) -> None:
        if self._pidfd is not None:
            await trio.lowlevel.wait_readable(self._pidfd)
        else:  # this reaps; kill() takes the group nonetheless, right after it
            await trio.to_thread.run_sync(self._process.popen.wait, abandon_on_cancel=True)

    def kill(self) -> None:
        self._process.kill()

    async def leftover(self, stream: trio.abc.Stream) -> bytes:
        await trio.lowlevel.checkpoint()
        if stream is self.control:
            return _read_now(self._up.descriptor)
        assert isinstance(stream, trio.SocketStream)
        return _read_now(stream.socket.fileno())

    def captured(self) -> list[tuple[LogSource, str]]:
        texts = []
        for source, descriptor in zip((LogSource.STDOUT, LogSource.STDERR), self._process.captures, strict=True):
            os.set_blocking(descriptor, False)
            if data := _read_now(descriptor):
                texts.append((source, data.decode(errors="replace")))
        return texts

    async def relieve(self, take: Callable[[LogSource, str], None]) -> None:
        pipes = [_CapturePipe(source, fd) for source, fd in zip(LogSource, self._process.captures, strict=True)]
        while True:
            await trio.sleep(NEXT_LOOK if any(pipe.stuck for pipe in pipes) else LOOK)
            for pipe in pipes:
                if pipe.is_stuck() and not self._has_unread():
                    take(pipe.source, pipe.read())

    def _has_unread(self) -> bool:
        """Return whether the worker has sent what we have not read: then it may wait for us, and must."""
        return any(map(_waiting, (self._up.descriptor, *(sock.fileno() for sock in self._sockets))))

    def reap(self) -> str:
        status = self._process.reap()
        self.abandon()
        return describe_exit(status, _was_oom(self._oom_kills))

    def abandon(self) -> None:
        if self._pidfd is not None:
            trio.lowlevel.notify_closing(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._down.close()
        self._up.close()
        for sock in self._sockets:
            sock.close()
        self._process.close()


class _CapturePipe:
    """The read end of one capture pipe, which is the worker's to read while it can."""

    def __init__(self, source: LogSource, descriptor: int) -> None:
        self.source: Final = source
        self.stuck = False
        self._descriptor = descriptor
        self._held = -1  # bytes at the last look
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        size = getattr(fcntl, "F_GETPIPE_SZ", None)
        # Less than half of it may be all that fits: a page that a write has begun takes no part of a longer one.
        self._full = (_PIPE if size is None else fcntl.fcntl(descriptor, size)) // 3
        os.set_blocking(descriptor, False)

    def is_stuck(self) -> bool:
        """Return whether the pipe is full and was not read since the last look."""
        held = _waiting(self._descriptor)
        self.stuck = held >= self._full and (self.stuck or held == self._held)
        self._held = held
        return self.stuck

    def read(self) -> str:
        return self._decode(_read_now(self._descriptor))


def adopt(worker: WorkerProcess | WorkerLink) -> WorkerLink:
    """The worker as a link; from here on, whoever holds the link kills and reaps it."""
    return ProcessLink(worker) if isinstance(worker, WorkerProcess) else worker


def describe_exit(status: int, out_of_memory: bool = False) -> str:
    """How a process ended, from ``Popen.returncode``; ``out_of_memory``: the cgroup confirms it."""
    if status >= 0:
        return f"exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"SIGRTMIN+{-status - signal.SIGRTMIN}" if hasattr(signal, "SIGRTMIN") else "unknown"
    if status != -signal.SIGKILL:
        return f"signal {-status} ({name})"
    return f"signal {-status} ({name}), {'' if out_of_memory else 'possibly '}out of memory"


def _open_pidfd(pid: int) -> int | None:
    open_pidfd: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if open_pidfd is None:
        return None
    try:
        return open_pidfd(pid)
    except OSError:  # an old kernel, or a sandbox that forbids it
        return None


def _waiting(descriptor: int) -> int:
    """Return how many bytes stand in a pipe or socket, to be read."""
    count = array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]


def _read_now(descriptor: int) -> bytes:
    """Return what stands in a pipe or socket at this moment, which its buffer bounds.

    A child that the worker has left behind may hold the other end and write on: that is not waited for, nor read.
    """
    data, count = bytearray(), _waiting(descriptor)
    try:
        while (missing := count - len(data)) > 0 and (chunk := os.read(descriptor, min(missing, _CHUNK))):
            data += chunk
    except (BlockingIOError, ConnectionResetError):
        pass  # nothing more, against what was said
    return bytes(data)


def _oom_kills() -> int | None:
    """How many processes the kernel has killed in our cgroup for want of memory; None if that can't be read."""
    try:
        place = next(line[3:] for line in _CGROUP.read_text().splitlines() if line.startswith("0::"))
        events = (_CGROUPS / place.lstrip("/") / "memory.events").read_text()
        return int(dict(line.split() for line in events.splitlines())["oom_kill"])
    except (OSError, StopIteration, KeyError, ValueError):
        return None


def _was_oom(before: int | None) -> bool:
    """True if the cgroup confirms it; a count that stands still proves nothing, the host has an OOM killer too."""
    now = _oom_kills()
    return before is not None and now is not None and now > before
