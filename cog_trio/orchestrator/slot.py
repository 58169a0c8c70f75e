"""One slot of one worker: its socket, and the task that carries one run after the other.

The task lives as long as the worker. Before it waits for the next run it enters a cancel scope, which is the
cancellation token of that run: ``start`` writes the Predict and gives the scope to the prediction, and no task is
started. When the scope is cancelled the task asks the worker to stop, and reads on, outside of the scope, until the
terminal message has come.

The terminal message carries the worker's proof that nothing of the run is left. It is acted on in one step, inside
the next run's scope: the slot is idle, the reply goes out, the books are kept.

What breaks the protocol, closes the socket, or is a fault of our own costs this slot and its run, nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
import trio

from cog_trio.bridge.channel import Channel, ChannelBroken
from cog_trio.bridge.codec import ProtocolBroken, TruncatedFrame, slot_responses
from cog_trio.bridge.protocol import (
    Cancel,
    Predict,
    ProtocolVersion,
    SlotId,
    SlotRequest,
    SlotResponse,
)
from cog_trio.orchestrator import deadlines
from cog_trio.orchestrator.permits import NEXT, PermitMisused, SlotFact, SlotState
from cog_trio.orchestrator.run import Run, lost
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.status import Blame

DIRECT_SEND: Final = 32 * 2**10  # bytes of a frame that surely fit the buffer of an idle slot


class SlotWorker(Protocol):
    """The worker of a slot, as the slot sees it; ``Orchestrator`` says what each method does."""

    cause: str | None
    deadlines: deadlines.Deadlines
    predict_timeout: float | None  # seconds
    cancel_grace: float | None  # seconds

    def next_run(self) -> int: ...
    def restore(self, slot: Slot) -> None: ...
    def count_stopping(self, change: int) -> None: ...
    def slot_greeted(self, version: int) -> None: ...
    def break_slot(self, slot: Slot, reason: str, blame: Blame = Blame.WORKER) -> None: ...
    def send_control(self, message: Cancel) -> None: ...
    def start_soon(self, function: Callable[..., Awaitable[object]], *args: Any) -> None: ...
    async def wait_ended(self) -> None: ...


class Slot:
    """One slot; made by its worker's orchestrator only."""

    def __init__(self, worker: SlotWorker, number: SlotId, stream: trio.abc.Stream) -> None:
        self.number = number
        self.stream = stream
        self.state = SlotState.TAKEN  # by the worker's setup, which releases it
        self.reason = ""  # why it is poisoned
        self.run: Run | None = None  # open on it; with its outcome, while its files are read
        self._is_stopping = False  # its run was cancelled and has not ended
        self.greeted = False  # it has sent its ProtocolVersion
        self._worker = worker
        self._channel: Channel[SlotRequest, SlotResponse] = Channel(stream, slot_responses)
        self._scope = trio.CancelScope()  # of the run that is open, or of the next one

    def __repr__(self) -> str:
        return f"<Slot {self.number} {self.state.value}>"

    @property
    def worker(self) -> SlotWorker:
        return self._worker

    def _step(self, fact: SlotFact) -> None:
        try:
            self.state = NEXT[self.state][fact]
        except KeyError:
            raise PermitMisused(f"slot {self.number}, which is {self.state.value}, can't be {fact.value}") from None

    # Held by the service.

    def release(self) -> None:
        """Give back a slot on which nothing was started. One that was lost meanwhile stays lost.

        Raises:
          PermitMisused: if a run was started on it, or it was given back before.
        """
        if self.state is not SlotState.POISONED:
            self._step(SlotFact.RELEASED)
            self._worker.restore(self)

    def start(self, run: Run) -> None:
        """Send a run's Predict; from its first byte on only the worker's proof frees the slot.

        Raises:
          FrameTooLarge: nothing was sent, and the slot is still held.
          PermitMisused: if the slot is not held.
        """
        worker, prediction = self._worker, run.prediction
        number = worker.next_run()
        frame = self._channel.encode(
            Predict(
                self.number,
                prediction.id,
                number,
                run.folder,
                msgspec.Raw(run.input) if run.input_file is None else msgspec.UNSET,
                run.input_file or msgspec.UNSET,
                run.context if run.input_file is None else {},
                prediction.mode,
            )
        )
        self._step(SlotFact.DISPATCHED)
        run.number, run.slot, self.run = number, self, run
        if worker.predict_timeout is not None:
            self._scope.deadline = trio.current_time() + worker.predict_timeout
        prediction.dispatched()
        prediction.enter(self._scope)
        run.owner.begun(run)
        try:
            if len(frame) > DIRECT_SEND or not self._channel.write_nowait(frame):
                worker.start_soon(self._write, frame)  # it may wait for the worker to read
        except ChannelBroken:
            worker.start_soon(self._close)

    async def _write(self, frame: bytearray) -> None:
        try:
            await self._channel.write(frame)
        except ChannelBroken:
            await self._close()

    def settle(self, run: Run, fact: SlotFact) -> None:
        """The run has left the slot."""
        self._has_stopped()
        if self.run is run:
            self.run = None
        if self.state is not SlotState.POISONED:
            self._step(fact)
            self._worker.restore(self)

    def _has_stopped(self) -> None:
        if self._is_stopping:
            self._is_stopping = False
            self._worker.count_stopping(-1)

    # Its task.

    async def serve(self) -> None:
        """Read the socket for the worker's life."""
        with contain(Where.SLOT, self._fail):
            try:
                await self._carry_runs()
            except (TruncatedFrame, ChannelBroken):
                await self._close()
            except ProtocolBroken as fault:
                self._worker.break_slot(self, deadlines.BROKE_PROTOCOL.format(fault))

    def _fail(self, text: str) -> None:
        self._worker.break_slot(self, text, Blame.SERVICE)

    async def _carry_runs(self) -> None:
        over: Run | None = None
        while True:
            with trio.CancelScope() as self._scope:
                if over is not None:
                    self._end(over)
                    over = None
                over = await self._read_to_end()
            if over is None:  # the run was cancelled, or its time is over
                self._ask_to_stop()
                over = await self._read_to_end()

    async def _read_to_end(self) -> Run:
        """Apply what comes, until the terminal message of a run.

        Raises:
          ChannelBroken: at the end of the socket, too.
          ProtocolBroken, TruncatedFrame: as ``Channel.receive``.

        Cancellation: nothing is lost.
        """
        while True:
            messages = await self._channel.receive()
            if not messages:
                raise ChannelBroken("the worker closed it")
            self.apply(messages)
            run = self.run
            if run is not None:
                if run.outcome is not None:
                    return run
                if run.prediction.event_log.is_full:
                    await run.prediction.event_log.wait_room()

    def apply(self, messages: list[SlotResponse]) -> None:
        """Apply what one read brought, in one go.

        Raises:
          ProtocolBroken: if a message has no place here.
        """
        run = self.run
        for message in messages:
            if run is not None:
                run.apply(message)
            elif type(message) is ProtocolVersion and not self.greeted:
                self.greeted = True
                self._worker.slot_greeted(message.version)
            else:
                raise ProtocolBroken(f"{type(message).__name__} on slot {self.number}, where no run is open")

    def _end(self, run: Run) -> None:
        """A run is over: what must be free for the next one is free from here on."""
        if run.number in self._worker.deadlines:
            self._worker.deadlines.lift(run.number)
        run.close()

    def _ask_to_stop(self) -> None:
        """A cancellation has come, or else the time limit has passed."""
        run, worker = self.run, self._worker
        if run is None:
            return  # the slot was lost in the same step
        overran = not run.prediction.cancel_requested
        if overran:
            assert worker.predict_timeout is not None
            run.overrun = lost(deadlines.TIMED_OUT.format(worker.predict_timeout), Blame.LIMIT)
        run.prediction.event_log.release()
        self._is_stopping = True
        worker.count_stopping(1)
        worker.send_control(Cancel(self.number, run.prediction.id, run.number))
        if worker.cancel_grace is not None:
            cause = deadlines.OVERRAN if overran else deadlines.DID_NOT_STOP
            worker.deadlines.set(run.number, worker.cancel_grace, cause.format(worker.cancel_grace))

    # Its end.

    async def _close(self) -> None:
        """Its socket has ended: lose it, unless the worker's death comes first and says why."""
        await trio.sleep(deadlines.EOF_GRACE)
        self._worker.break_slot(self, deadlines.CLOSED_SLOT.format(self.number))

    def poison(self, reason: str) -> None:
        """It is lost. The first reason stands; ``lose_run`` fails what is open on it."""
        self._step(SlotFact.LOST)
        self._has_stopped()
        self.reason = reason

    def lose_run(self, cause: str, blame: Blame = Blame.WORKER) -> None:
        """Fail the run that is open on it; one that has ended stays as it ended."""
        self._has_stopped()
        run, self.run = self.run, None
        if run is not None:
            run.lose(lost(cause, blame))

    def apply_leftover(self, data: bytes) -> None:
        """Apply what a dead worker had written.

        Raises:
          ProtocolBroken: as ``apply``; what came before the fault is applied.
        """
        self.apply(self._channel.feed(data))
        run = self.run
        if run is not None and run.outcome is not None:
            self._end(run)
