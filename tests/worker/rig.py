"""A real worker process under a small scripted parent.

``open_worker`` writes a model's source to a folder, starts the worker as the parent does, and leads it up to Ready
(or as far as asked). A ``Parent`` tells and hears; ``run`` plays one whole prediction and gives all that came. Every
wait has a deadline, and leaving kills the worker's group, whatever happened.
"""

from __future__ import annotations

import os
import socket
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import trio

from cog_trio.bridge.channel import Channel
from cog_trio.bridge.codec import control_responses, slot_responses
from cog_trio.bridge.protocol import (
    Cancel,
    ControlRequest,
    ControlResponse,
    Described,
    Done,
    FileOutput,
    Idle,
    Init,
    Log,
    LogLine,
    LogSource,
    Metric,
    OutputBatch,
    OutputChunk,
    Predict,
    PredictionId,
    Ready,
    RunCancelled,
    RunFailed,
    Shutdown,
    SlotId,
    SlotRequest,
    SlotResponse,
    Terminal,
)
from cog_trio.orchestrator.spawn import WorkerProcess, spawn

LIMIT: Final = 20.0  # seconds for anything; the machine may be busy
TERMINAL: Final[Any] = (Done, RunFailed, RunCancelled)
M = TypeVar("M")


@dataclass
class Outcome:
    """All that one run sent."""

    frames: list[SlotResponse]
    terminal: Terminal

    @property
    def outputs(self) -> list[Any]:
        last = self.terminal.output if isinstance(self.terminal, Done) else msgspec.UNSET
        items: list[Any] = []
        for frame in self.frames:
            if isinstance(frame, OutputBatch):
                items += msgspec.json.decode(frame.outputs)
            elif isinstance(frame, OutputChunk):
                items.append(msgspec.json.decode(frame.output))
        return [*items, msgspec.json.decode(last)] if isinstance(last, msgspec.Raw) else items

    @property
    def indexes(self) -> list[int]:
        """Of the outputs that are not files, as they came."""
        found: list[int] = []
        for frame in self.frames:
            if isinstance(frame, OutputBatch):
                found += range(frame.index, frame.index + frame.count)
            elif isinstance(frame, OutputChunk):
                found.append(frame.index)
        return found

    @property
    def files(self) -> list[FileOutput]:
        return [frame for frame in self.frames if isinstance(frame, FileOutput)]

    @property
    def metrics(self) -> list[tuple[str, Any, str]]:
        return [
            (frame.name, msgspec.json.decode(frame.value), frame.mode.value)
            for frame in self.frames
            if isinstance(frame, Metric)
        ]

    def logs(self, source: LogSource | None = None) -> str:
        lines = [frame for frame in self.frames if isinstance(frame, LogLine)]
        return "".join(line.data for line in lines if source is None or line.source is source)

    @property
    def error(self) -> str:
        assert isinstance(self.terminal, RunFailed), self.terminal
        return self.terminal.error

    @property
    def cancelled(self) -> bool:
        return isinstance(self.terminal, RunCancelled)

    @property
    def done(self) -> bool:
        return isinstance(self.terminal, Done)


@dataclass
class Line:
    """Our end of one slot."""

    index: int
    stream: trio.SocketStream
    channel: Channel[SlotRequest, SlotResponse]
    waiting: list[SlotResponse] = field(default_factory=list)

    async def hear(self, kind: type[M], seen: list[SlotResponse] | None = None) -> M:
        """The next frame of a kind; those before it go to ``seen``."""
        with trio.fail_after(LIMIT):
            while True:
                while self.waiting:
                    frame = self.waiting.pop(0)
                    if isinstance(frame, kind):
                        return frame
                    if seen is not None:
                        seen.append(frame)
                await self.read()

    async def read(self) -> None:
        """Take what comes next."""
        frames = await self.channel.receive()
        assert frames, f"slot {self.index} was closed"
        self.waiting += frames


