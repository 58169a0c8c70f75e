"""One slot and the run that is open on it, seen from all threads of the worker.

A job waits for its thread, perhaps after the I/O thread has fetched its files; then user code runs; then it has ended.
All but the fetching is done by the thread that runs the model. Every way out ends in ``end``: one terminal message,
the last bytes about the run, whether user code of it has begun or not. Only where the slot is dead nothing more is
said: the protocol broke, and Failed told it.

The slot keeps one integer beside: the highest run that was cancelled. Whether a run counts as cancelled is
asked once, right before its terminal message. ``job`` is emptied before that is written, since the next Predict may
follow at once. The worker deletes nothing of a run: its folder is the parent's to remove, which the message says.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Final, NoReturn, Protocol

import msgspec
import trio

from cog_trio.bridge.codec import encode_frame
from cog_trio.bridge.protocol import (
    MAX_ERROR,
    MAX_METRIC,
    ControlResponse,
    Done,
    FromSlot,
    Idle,
    LogLevel,
    Metric,
    MetricMode,
    Predict,
    RunCancelled,
    RunFailed,
    SlotId,
    WorkerLog,
)
from cog_trio.sdk.scope import Mode, Scope, enter
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken
from cog_trio.worker.logs.capture import Capture
from cog_trio.worker.logs.run_log import RunLog, current
from cog_trio.worker.model.input_values import Files, coerce
from cog_trio.worker.model.load import LoadedModel
from cog_trio.worker.model.run_folder import RunFolder
from cog_trio.worker.model.tracebacks import cut, sole, trace

INTERNAL_ERROR: Final = "InternalError: the worker failed while this prediction ran"
_MODES: Final = {"replace": MetricMode.REPLACE, "increment": MetricMode.INCREMENT, "append": MetricMode.APPEND}


class IOThreadInterface(Protocol):
    """What runs and executors ask of the I/O thread, from any thread."""

    def send(self, message: ControlResponse) -> None:
        """Write one control message; never blocks."""

    def start_task(
        self, what: str, failed: Callable[[str], object], task: Callable[..., Awaitable[object]], *args: Any
    ) -> None:
        """Start a task there that serves one thing; lost once the thread has ended.

        An exception that is not expected ends the task alone: it is logged, with what the task was doing, and
        ``failed`` is called there with the fixed text of an internal error.
        """

    def slot_broke(self, slot: SlotSocket, reason: str) -> None:
        """Tell the parent, and end the run that is open on the slot."""

    def drop_lines(self, count: int) -> None:
        """Count lines of text that were dropped; from any thread, never blocks."""


def end_forked_child(fault: BaseException | None) -> NoReturn:
    """User code forked this process and let it return to us: it is not a worker, whatever it holds.

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
    WAITING = auto()
    FETCHING = auto()
    RUNNING = auto()
    ENDED = auto()


class SlotSocket:
    """One socket; ``fd`` stays the caller's to close."""

    def __init__(self, index: SlotId, fd: int, io_thread: IOThreadInterface) -> None:
        self.index: Final = index
        self.fd: Final = fd
        self.io_thread: Final = io_thread
        self.writer: Final = MessageWriter(fd, self._flush_later)
        self.cancelled = 0  # highest run that the parent has cancelled
        self.job: Job | None = None
        self.dead = False

    def emit(self, message: FromSlot) -> None:
        """Write one frame; never blocks.

        Raises:
          WriterBroken: if the parent has closed the socket.
        """
        self.writer.write(encode_frame(message))

    def _flush_later(self) -> None:
        self.io_thread.start_task(f"sending on slot {self.index}", self.fail, self.writer.flush)

    def ask_late(self, run_log: RunLog) -> None:
        """Have the I/O thread send what a torrent of text leaves waiting."""
        # a fault there costs nothing: the next text, or the end of the run, sends what waits
        self.io_thread.start_task(f"sending text of {run_log.id}", _nothing, run_log.send_late)

    def fail(self, reason: str) -> None:
        """The slot can't be used any more, and its run, if any, has failed with this reason. Repeatable."""
        if not self.dead:
            self.dead = True
            self.io_thread.slot_broke(self, reason)


