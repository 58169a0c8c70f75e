"""Starts the worker process. Standard library only: it runs before trio and the rest are imported.

``spawn`` makes, in one step, all that parent and worker share: the control channel (the worker's stdin and stdout),
slot 0 (one end of a socketpair), two capture pipes for what the model writes to descriptors 1 and 2 (the worker's
stderr as spawned is one of them, so an interpreter that cannot even start is heard), and the guardian's pipe, whose
end tells the worker's guardian that we are gone.

Popen is called on the thread that will run trio: a parent-death signal is bound to the parent *thread*, and a helper
thread that ends would take the worker with it. The worker has a session of its own.

Whoever holds a ``WorkerProcess`` holds it in a ``with``: leaving it kills the worker's group, reaps the worker and
closes our ends, which is all a no-op for what was done before. The group is killed before the leader is reaped, never
after: a reaped leader's number may already name somebody else's group.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

TYPE_CHECKING = False  # no `import typing` before the worker runs
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

CAPTURE_SIZE = 2**20  # bytes a capture pipe holds, where the system lets us
REAP_LIMIT = 5.0  # seconds from the kill; a process that is not gone by then hangs in the kernel
_SOFT_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # as we were started; the server may raise its own later
# The working folder comes to the worker's path right before the model is imported, not sooner: a file there that has a
# name of the standard library (queue.py, types.py) would run in place of it, on the control channel.
_COMMAND = (
    (sys.executable, "-P", "-m", "cog_trio.worker")
    if sys.version_info >= (3, 11)
    else (
        sys.executable,
        "-c",
        "import sys; del sys.path[0]; import runpy; runpy.run_module('cog_trio.worker', None, '__main__', True)",
    )
)
_SECRETS = (  # variables of the server's that no model has to know; settings.py marks the same ones
    "COG_TRIO_AUTH_TOKEN",
    "COG_TRIO_AUTH_TOKEN_FILE",
    "COG_TRIO_UPLOAD_URL",
    "COG_TRIO_URL",
    "COG_TRIO_WEBHOOK_SECRET",
    "COG_TRIO_WEBHOOK_SECRET_FILE",
    "WEBHOOK_AUTH_TOKEN",
)
_ALIASES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_alias")


class WorkerProcess:
    """The handle of one worker process and of our ends of everything it shares with us."""

    __slots__ = ("_killed", "_over", "captures", "guardian", "popen", "slot0", "started")

    def __init__(
        self, popen: subprocess.Popen[bytes], slot0: socket.socket, captures: tuple[int, int], guardian: int
    ) -> None:
        self.popen = popen  # stdin and stdout: the control channel
        self.slot0 = slot0
        self.captures = captures  # read ends of stdout's and stderr's pipe: ours to read once the worker is dead
        self.guardian = guardian  # write end; nothing is ever written
        self.started = time.perf_counter()
        self._killed: float | None = None  # when it was killed first
        self._over = False

    @property
    def pid(self) -> int:
        return self.popen.pid

    def kill(self) -> None:
        """SIGKILL the worker and every child in its session. Repeatable; a no-op after ``reap``."""
        if self._over:
            return
        if self._killed is None:
            self._killed = time.perf_counter()
        with suppress(ProcessLookupError, PermissionError):  # only a zombie is left (macOS says EPERM for it)
            os.killpg(self.popen.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the worker, which has ended or was killed; return what ``Popen.returncode`` says. Repeatable.

        Raises:
          subprocess.TimeoutExpired: if it is not gone by ``REAP_LIMIT`` after it was killed. Whoever has waited for so
            long already, in another way, is not held up again.
        """
        left = REAP_LIMIT if self._killed is None else self._killed + REAP_LIMIT - time.perf_counter()
        status = self.popen.wait(max(left, 0.0))
        if not self._over:
            self._over = True
            _orphaned.add(self.popen.pid)
        _reap_orphans()
        return status

    def close(self) -> None:
        """Close our ends; the worker's guardian sees it and ends what is left of the group. Repeatable."""
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            pipe.close()
        self.slot0.close()
        captures, self.captures = self.captures, (-1, -1)
        guardian, self.guardian = self.guardian, -1
        for descriptor in (*captures, guardian):
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill, reap, close. One that hangs in the kernel is left to it: the next Popen reaps it once it has ended."""
        try:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.reap()
        finally:
            self.close()


def spawn(
    cwd: str | None = None, env: Mapping[str, str] | None = None, *, command: Sequence[str] | None = None
) -> WorkerProcess:
    """Start a worker in ``cwd`` with our environment, less our secrets, and ``env`` on top; ``command`` is another
    program, for tests.

    Raises:
      OSError: if it can't be started; nothing is left behind.
    """
    _reap_orphans()
    with ExitStack() as ours, ExitStack() as theirs:
        slot0, child_slot0 = socket.socketpair()
        ours.callback(slot0.close)
        theirs.callback(child_slot0.close)
        out_read, out_write = _pipe(ours, theirs, CAPTURE_SIZE)
        err_read, err_write = _pipe(ours, theirs, CAPTURE_SIZE)
        guardian_read, guardian_write = os.pipe()
        ours.callback(os.close, guardian_write)
        theirs.callback(os.close, guardian_read)
        shared = (child_slot0.fileno(), out_read, out_write, err_read, guardian_read)
        try:
            popen = subprocess.Popen(
                [*(command or _COMMAND), *map(str, shared), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err_write,
                bufsize=0,
                cwd=cwd,
                env=_environment(env),
                pass_fds=shared,
                start_new_session=True,
            )
        except ValueError as error:  # a name or value that no environment can hold
            raise OSError(errno.EINVAL, str(error)) from error
        ours.pop_all()
    process = WorkerProcess(popen, slot0, (out_read, err_read), guardian_write)
    _restore_descriptor_limit(popen.pid)
    return process


def _reap_orphans() -> None:
    """Reap what has ended of the groups of workers that were reaped, where it has become our child: the guardian of
    each, if this process is the first of a container, or a subreaper. A member that is still dying waits for the next
    call."""
    for group in list(_orphaned):
        try:
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # none is left, or they are another process's to reap
            _orphaned.discard(group)


_orphaned: set[int] = set()


def _pipe(ours: ExitStack, theirs: ExitStack, size: int) -> tuple[int, int]:
    """A capture pipe: we keep the read end."""
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux, Python 3.10
        with suppress(OSError):  # over the user's share of pipe memory: the default size works too
            fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, size)
    return read, write


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Ours without our secrets, what was asked for, and our ``cog`` right behind the working folder on the worker's
    path."""
    ours = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    environment = {**ours, **(extra or {})}
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{_ALIASES}{os.pathsep}{inherited}" if inherited else _ALIASES
    return environment


def _restore_descriptor_limit(pid: int) -> None:
    """Give the worker the limit that we were started with: models and libraries loop over all descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != _SOFT_LIMIT and hasattr(resource, "prlimit"):  # Linux
        with suppress(ProcessLookupError, PermissionError):  # it has ended already, or a sandbox forbids it
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_SOFT_LIMIT, hard))
