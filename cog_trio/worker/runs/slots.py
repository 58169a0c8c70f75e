"""One slot and the run that is open on it, seen from all threads of the worker.

A job goes through four stages: its inputs are made ready (I/O thread), it waits for its thread, user code runs, it
has ended. Every way out of a stage ends in ``end``: one terminal message, the last bytes about the run, whether user
code of it has begun or not. Only where the slot is dead nothing more is said: the protocol broke, and Failed told it.

The slot keeps one integer beside: the highest run that was cancelled (D19). Whether a run counts as cancelled is
asked once, right before its terminal message. ``job`` is emptied before that is written, since the next Predict may
follow at once. The worker deletes nothing of a run: its folder is the parent's to remove, which the message says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Final, NoReturn, Protocol

import msgspec
import trio

from cog_trio.bridge.codec import encode_frame
from cog_trio.bridge.protocol import (
    MAX_ERROR,
    ControlResponse,
    Done,
    Failed,
    FromSlot,
    Idle,
    Metric,
    MetricMode,
    Predict,
    RunCancelled,
    RunFailed,
    SlotId,
)
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken
from cog_trio.worker.logs.run_log import RunLog
from cog_trio.worker.model.input_values import Files, coerce
from cog_trio.worker.model.load import LoadedModel
from cog_trio.worker.model.run_folder import RunFolder
from cog_trio.worker.model.tracebacks import cut, sole, trace


class IOThreadInterface(Protocol):
    """What slots and executors ask of the I/O thread, from any thread."""

    def send(self, message: ControlResponse) -> None:
        """Write one control message; never blocks."""

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Have a function called in the I/O thread; lost once that has ended."""

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start a task; called in the I/O thread."""

    def opened(self, job: Job) -> None:
        """User code of the job begins: its text is routed to its record from here on."""

    def leaving(self, job: Job) -> None:
        """User code of the job has returned: take what waits in streams of its own. This may run code of the user's."""

    def closing(self, job: Job) -> None:
        """It has ended: send all text of it that was written, in whatever way."""


def end_forked_child(fault: BaseException | None) -> NoReturn:
    """User code forked this process and let it return to us: it is no worker, whatever it holds.

    It ends as a program would: by the code of ``sys.exit``, or with a traceback and 1; with 1 as well if it returned.
    """
    code: object = 1
    fault = fault and sole(fault)
    try:
        if isinstance(fault, SystemExit):
            code = 0 if fault.code is None else fault.code
        elif fault is not None:
            print(trace(fault), end="", file=sys.stderr)
        if not isinstance(code, int):
            print(code, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code & 0xFF if isinstance(code, int) else 1)


class Stage(Enum):
    PREPARING = auto()
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


class Slot:
    """One socket; ``fd`` stays the caller's to close."""

    def __init__(
        self, index: SlotId, fd: int, io_thread: IOThreadInterface, on_pending: Callable[[Slot], None]
    ) -> None:
        self.index: Final = index
        self.fd: Final = fd
        self.io_thread: Final = io_thread
        self.writer: Final = MessageWriter(fd, lambda: on_pending(self))
        self.cancelled = 0  # highest run that the parent has cancelled
        self.job: Job | None = None
        self.dead = False

    def emit(self, message: FromSlot) -> None:
        """Write one frame; never blocks.

        Raises:
          WriterBroken: if the parent has closed the socket.
        """
        self.writer.write(encode_frame(message))

    def ask_late(self, run_log: RunLog) -> None:
        """Have the I/O thread send what a torrent of text leaves waiting."""
        self.io_thread.post(self.io_thread.start_soon, run_log.send_late)

    def fail(self, reason: str) -> None:
        """The slot can't be used any more, and its run, if any, has failed with this reason. Repeatable."""
        if not self.dead:
            self.dead = True
            job = self.job
            if job is None:
                self.io_thread.send(Failed(reason, self.index))
            else:
                self.io_thread.send(Failed(reason, self.index, job.id, job.run))


class Job:
    """One run in the worker."""

    def __init__(self, slot: Slot, predict: Predict, model: LoadedModel) -> None:
        self.slot: Final = slot
        self.id: Final = predict.id
        self.run: Final = predict.run
        self.predict: Final = predict
        self.model: Final = model  # the callable that it calls
        self.context: dict[str, str] = predict.context
        self.run_log: Final = RunLog(slot.index, predict.id, predict.run, slot.emit, slot.writer, slot.ask_late)
        self.stage = Stage.PREPARING
        self.scope: trio.CancelScope | None = None  # of the preparation, where that takes time
        self.input: dict[str, Any] = {}
        self.local: Files = {}  # of the URLs among them
        self.folder: Final = RunFolder(predict.output_dir)
        self.output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # a result that is one value: leaves with Done
        self.last_frames = bytearray()  # of a result with files in it: they leave in the write of the terminal message

    @property
    def cancelled(self) -> bool:
        return self.slot.cancelled >= self.run or self.slot.dead

    def call_model(self) -> Any:
        """Call the model with the inputs as it takes them.

        Raises:
          InputError: if one has no form that its parameter takes.
          BaseException: whatever user code raises.
        """
        model = self.model
        args, kwargs = model.bind(coerce(model.parameters, self.input, self.local))
        return model.call(*args, **kwargs)

    def open(self) -> None:
        """User code begins; on the main thread, in the context that will run it."""
        self.stage = Stage.RUNNING
        self.slot.io_thread.opened(self)

    # From the code of the run

    def write(self, frame: bytearray) -> None:
        """Send a frame once there is room; a cancel of the run ends the wait, and the frame is sent all the same.

        Raises:
          WriterBroken: if the parent has closed the socket.
        """
        writer = self.slot.writer
        self.run_log.send()  # what was printed before it
        if writer.full:
            writer.wait(gate.wake_fd)
        writer.write(frame)

    def metric(self, name: str, value: bytes, mode: MetricMode) -> None:
        """Send one metric, from any thread of the run. After its end: nothing."""
        with gate.runtime():
            self.run_log.post_frame(encode_frame(Metric(name, msgspec.Raw(value), mode)))
            self.run_log.wait()

    # Its end

    def end(self, error: str | None = None, *, seconds: float = 0.0, is_stream: bool = False) -> None:
        """User code has ended, or none of it begins: send what was written, then the terminal message.

        ``error`` says why the run failed; of one that was cancelled it says nothing.
        """
        slot = self.slot
        slot.io_thread.closing(self)
        self.stage = Stage.ENDED
        slot.job = None
        if slot.dead:
            return
        idle, folder = Idle(slot.index, self.id, self.run), self.folder.made
        if slot.cancelled >= self.run:
            frames = encode_frame(RunCancelled(idle, folder))
        elif error is not None:
            frames = encode_frame(RunFailed(idle, folder, cut(error, MAX_ERROR)))
        else:
            frames = self.last_frames + encode_frame(Done(idle, folder, seconds, is_stream, self.output))
        try:
            slot.writer.write(frames)
        except WriterBroken as broken:
            slot.fail(f"the slot socket broke: {broken}")
