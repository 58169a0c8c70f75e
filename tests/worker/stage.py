"""A worker's process as far as capture is concerned: real descriptors, a real I/O thread, scripted runs.

``play`` runs a script in a child process and gives what reached the parent. In the script: ``capture``,
``run(id)`` (a run around its body), ``current_record``; text is captured from the start.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import trio

from cog_trio.bridge.codec import FrameBuffer, LineBuffer, control_responses, encode_frame, slot_responses
from cog_trio.bridge.protocol import Done, Idle, Log, LogLine, LogSource, PredictionId, SlotId, SlotResponse

LIMIT = 45.0  # seconds that one script may take

_SCRIPT = """
import sys
from tests.worker.stage import Stage
stage = Stage(*map(int, sys.argv[1:]))
capture, run = stage.capture, stage.run
{body}
"""


class Seen(NamedTuple):
    """What reached the parent."""

    frames: list[SlotResponse]
    service: list[Log]
    status: int

    def text(self, id: str, source: str | None = None) -> str:
        """All text of one run, from its slot socket."""
        lines: list[LogLine] = []
        for frame in self.frames:
            if isinstance(frame, LogLine):
                lines.append(frame)
            elif isinstance(frame, Done):
                if frame.idle.id == id:
                    return "".join(line.data for line in lines if source in (None, line.source.value))
                lines = []
        raise AssertionError(f"no run {id} has ended")

    def log(self, id: str | None = None) -> str:
        """All text of the service log that has this id."""
        return "".join(log.data for log in self.service if log.id == id)


def play(body: str, *, read: Callable[[int], bytes] = lambda fd: os.read(fd, 2**20), status: int = 0) -> Seen:
    """Run a script to its end."""
    control_r, control_w = os.pipe()
    ours, theirs = socket.socketpair()
    data: dict[str, bytearray] = {"slot": bytearray(), "control": bytearray()}

    def collect(name: str, fd: int) -> None:
        while part := read(fd):
            data[name] += part

    with ours, theirs:
        child = subprocess.Popen(
            # Python 3.12 and newer warn __main__ of a fork beside threads; a model's module is not told by default
            [
                sys.executable,
                "-W",
                "ignore:This process:DeprecationWarning",
                "-c",
                _SCRIPT.format(body=textwrap.dedent(body)),
                str(theirs.fileno()),
                str(control_w),
            ],
            pass_fds=(theirs.fileno(), control_w),
            stdin=subprocess.DEVNULL,
            cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        )
        os.close(control_w)
        theirs.close()
        readers = [
            threading.Thread(target=collect, args=("slot", ours.fileno())),
            threading.Thread(target=collect, args=("control", control_r)),
        ]
        for reader in readers:
            reader.start()
        try:
            got = child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # its stacks go to our stderr
            child.wait(LIMIT)
            raise
        finally:
            child.kill()
            child.wait()
            for reader in readers:
                reader.join(LIMIT)
            os.close(control_r)
    frames, lines = FrameBuffer(), LineBuffer()
    frames.feed(data["slot"])
    lines.feed(data["control"])
    logs = [control_responses.decode(line) for line in lines.frames()]
    seen = Seen(
        [slot_responses.decode(body) for body in frames.frames()],
        [log for log in logs if isinstance(log, Log)],
        got,
    )
    frames.close()
    lines.close()
    assert got == status, f"status {got}\n{seen.log()}"
    return seen


class Stage:
    """In the child."""

    def __init__(self, slot_fd: int, control_fd: int) -> None:
        from cog_trio.worker.cancel.gate import gate
        from cog_trio.worker.ipc.message_writer import MessageWriter
        from cog_trio.worker.logs import capture

        faulthandler.enable(open(os.dup(2), "w"), all_threads=True)  # noqa: SIM115  # for the child's life
        atexit.register(lambda: self.slot.finish(5.0) if not self.capture.forked else None)
        ends = []
        for fd in (1, 2):
            read_end, write_end = os.pipe()
            os.dup2(write_end, fd, inheritable=True)
            os.close(write_end)
            ends.append(read_end)
        os.set_inheritable(slot_fd, False)
        os.set_inheritable(control_fd, False)
        gate.install(KeyboardInterrupt)
        self.gate = gate
        self._start: Callable[..., None] | None = None
        self.control = MessageWriter(control_fd, lambda: self._flush(self.control))
        self.slot = MessageWriter(slot_fd, lambda: self._flush(self.slot))
        self.capture = capture.install(self.control, ends[0], ends[1])
        self.capture.private.add(slot_fd)
        self._runs = 0
        ready = threading.Event()
        threading.Thread(target=trio.run, args=(self._io, ready), daemon=True).start()
        ready.wait()

    async def _io(self, ready: threading.Event) -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.capture.pump, LogSource.STDOUT)
            nursery.start_soon(self.capture.pump, LogSource.STDERR)
            self._start = lambda function: token.run_sync_soon(nursery.start_soon, function)
            ready.set()
            await trio.sleep_forever()

    def _flush(self, writer: Any) -> None:
        self._soon(writer.flush)

    def _soon(self, function: Callable[[], Any]) -> None:
        assert self._start is not None
        self._start(function)

    @contextlib.contextmanager
    def run(self, id: str) -> Iterator[Any]:
        """One run; its code is the body, in the present context."""
        run_log = self.begin(id)
        token = self.set_current(run_log)
        try:
            yield run_log
        finally:
            token.var.reset(token)
            self.end(run_log)

    def begin(self, id: str) -> Any:
        from cog_trio.worker.logs.run_log import RunLog

        self._runs += 1
        run_log = RunLog(
            SlotId(0),
            PredictionId(id),
            self._runs,
            lambda line: self.slot.write(encode_frame(line)),
            self.slot,
            lambda late: self._soon(late.send_late),
        )
        self.capture.attach(run_log)
        return run_log

    def set_current(self, run_log: Any) -> Any:
        from cog_trio.worker.logs.run_log import current

        return current.set(run_log)

    def end(self, run_log: Any) -> None:
        self.capture.flush_user_streams()
        self.capture.detach(run_log)
        self.slot.write(encode_frame(Done(Idle(run_log.slot, run_log.id, run_log.run))))
