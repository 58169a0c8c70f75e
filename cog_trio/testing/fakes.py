"""A worker that is not a process: it speaks real frames over memory streams, and does what a test tells it to.

``FakeWorker`` is both ends. As a ``Link`` it is what the orchestrator adopts. As a script it is the worker's side:
``say`` and ``send`` put messages on the control channel and on a slot, ``next_control`` and ``next_predict`` wait for
what the parent sends, ``exit`` ends it. All that a worker says is said at once and in order, so races are scripted.

``open_fake_worker`` runs one that behaves well by itself, and each Predict by a behaviour: ``echo``, or one of the
failures by name (``stall``, ``deaf``, ``half_frame``, ``eof``, ``garbage``, ``exit_9``).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import trio

from cog_trio.bridge.codec import FrameBuffer, LineBuffer, control_requests, encode_frame, encode_line, slot_requests
from cog_trio.bridge.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    ControlRequest,
    ControlResponse,
    Described,
    Done,
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Idle,
    Init,
    Inputs,
    Kind,
    LogSource,
    OutputChunk,
    Predict,
    ProtocolVersion,
    Ready,
    RunCancelled,
    Shutdown,
    ShuttingDown,
    SlotId,
    SlotRequest,
    SlotResponse,
)
from cog_trio.orchestrator.process import describe_exit

GARBAGE: Final = b"\x00\x00\x00\x07garbage"
HALF_FRAME: Final = b"\x00\x00\x01\x00{"
T = TypeVar("T")


class Pipe(trio.abc.Stream):
    """One direction: what is sent is there at once, without bound; ``stalled`` makes the sender wait."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False
        self.stalled = False
        self._changed = trio.lowlevel.ParkingLot()

    def put(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            raise trio.BrokenResourceError("the reader is gone")
        self.data += data
        self._changed.unpark_all()

    def take(self, limit: int | None = None) -> bytes:
        taken = bytes(self.data[:limit])
        del self.data[:limit]
        return taken

    def close(self) -> None:
        self.closed = True
        self._changed.unpark_all()

    def resume(self) -> None:
        self.stalled = False
        self._changed.unpark_all()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        while self.stalled and not self.closed:
            await self._changed.park()
        self.put(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.data and not self.closed:
            await self._changed.park()
        return self.take(max_bytes)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


@dataclass
class Wire:
    """Both directions of one channel; ``stream`` is the parent's end."""

    down: Pipe = field(default_factory=Pipe)
    up: Pipe = field(default_factory=Pipe)

    def __post_init__(self) -> None:
        self.stream: trio.abc.Stream = trio.StapledStream(self.down, self.up)


class FakeWorker:
    """One worker's two sides; see the module."""

    def __init__(self, *, concurrency: int = 1, healthcheck: bool = False, document: Any = None) -> None:
        self.concurrency = concurrency
        self.healthcheck = healthcheck
        self.document = document if document is not None else {"openapi": "3.0.2", "paths": {}}
        self.streaming = False
        self.inputs: Inputs | None = Inputs("Input")
        self.train_inputs: Inputs | None = None
        self.no_training: str | None = None
        self.wire = Wire()  # the control channel
        self.slots = [Wire()]
        self.status: int | None = None
        self.kills = 0
        self.reaped = False
        self._ended = 0  # the last run that has finished
        self.abandoned = False
        self.unread: list[tuple[LogSource, str]] = []  # what stands in the capture pipes at its death
        self.control = self.wire.stream
        self.control_descriptor: int | None = None
        self.slot0 = self.slots[0].stream
        self.age = 0.0
        self._lines = LineBuffer()
        self._frames = [FrameBuffer()]
        self._requests: list[list[SlotRequest]] = [[]]
        self._heard: list[ControlRequest] = []
        self._exited = trio.Event()

    # The Link.

    async def more_slots(self, count: int) -> list[trio.abc.Stream]:
        await trio.lowlevel.checkpoint()
        self.slots += [Wire() for _ in range(count)]
        self._frames += [FrameBuffer() for _ in range(count)]
        self._requests += [[] for _ in range(count)]
        return [wire.stream for wire in self.slots[1:]]

    async def wait_exit(self) -> None:
        await self._exited.wait()

    def kill(self) -> None:
        self.kills += 1
        self.exit(-9)

    async def leftover(self, stream: trio.abc.Stream) -> bytes:
        await trio.lowlevel.checkpoint()
        return next(wire for wire in (self.wire, *self.slots) if wire.stream is stream).up.take()

    def captured(self) -> list[tuple[LogSource, str]]:
        return self.unread

    async def relieve(self, take: Callable[[LogSource, str], None]) -> None:
        await trio.sleep_forever()  # it reads its own pipes

    def reap(self) -> str:
        assert self.status is not None
        self.reaped = True
        return describe_exit(self.status)

    def abandon(self) -> None:
        self.abandoned = True

    # The script.

    def say(self, message: ControlResponse) -> None:
        """One message on the control channel."""
        self.wire.up.put(encode_line(message))

    def send(self, message: SlotResponse, slot: int = 0) -> None:
        """One frame on a slot."""
        self.slots[slot].up.put(encode_frame(message))

    def exit(self, status: int, *, closing: bool = True) -> None:
        """End, once; ``closing=False``: a child of the worker holds the descriptors."""
        if self.status is None:
            self.status = status
            self._exited.set()
            for wire in (self.wire, *self.slots) if closing else ():
                wire.up.close()
                wire.down.close()

    async def control_message(self) -> ControlRequest | None:
        """Wait for the parent's next control message; None at the end."""
        while not self._heard:
            if not (data := await self.wire.down.receive_some()):
                return None
            self._lines.feed(data)
            self._heard += [control_requests.decode(line) for line in self._lines.frames()]
        return self._heard.pop(0)

    async def slot_message(self, slot: int) -> SlotRequest | None:
        """Wait for the parent's next frame on a slot; None at the end."""
        requests = self._requests[slot]
        while not requests:
            if not (data := await self.slots[slot].down.receive_some()):
                return None
            self._frames[slot].feed(data)
            requests += [slot_requests.decode(body) for body in self._frames[slot].frames()]
        return requests.pop(0)

    async def next_control(self, kind: type[T]) -> T:
        """The next control message, which is of this kind."""
        message = await self.control_message()
        assert isinstance(message, kind), message
        return message

    async def next_request(self, kind: type[T], slot: int = 0) -> T:
        """The next frame on a slot, which is of this kind."""
        request = await self.slot_message(slot)
        assert isinstance(request, kind), request
        return request

    def describe(self) -> None:
        self.say(
            Described(
                schema=msgspec.Raw(msgspec.json.encode(self.document)),
                inputs=self.inputs,
                kind=Kind.SYNC if self.concurrency == 1 else Kind.ASYNC,
                concurrency=self.concurrency,
                has_healthcheck=self.healthcheck,
                streaming=self.streaming,
                versions={"python": "3.11.0", "python_sdk": "0.0.0"},
                pid=1,
                train_inputs=self.train_inputs,
                no_training=self.no_training,
            )
        )

    def greet(self) -> None:
        for slot in range(self.concurrency):
            self.send(ProtocolVersion(PROTOCOL_VERSION), slot)

    def ready(self) -> None:
        self.say(Ready(tuple(map(SlotId, range(self.concurrency)))))

    async def set_up(self) -> bool:
        """From Init to Ready; False if it was given up before."""
        message = await self.control_message()
        if message is None:
            return False
        assert isinstance(message, Init), message
        self.describe()
        while len(self.slots) < self.concurrency:
            await trio.lowlevel.checkpoint()
        self.greet()
        self.ready()
        return True

    def finish(self, run: Predict, *outputs: bytes) -> None:
        """Raw outputs, and Done."""
        self._ended = run.run
        for index, output in enumerate(outputs):
            self.send(OutputChunk(msgspec.Raw(output), index), run.slot)
        self.send(Done(proof_of(run), os.path.isdir(run.output_dir)), run.slot)

    def cancelled(self, run: Predict) -> None:
        """The end of a run that was cut, unless it has ended before."""
        if run.run != self._ended:
            self.send(RunCancelled(proof_of(run), os.path.isdir(run.output_dir)), run.slot)


def proof_of(run: Predict) -> Idle:
    """What the terminal message of a run carries."""
    return Idle(run.slot, run.id, run.run)


Behaviour: TypeAlias = Callable[[FakeWorker, Predict], Awaitable[None]]


async def echo(worker: FakeWorker, run: Predict) -> None:
    """Its input is its output."""
    assert isinstance(run.input, msgspec.Raw)
    worker.finish(run, bytes(run.input))
    await trio.lowlevel.checkpoint()


async def stall(worker: FakeWorker, run: Predict) -> None:
    """Runs until it is cancelled."""
    await trio.sleep_forever()


async def deaf(worker: FakeWorker, run: Predict) -> None:
    """Runs on when cancelled."""
    with trio.CancelScope(shield=True):
        await worker.wait_exit()


async def half_frame(worker: FakeWorker, run: Predict) -> None:
    """Writes the beginning of a frame, closes the slot, and lives on."""
    worker.slots[run.slot].up.put(HALF_FRAME)
    await eof(worker, run)


async def eof(worker: FakeWorker, run: Predict) -> None:
    """Closes the slot and lives on."""
    worker.slots[run.slot].up.close()
    await trio.sleep_forever()


async def garbage(worker: FakeWorker, run: Predict) -> None:
    """Sends what is not a message."""
    worker.slots[run.slot].up.put(GARBAGE)
    await trio.sleep_forever()


async def exit_9(worker: FakeWorker, run: Predict) -> None:
    """Dies of SIGKILL."""
    worker.exit(-9)
    await trio.sleep_forever()


@asynccontextmanager
async def open_fake_worker(
    behaviour: Behaviour = echo, *, concurrency: int = 1, healthcheck: bool = False, document: Any = None
) -> AsyncIterator[FakeWorker]:
    """A worker that serves by itself; it dies with the block."""
    worker = FakeWorker(concurrency=concurrency, healthcheck=healthcheck, document=document)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, worker, behaviour)
        yield worker
        worker.exit(0)
        nursery.cancel_scope.cancel()


async def _serve(worker: FakeWorker, behaviour: Behaviour) -> None:
    runs: dict[int, trio.CancelScope] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_die, worker, nursery.cancel_scope)
        if not await worker.set_up():
            return
        for slot in range(worker.concurrency):
            nursery.start_soon(_serve_slot, worker, slot, behaviour, runs)
        while (message := await worker.control_message()) is not None:
            match message:
                case Cancel(run=run):
                    runs.setdefault(run, trio.CancelScope()).cancel()
                case Healthcheck(id=id):
                    worker.say(HealthcheckResult(id, HealthcheckStatus.HEALTHY))
                case Shutdown():
                    worker.say(ShuttingDown())
                    worker.exit(0)


async def _die(worker: FakeWorker, scope: trio.CancelScope) -> None:
    await worker.wait_exit()
    scope.cancel()


async def _serve_slot(worker: FakeWorker, slot: int, behaviour: Behaviour, runs: dict[int, trio.CancelScope]) -> None:
    while (request := await worker.slot_message(slot)) is not None:
        scope = runs.setdefault(request.run, trio.CancelScope())
        if not scope.cancel_called:  # else the Cancel was faster
            with scope:
                await behaviour(worker, request)
            if not scope.cancelled_caught:
                continue
        if not worker.slots[slot].up.closed:
            worker.cancelled(request)