def _nothing(_: str) -> None:
    """Nothing."""


class Job:
    """One run in the worker."""

    def __init__(self, slot: SlotSocket, predict: Predict, model: LoadedModel, capture: Capture) -> None:
        self.slot: Final = slot
        self.id: Final = predict.id
        self.run: Final = predict.run
        self.predict: Final = predict
        self.model: Final = model  # the callable that it calls
        self.context: dict[str, str] = predict.context
        self.run_log: Final = RunLog(
            slot.index, predict.id, predict.run, slot.emit, slot.writer, slot.ask_late, slot.io_thread.drop_lines
        )
        self.stage = Stage.WAITING
        self.fetching: trio.CancelScope | None = None  # around the wait for files
        self.scope: Scope | None = None  # of its user code, while that runs
        self.input: dict[str, Any] = {}
        self.local: Files = {}  # of the URLs among them
        self.folder: Final = RunFolder(predict.output_dir)
        self.output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # a result that is one value: leaves with Done
        self.last_frames = bytearray()  # of a result with files in it: they leave in the write of the terminal message
        self._capture = capture

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
        self._capture.attach(self.run_log)
        current.set(self.run_log)
        self.scope = Scope(context=self.context, record=self._record)
        enter(self.scope)

    def leave(self) -> None:
        """User code has returned: take what waits in streams of its own, which may run code of the user's."""
        self._capture.flush_user_streams()

    # From the code of the run

    def put(self, frame: bytearray | None) -> bool:
        """Send a frame, behind all that waits; or what waits alone. Whether that needs room before more is made.

        Raises:
          WriterBroken: if the parent has closed the socket.
        """
        if frame is None:
            self.run_log.send()
        else:
            self.run_log.post_frame(frame)
        writer = self.slot.writer
        if writer.broken is not None:
            raise WriterBroken(writer.broken)
        return writer.full

    def _record(self, name: str, value: Any, mode: Mode) -> None:
        """Send one metric, from any thread of the run. After its end: nothing."""
        data = _encode(value)
        if len(data) > MAX_METRIC:
            raise ValueError(f"metric {name!r}: {len(data)} bytes are over the limit of {MAX_METRIC}")
        with gate.runtime():
            self.run_log.post_frame(encode_frame(Metric(name, msgspec.Raw(data), _MODES[mode])))
            self.run_log.wait()

    # Its end

    def end(self, error: str | None = None, seconds: float = 0.0, is_stream: bool = False) -> None:
        """User code has ended, or none of it begins: send what was written, then the terminal message.

        ``error`` says why the run failed; of one that was cancelled it says nothing.
        """
        if self.stage is Stage.ENDED:
            return
        slot = self.slot
        scope, self.scope = self.scope, None
        if scope is None:  # no user code began
            self.run_log.finish()
        else:
            scope.close()
            self._capture.detach(self.run_log)
        idle, folder = Idle(slot.index, self.id, self.run), self.folder.made
        if slot.cancelled >= self.run:
            frames = encode_frame(RunCancelled(idle, folder))
        elif error is not None:
            frames = encode_frame(RunFailed(idle, folder, cut(error, MAX_ERROR)))
        else:
            frames = self.last_frames + encode_frame(Done(idle, folder, seconds, is_stream, self.output))
        self.stage = Stage.ENDED
        slot.job = None
        if slot.dead:
            return
        try:
            slot.writer.write(frames)
        except WriterBroken as broken:
            slot.fail(f"the slot socket broke: {broken}")

    def break_off(self, error: BaseException) -> None:
        """Code of ours has failed where nobody expects it: log that, and end the run by the fixed text."""
        self.slot.io_thread.send(internal_error(f"running {self.id}", error))
        self.end(INTERNAL_ERROR)


def internal_error(what: str, error: BaseException) -> WorkerLog:
    """What is logged about a fault of ours."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return WorkerLog("cog_trio.worker", LogLevel.ERROR, cut(f"{what} failed:\n{text}", MAX_ERROR))


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except OverflowError:  # integers beyond 64 bits; the scope has made sure that all else is JSON
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
