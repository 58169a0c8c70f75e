"""The I/O thread: trio, beside the main thread that runs user code.

It reads the control channel and the capture pipes, fetches input files, carries cancels, asks the health check, and
sends what producers had to leave pending. It never waits for user code. The slot sockets are read by the thread that
runs the model (``slot_reader.py``), and what its runs send they write themselves.

A task that serves one thing (a run's files, a cancel, a check, a slot) is started by ``start_task``: a fault in it
is that thing's alone. The rest of this thread has the state of everyone, and a fault there ends the process.

A parent that breaks the protocol is told so, never ignored: on a slot by Failed, which makes that slot
unusable; on the control channel by Fatal, after which the worker ends. The end of the control channel, in any
state, kills the worker's process group: nobody is left to work for.
"""

from __future__ import annotations

import array
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NoReturn

import trio

from cog_trio.bridge.channel import READ_SIZE
from cog_trio.bridge.codec import LineBuffer, ProtocolBroken, control_requests, encode_line
from cog_trio.bridge.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    ControlRequest,
    ControlResponse,
    DumpState,
    Failed,
    Fatal,
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Init,
    LogLevel,
    LogSource,
    ProtocolVersion,
    Shutdown,
    ShuttingDown,
    SlotId,
    WorkerLog,
)
from cog_trio.worker.ipc.dropped_lines import DroppedLines
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken
from cog_trio.worker.model.tracebacks import last_line
from cog_trio.worker.process.model_runtime import ModelRuntime
from cog_trio.worker.process.state_lines import state_lines
from cog_trio.worker.runs.slots import INTERNAL_ERROR, Job, SlotSocket, Stage, internal_error

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

SOCKETS_A_MESSAGE: Final = 200  # descriptors that come at once, at most
LAST_WORDS: Final = 1.0  # seconds for Fatal to reach the parent, and for this thread to end
STATE_TARGET: Final = "cog_trio.worker.state"
BROKEN: Final = 70  # exit status after Fatal, or after a fault of our own