class Parent:
    """The scripted parent of one worker."""

    def __init__(self, process: WorkerProcess, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.heard: list[ControlResponse] = []
        self.lines: list[Line] = []
        self._runs = count(1)
        self._waiting: list[ControlResponse] = []
        assert process.popen.stdin is not None
        assert process.popen.stdout is not None
        self.stream = trio.StapledStream(
            trio.lowlevel.FdStream(os.dup(process.popen.stdin.fileno())),
            trio.lowlevel.FdStream(os.dup(process.popen.stdout.fileno())),
        )
        self.control: Channel[ControlRequest, ControlResponse] = Channel(self.stream, control_responses, lines=True)
        self.add(process.slot0.dup())

    def add(self, end: socket.socket) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self.lines.append(Line(len(self.lines), stream, Channel(stream, slot_responses)))

    async def tell(self, message: ControlRequest) -> None:
        await self.control.send(message)

    async def hear(self, kind: type[M], where: Callable[[M], bool] = lambda _: True) -> M:
        """The next control message of a kind; those before it stay in ``heard``."""
        with trio.fail_after(LIMIT):
            while True:
                while self._waiting:
                    message = self._waiting.pop(0)
                    self.heard.append(message)
                    if isinstance(message, kind) and where(message):
                        return message
                messages = await self.control.receive()
                assert messages, f"the control channel was closed; {self.last_words()}"
                self._waiting += messages

    def service_log(self) -> str:
        return "".join(message.data for message in self.heard if isinstance(message, Log))

    def last_words(self) -> str:
        os.set_blocking(self.process.captures[1], False)
        try:
            return os.read(self.process.captures[1], 65536).decode()
        except BlockingIOError:
            return ""

    async def make_ready(self, **init: Any) -> Ready:
        await self.tell(Init(**{"predict_ref": "predict.py", **init}))
        described = await self.hear(Described)
        await self.send_sockets(described.concurrency - 1)
        return await self.hear(Ready)

    async def send_sockets(self, number: int) -> None:
        pairs = [socket.socketpair() for _ in range(number)]
        for start in range(0, number, 200):
            theirs = [pair[1].fileno() for pair in pairs[start : start + 200]]
            socket.send_fds(self.process.slot0, [b"\0"], theirs)
        for ours, their in pairs:
            their.close()
            self.add(ours)

    async def predict(self, input: Any = None, *, slot: int = 0, run: int | None = None, **more: Any) -> Predict:
        """Send a Predict and no more."""
        number = next(self._runs) if run is None else run
        fields: dict[str, Any] = {
            "output_dir": str(self.folder / f"run{number}"),
            **({} if "input_file" in more else {"input": msgspec.Raw(msgspec.json.encode(input or {}))}),
            **more,
        }
        message = Predict(SlotId(slot), PredictionId(f"id{number}"), number, **fields)
        await self.lines[slot].channel.send(message)
        return message

    def next_run(self) -> int:
        return next(self._runs)

    async def cancel(self, predict: Predict) -> None:
        await self.tell(Cancel(predict.slot, predict.id, predict.run))

    async def finish(self, predict: Predict, frames: list[SlotResponse] | None = None) -> Outcome:
        """All that comes up to its end, which is the last of it."""
        line = self.lines[predict.slot]
        seen: list[SlotResponse] = [] if frames is None else frames
        terminal: Terminal = await line.hear(TERMINAL, seen)
        assert terminal.idle == Idle(predict.slot, predict.id, predict.run)
        assert not line.waiting, "something came after the end"
        return Outcome(seen, terminal)

    async def run(self, input: Any = None, *, slot: int = 0, **more: Any) -> Outcome:
        return await self.finish(await self.predict(input, slot=slot, **more))

    async def wait_log(self, predict: Predict, text: str, frames: list[SlotResponse]) -> None:
        """Wait until the run has printed a text."""
        line = self.lines[predict.slot]
        while text not in "".join(frame.data for frame in frames if isinstance(frame, LogLine)):
            frames.append(await line.hear(LogLine, frames))

    async def wait_exit(self) -> int:
        def wait() -> int:
            return self.process.popen.wait(LIMIT)

        return await trio.to_thread.run_sync(wait)

    async def leave(self) -> int:
        """Shutdown, and whatever the worker says until it ends; the exit status."""
        await self.tell(Shutdown())
        with trio.fail_after(LIMIT):
            while messages := await self.control.receive():
                self.heard += messages
        return await self.wait_exit()

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)
        for line in self.lines:
            await line.channel.aclose()


async def until(condition: Callable[[], object]) -> None:
    """Look again and again: for what tells nobody when it comes."""
    with trio.fail_after(LIMIT):
        while True:
            if condition():
                return
            await trio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@asynccontextmanager
async def open_worker(
    folder: Path, source: str, *, ready: bool = True, env: Mapping[str, str] | None = None, **init: Any
) -> AsyncIterator[Parent]:
    """A worker that serves ``source``; not sent anything unless ``ready``."""
    (folder / "predict.py").write_text(textwrap.dedent(source))
    with spawn(str(folder), env) as process:
        parent = Parent(process, folder)
        try:
            if ready:
                await parent.make_ready(**init)
            yield parent
        finally:
            await parent.aclose()