class IOThread:
    """The I/O thread. Its methods are for any thread, but where they say otherwise."""

    def __init__(self, control_in: int, control_out: int, slot0: int) -> None:
        self.requests: Final[queue.SimpleQueue[Init | None]] = queue.SimpleQueue()  # None: leave
        self.control: Final = MessageWriter(control_out, lambda: self.post(self._start_soon, self.control.flush))
        self.slots: Final[list[SlotSocket]] = []
        self._dropped: Final = DroppedLines(lambda: self.post(self._start_soon, self._dropped.report), self.send)
        self.stopping = False  # Shutdown has come
        self._control_in = control_in
        self._slot0 = slot0
        self._initialised = False
        self._runtime: ModelRuntime | None = None
        self._arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._cancelling: set[Job] = set()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._main, name="cog-trio io", daemon=True)

    # Main thread

    def start(self, pump: Callable[[LogSource], Awaitable[None]]) -> None:
        """Start the thread; ``pump`` reads one capture pipe, for ever."""
        self._pump = pump
        self._thread.start()
        self._up.wait()

    def open_slots(self, runtime: ModelRuntime, count: int) -> queue.SimpleQueue[bool]:
        """Take the sockets of ``count`` slots, which the parent sends now, and serve what the main thread has made.

        Gives a queue that has an item once they have come: True, or False if the worker is to leave instead.
        """
        self._runtime = runtime
        self.post(self._start_soon, self._open_slots, count)
        return self._arrived

    def stop(self) -> None:
        """End the thread, at the end of the interpreter; what it leaves pending is the caller's to send."""
        if self._thread.is_alive() and self._nursery is not None:
            self.post(self._nursery.cancel_scope.cancel)
            self._thread.join(LAST_WORDS)
        if self._dropped.report_now():
            self.control.finish(LAST_WORDS)

    # Any thread (IOThreadInterface)

    def send(self, message: ControlResponse) -> None:
        if isinstance(message, WorkerLog) and self.control.full:  # the parent takes nothing, and this may be dropped
            self.drop_lines(1)
            return
        try:
            self.control.write(encode_line(message))
        except WriterBroken:
            return  # the parent is gone: the end of the channel's other half is about to kill us

    def drop_lines(self, count: int) -> None:
        self._dropped.add(count)

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Have a function called in this thread; lost once it has ended. A fault in it is one of everyone's."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return  # the interpreter is ending

    def start_task(
        self, what: str, failed: Callable[[str], object], task: Callable[..., Awaitable[object]], *args: Any
    ) -> None:
        self.post(self._start_soon, self._guard, what, failed, task, args)

    def slot_broke(self, slot: SlotSocket, reason: str) -> None:
        job = slot.job
        if not self.stopping:
            whose = (None, None) if job is None else (job.id, job.run)
            self.send(Failed(reason, slot.index, *whose))
        if job is not None:
            self.post(self._interrupt, job)

    # All below: I/O thread

    def _start_soon(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(function, *args)

    async def _guard(
        self,
        what: str,
        failed: Callable[[str], object],
        task: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
    ) -> None:
        """The wall around a task that serves one thing."""
        try:
            await task(*args)
        except trio.Cancelled:
            raise  # the thread ends
        except BaseException as error:  # noqa: BLE001  whatever it is, all others go on
            failed(INTERNAL_ERROR)
            self.send(internal_error(what, error))

    def _main(self) -> None:
        try:
            trio.run(self._run, strict_exception_groups=True)
        except BaseException:  # noqa: BLE001  a worker without this thread could hear nobody
            os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
            os._exit(BROKEN)

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            nursery.start_soon(self._pump, LogSource.STDOUT)
            nursery.start_soon(self._pump, LogSource.STDERR)
            nursery.start_soon(self._read_control)
            self._add_slot(self._slot0)
            self._up.set()

    def _add_slot(self, fd: int) -> None:
        slot = SlotSocket(SlotId(len(self.slots)), fd, self)
        self.slots.append(slot)
        slot.emit(ProtocolVersion(PROTOCOL_VERSION))

    def _fatal(self, reason: str) -> NoReturn:
        """Tell the parent, then end this process at once; its guardian ends the children."""
        self.send(Fatal(reason))
        self.control.finish(LAST_WORDS)  # blocks this thread: there is nothing left for it to do
        os._exit(BROKEN)

    # Control

    async def _read_control(self) -> None:
        buffer = LineBuffer()
        while True:
            await trio.lowlevel.wait_readable(self._control_in)
            data = _read(self._control_in)
            if data == b"":
                os.killpg(0, signal.SIGKILL)
            try:
                buffer.feed(data or b"")
                for body in buffer.frames():
                    self._control_message(control_requests.decode(body))
            except ProtocolBroken as fault:
                self._fatal(f"the parent broke the protocol on the control channel: {fault}")

    def _control_message(self, message: ControlRequest) -> None:
        match message:
            case Init():
                if self._initialised:
                    raise ProtocolBroken("a second Init")
                self._initialised = True
                self.requests.put(message)
            case Cancel():
                self._cancel(message)
            case Healthcheck():
                if self._runtime is None:
                    raise ProtocolBroken("Healthcheck before the model is described")
                failed = partial(self._check_failed, message.id)
                self.start_task("the health check", failed, self._check_health, self._runtime, message.id)
            case DumpState():
                for line in state_lines(None if self._runtime is None else self._runtime.executor):
                    self.send(WorkerLog(STATE_TARGET, LogLevel.WARNING, line))
            case Shutdown():
                self._shutdown()
            case _:
                assert_never(message)

    def _shutdown(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self.send(ShuttingDown())
        self.requests.put(None)
        self._arrived.put(False)
        if self._runtime is not None:
            self._runtime.executor.stop()

    async def _check_health(self, runtime: ModelRuntime, id: str) -> None:
        self.send(await runtime.check_health(id))

    def _check_failed(self, id: str, error: str) -> None:
        self.send(HealthcheckResult(id, HealthcheckStatus.UNHEALTHY, error))

    def _cancel(self, message: Cancel) -> None:
        if not 0 <= message.slot < len(self.slots):
            raise ProtocolBroken(f"Cancel for slot {message.slot}, which there is not")
        slot = self.slots[message.slot]
        slot.cancelled = max(slot.cancelled, message.run)
        job = slot.job
        if job is not None and job.run == message.run:
            if job.id != message.id:
                raise ProtocolBroken(f"Cancel names run {message.run} by the id of another")
            self._interrupt(job)

    def _interrupt(self, job: Job) -> None:
        """Have the job end, wherever it is. Repeatable."""
        if job.stage is Stage.FETCHING and job.fetching is not None:
            job.fetching.cancel()
        elif job.stage is not Stage.ENDED and job not in self._cancelling:
            self._cancelling.add(job)
            self.start_task(f"the cancel of {job.id}", job.slot.fail, self._interrupt_main, job)

    async def _interrupt_main(self, job: Job) -> None:
        assert self._runtime is not None
        try:
            await self._runtime.executor.cancel(job)
        finally:
            self._cancelling.discard(job)

    # Slots

    async def _open_slots(self, count: int) -> None:
        try:
            while len(self.slots) < count:
                await trio.lowlevel.wait_readable(self._slot0)
                for fd in _receive_sockets(self._slot0):
                    self._add_slot(fd)
        except (ProtocolBroken, OSError) as fault:
            self._fatal(f"the sockets of the slots did not come: {last_line(fault)}")
        if len(self.slots) > count:
            self._fatal(f"{len(self.slots)} sockets came for {count} slots")
        self._arrived.put(True)


def _read(fd: int) -> bytes | None:
    """What is there: b"" at the end, None if it was a false alarm."""
    try:
        return os.read(fd, READ_SIZE)
    except BlockingIOError:
        return None


def _receive_sockets(fd: int) -> list[int]:
    """One message of exactly one byte and the descriptors that come with it."""
    with socket.socket(fileno=os.dup(fd)) as channel:
        space = socket.CMSG_LEN(SOCKETS_A_MESSAGE * array.array("i").itemsize)
        try:
            data, ancillary, flags, _ = channel.recvmsg(1, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        except BlockingIOError:
            return []
    received = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
    for socket_fd in received:
        os.set_inheritable(socket_fd, False)
    if not data:
        raise ProtocolBroken("the parent closed slot 0")
    if flags & socket.MSG_CTRUNC or not received:
        raise ProtocolBroken("a message on slot 0 that brings no whole set of sockets")
    return received.tolist()
