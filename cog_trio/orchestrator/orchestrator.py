"""One worker process: set up, listened to, watched, buried. Its slots (``slot.py``) carry the predictions.

``open_orchestrator`` yields once the worker is Ready (for ``Init.describe``: described). One task holds the readers
behind a shield that goes up then, so that they outlive the body that uses the worker and hear its goodbye. The task's
own wait is for the worker's exit, under one deadline: the earliest of all limits (setup, a channel that closed, an end
that was decided, the cancel grace). Every way out of that wait leads to ``_bury``, the only place where a worker ends:
its group is killed, what it left in sockets and pipes is applied, it is reaped, and the runs still open are failed with
the cause.

What breaks the rules on one slot costs that slot; on the control channel, the worker. One task writes the control
channel, unless a message can be written at once, so that asking a run to stop is synchronous.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from cog_trio.bridge.channel import Channel, ChannelBroken
from cog_trio.bridge.codec import ProtocolBroken, TruncatedFrame
from cog_trio.bridge.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    ControlRequest,
    ControlResponse,
    Described,
    DroppedLogs,
    Failed,
    Fatal,
    HealthcheckResult,
    HealthcheckStatus,
    Init,
    Log,
    LogSource,
    Ready,
    Shutdown,
    ShuttingDown,
    SlotId,
    WorkerLog,
)
from cog_trio.orchestrator import deadlines
from cog_trio.orchestrator.control_channel import ControlDecoder, Event, WorkerGone
from cog_trio.orchestrator.health_checks import HealthChecks
from cog_trio.orchestrator.permits import PermitPoisoned, PermitPool, SlotState
from cog_trio.orchestrator.process import WorkerLink, adopt
from cog_trio.orchestrator.slot import Slot
from cog_trio.orchestrator.spawn import WorkerProcess
from cog_trio.orchestrator.worker_life import PROCESS, TAKES_MESSAGES, Life, ProcessFact, ProcessState
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.status import Blame

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

if TYPE_CHECKING:
    from cog_trio.config.settings import Settings

log: Final = logging.getLogger("cog_trio.orchestrator")

FAREWELL: Final = (2.0, 10.0)  # seconds, least and most, for the worker's own exit, its atexit handlers included
BURY_LIMIT: Final = 5.0  # seconds from SIGKILL to the exit; longer means that it hangs in the kernel
MAX_SLOTS: Final = 10_000
MAX_OUTBOX: Final = 2 * MAX_SLOTS + 16  # control messages: at most one Cancel a run, and a handful of others


class NeverReady(Exception):
    """The worker did not become Ready. The text is the cause; what it printed has gone to ``on_event``."""


async def _nothing(_: Described) -> None:
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_orchestrator(
    worker: WorkerProcess | WorkerLink,
    init: Init,
    settings: Settings,
    *,
    on_event: Callable[[Event], None],
    pool: PermitPool[Slot] | None = None,
    number: int = 0,
    life: Life[ProcessState, ProcessFact] | None = None,
    prepare: Callable[[Described], Awaitable[None]] = _nothing,
) -> AsyncIterator[Orchestrator]:
    """Adopt a worker, set it up, and yield once it is Ready; leaving the block shuts it down.

    A worker that does not leave is killed after the drain grace, or after 2 s or 10 s where that is less or more.

    Args:
      on_event: called synchronously, in the order of the worker's messages.
      pool: where its idle slots go, once it is Ready.
      number: of the worker among those of the pool.
      life: where the caller can see how far it is.
      prepare: what the caller has to do once the model is described; the worker is Ready when that is done, too.

    Raises:
      NeverReady: if it does not become Ready; it is dead and reaped then.

    Cancellation: a worker in setup is killed. Errors of the body leave in a group.
    """
    with ExitStack() as process:
        if isinstance(worker, WorkerProcess):
            process.enter_context(worker)
        orchestrator = Orchestrator(
            adopt(worker), init, settings, on_event, pool or PermitPool[Slot](), number, life or Life(PROCESS), prepare
        )
        async with trio.open_nursery() as nursery:
            usable: bool = await nursery.start(orchestrator.run)
            if usable:
                try:
                    yield orchestrator
                finally:
                    least, most = FAREWELL
                    farewell = min(max(settings.drain_grace, least), most)
                    with trio.move_on_after(farewell, shield=True) as grace:
                        await orchestrator.shutdown()
                    if grace.cancelled_caught:
                        log.warning("the worker ignored its shutdown for %g s and is killed", farewell)
                    orchestrator.pumps.cancel()
    if not usable:
        raise NeverReady(orchestrator.cause)


class Orchestrator:
    """One worker; made by ``open_orchestrator`` only."""

    described: Described

    def __init__(
        self,
        link: WorkerLink,
        init: Init,
        settings: Settings,
        on_event: Callable[[Event], None],
        pool: PermitPool[Slot],
        number: int,
        life: Life[ProcessState, ProcessFact],
        prepare: Callable[[Described], Awaitable[None]],
    ) -> None:
        self.life = life
        self.cause: str | None = None  # why it has ended, or is about to; None while it serves
        self.asked = False  # its end was asked for
        self.pumps = trio.CancelScope()
        self.deadlines = deadlines.Deadlines()  # the first to pass kills the worker
        self.predict_timeout = settings.predict_timeout
        self.cancel_grace = settings.cancel_grace
        self.slots: list[Slot] = []
        self.capacity = 0  # slots that are not poisoned, from Ready on
        self._ended = trio.Event()
        self._checks = HealthChecks(self.send_control)
        self._pool = pool
        self._number = number
        self._idle: list[Slot] = []  # its shelf in the pool
        self._last_run = 0
        self._nursery: trio.Nursery
        self._link = link
        self._init = init
        self._setup_timeout = settings.setup_timeout
        self._on_event = on_event
        self._prepare = prepare
        self._prepared = False
        self._ready: Ready | None = None
        self._control: Channel[ControlRequest, ControlResponse] = Channel(
            link.control, ControlDecoder(), lines=True, write_to=link.control_descriptor
        )
        self._outbox, self._to_send = trio.open_memory_channel[ControlRequest](MAX_OUTBOX)
        self._unsent = 0  # messages in the outbox, or being sent

    async def run(self, *, task_status: trio.TaskStatus[bool]) -> None:
        """Live with the worker from here to its grave; ``started`` says whether it became usable.

        Cancellation: the worker is killed, buried, and its runs are failed. Once it is usable only ``pumps`` cancels.
        """
        self._task_status = task_status
        with self.pumps:
            try:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._write_control)
                    self._nursery.start_soon(self._read_control)
                    self._nursery.start_soon(self._link.relieve, self._apply_captured)
                    self._open_slot(self._link.slot0)
                    if (timeout := self._setup_timeout) is not None:
                        cause = deadlines.SETUP_TIMED_OUT.format(timeout)
                        self.deadlines.set("setup", timeout - self._link.age, cause)
                    self.send_control(self._init)
                    await self._watch()
                    self._nursery.cancel_scope.cancel()
            finally:
                self._stop_sending()
                await self._bury()
        if not self._is_usable:
            task_status.started(False)

    @property
    def _is_usable(self) -> bool:
        return self.pumps.shield

    @property
    def available(self) -> int:
        """Slots that are idle."""
        return len(self._idle)

    @property
    def poisoned(self) -> tuple[PermitPoisoned, ...]:
        """The slots that are lost, and why."""
        return tuple(
            PermitPoisoned(slot.number, slot.reason) for slot in self.slots if slot.state is SlotState.POISONED
        )

    # Its end.

    async def _watch(self) -> None:
        """Wait for the exit, or until a limit has passed."""
        with self.deadlines.scope as patience:
            await self._link.wait_exit()
        self._stop_sending()
        if patience.cancelled_caught:
            self.end(self.deadlines.first[1])

    def _stop_sending(self) -> None:
        """From here on nothing is sent, and no run starts."""
        self._pool.withdraw(self._idle)
        self.life.step(ProcessFact.ENDING)

    def end(self, cause: str, grace: float = 0.0) -> None:
        """The worker ends, by itself within the grace or killed, for this cause; the first one stands."""
        if self.cause is None:
            self.cause = cause
            self._pool.withdraw(self._idle)
            self.deadlines.set("end", grace, cause)
            if self._is_usable and not self.asked:
                log.error("%s", cause)
                self._on_event(WorkerGone(cause))

    async def _bury(self) -> None:
        self._link.kill()
        with trio.move_on_after(BURY_LIMIT, shield=True) as limit:
            await self._link.wait_exit()
            await self._apply_leftovers()
        if limit.cancelled_caught:
            log.error("the worker was killed and has not ended within %g s", BURY_LIMIT)
            self._link.abandon()
            how = deadlines.UNKILLABLE
        else:
            how = deadlines.DIED.format(self._link.reap())
        self.end(deadlines.SHUT_DOWN if self.asked else how)
        assert self.cause is not None
        self.life.step(ProcessFact.REAPED)
        for slot in self.slots:
            slot.lose_run(self.cause)
        self._checks.lose(self.cause)
        self._ended.set()

    async def _apply_leftovers(self) -> None:
        """What a dead worker has written counts: it did so before it died."""
        for slot in self.slots:
            data = await self._link.leftover(slot.stream)
            with contain(Where.SLOT):
                try:
                    slot.apply_leftover(data)
                except ProtocolBroken as fault:
                    log.warning("slot %d of a dead worker: %s", slot.number, fault)
        data = await self._link.leftover(self._link.control)
        try:
            for message in self._control.feed(data):
                self._hear(message)
        except ProtocolBroken as fault:
            log.warning("control channel of a dead worker: %s", fault)
        for source, text in self._link.captured():
            self._apply_captured(source, text)

    def _apply_captured(self, source: LogSource, text: str) -> None:
        """To the one run that it can only belong to, else to nobody's log."""
        runs = [slot.run for slot in self.slots if slot.run is not None and slot.run.outcome is None]
        if len(self.slots) == 1 and runs:
            runs[0].prediction.append_log(text, source)
        else:
            self._on_event(Log(source, text))

    async def wait_ended(self) -> None:
        """Wait until the worker has ended, was reaped, and all its runs have ended; ``cause`` says why."""
        await self._ended.wait()

    async def shutdown(self) -> None:
        """Ask the worker to leave, and wait until it has; the wait has no limit of its own. Repeatable."""
        if not self.asked:
            self.asked = True
            self.send_control(Shutdown())
        await self._ended.wait()

    def kill(self) -> None:
        """End the worker at once, as asked for; runs in flight fail. Synchronous, repeatable."""
        self.asked = True
        self.end(deadlines.SHUT_DOWN)

    # The control channel.

    def send_control(self, message: ControlRequest) -> None:
        """Send a message to the worker, in order, at once where the pipe takes it; to a dying one, not at all."""
        if self.life.state not in TAKES_MESSAGES:
            return
        try:
            if not self._unsent and self._control.write_nowait(self._control.encode(message)):
                return
        except ChannelBroken:
            self._close_control()
            return
        self._unsent += 1
        self._outbox.send_nowait(message)

    async def _write_control(self) -> None:
        try:
            async for message in self._to_send:
                await self._control.write(self._control.encode(message))
                self._unsent -= 1
        except ChannelBroken:
            self._close_control()

    async def _read_control(self) -> None:
        try:
            while messages := await self._control.receive():
                for message in messages:
                    self._hear(message)
            self._close_control()
        except (TruncatedFrame, ChannelBroken):
            self._close_control()
        except ProtocolBroken as fault:
            self.end(deadlines.BROKE_PROTOCOL.format(fault))

    def _close_control(self) -> None:
        self.deadlines.set("control", deadlines.EOF_GRACE, deadlines.CLOSED_CONTROL)

    def _hear(self, message: ControlResponse) -> None:
        """Act on one control message.

        Raises:
          ProtocolBroken: if it has no place here.
        """
        match message:
            case Log() | WorkerLog() | DroppedLogs():
                self._on_event(message)
            case HealthcheckResult():
                self._checks.answer(message)
            case Described():
                self._hear_described(message)
            case Ready():
                if not hasattr(self, "described") or self._ready is not None:
                    raise ProtocolBroken("Ready out of turn")
                self._ready = message
                self._check_ready()
            case Failed():
                self._hear_failed(message)
            case Fatal():
                self.end(deadlines.FAILED.format(message.reason), deadlines.EOF_GRACE)
            case ShuttingDown():
                if not self.asked:
                    self.end(deadlines.LEFT, deadlines.EOF_GRACE)
            case _:
                assert_never(message)

    def _hear_described(self, message: Described) -> None:
        if hasattr(self, "described") or not 1 <= message.concurrency <= MAX_SLOTS:
            raise ProtocolBroken("Described twice, or without slots")
        self.described = message
        self._on_event(message)
        lives = self.life.state is ProcessState.SPAWNED
        if lives:
            self.life.step(ProcessFact.DESCRIBED)
        if self._init.describe:  # it ends by itself now, or has ended before this was read
            self.asked = True
            self._start()
        elif lives:
            self._nursery.start_soon(self._prepare_for, message)
            if message.concurrency > 1:
                self._nursery.start_soon(self._open_more_slots, message.concurrency - 1)

    async def _prepare_for(self, described: Described) -> None:
        await self._prepare(described)
        self._prepared = True
        try:
            self._check_ready()
        except ProtocolBroken as fault:
            self.end(deadlines.BROKE_PROTOCOL.format(fault))

    def _hear_failed(self, message: Failed) -> None:
        if not self._is_usable:
            self.end(message.error, deadlines.EOF_GRACE)
            return
        if message.slot is None or not 0 <= message.slot < len(self.slots):
            raise ProtocolBroken("Failed names no slot")
        slot = self.slots[message.slot]
        if message.id is not None and slot.state is not SlotState.POISONED:
            if slot.run is None:
                raise ProtocolBroken(f"Failed for slot {message.slot}, where no run is open")
            slot.run.check_name(message)
        self.break_slot(slot, message.error)

    # The slots.

    async def _open_more_slots(self, count: int) -> None:
        try:
            streams = await self._link.more_slots(count)
        except (OSError, trio.BrokenResourceError) as error:
            self.end(deadlines.NO_SOCKETS.format(error), deadlines.EOF_GRACE)
            return
        for stream in streams:
            self._open_slot(stream)

    def _open_slot(self, stream: trio.abc.Stream) -> None:
        slot = Slot(self, SlotId(len(self.slots)), stream)
        self.slots.append(slot)
        self._nursery.start_soon(slot.serve)

    def slot_greeted(self, version: int) -> None:
        """A slot has said which version of the protocol the worker speaks."""
        if version != PROTOCOL_VERSION:
            self.end(deadlines.OTHER_VERSION.format(version, PROTOCOL_VERSION))
        self._check_ready()

    def _check_ready(self) -> None:
        if self._ready is None or not self._prepared:
            return
        if sum(slot.greeted for slot in self.slots) < self.described.concurrency:
            return
        if self.life.state is not ProcessState.DESCRIBED or self.cause is not None:
            return  # too late
        if self._ready.slots != tuple(range(self.described.concurrency)):
            raise ProtocolBroken(f"Ready names the slots {self._ready.slots}")
        if self._start():
            self.life.step(ProcessFact.READY)
            self.capacity = len(self.slots)
            for slot in reversed(self.slots):  # slot 0 is the first to be taken
                slot.release()
            self._on_event(self._ready)
            self._pool.add(self._idle, self._number)

    def _start(self) -> bool:
        """It is usable, unless the one who waits for it was cancelled: no shield may go up then.

        Of a worker that has ended already, the cancellation of its own readers is not that.
        """
        if self.life.state in TAKES_MESSAGES and trio.current_effective_deadline() == -math.inf:
            return False
        self.deadlines.lift("setup")
        self.pumps.shield = True
        self._task_status.started(True)
        return True

    def next_run(self) -> int:
        """A number for the next run: they increase."""
        self._last_run += 1
        return self._last_run

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start a task that ends with the worker; for a dying one, none."""
        if self.life.state is ProcessState.READY:
            self._nursery.start_soon(function, *args)

    def restore(self, slot: Slot) -> None:
        """A slot is idle again."""
        self._pool.restore(self._idle, slot)

    def count_stopping(self, change: int) -> None:
        """So many more slots stop a cancelled run."""
        self._pool.stopping += change

    def withdraw(self) -> None:
        """Take no more runs; those that are open may end. Repeatable."""
        self._pool.withdraw(self._idle)

    def break_slot(self, slot: Slot, reason: str, blame: Blame = Blame.WORKER) -> None:
        """Lose a slot: its run fails, the others go on; with the last slot the worker ends. Repeatable."""
        if not self._is_usable:
            self.end(reason)
            return
        if slot.state is SlotState.POISONED:
            return
        log.error("slot %d is lost: %s", slot.number, reason)
        if slot in self._idle:
            self._idle.remove(slot)
        slot.poison(reason)
        self.capacity -= 1
        if self.capacity == 0:
            self.end(deadlines.UNUSABLE.format(reason))
        if (run := slot.run) is not None and run.outcome is None:
            self.send_control(Cancel(slot.number, run.prediction.id, run.number))  # nobody wants the rest of it
        slot.lose_run(reason, blame)

    async def healthcheck(self) -> HealthcheckResult:
        """The user's health check, 10 s at most; all who ask meanwhile share one answer.

        Raises:
          WorkerLost: if the worker has ended, or ends first.

        Cancellation: the check goes on, for the others.
        """
        if self.described.has_healthcheck:
            return await self._checks.ask()
        await trio.lowlevel.checkpoint()  # there is nothing to ask the worker for
        return HealthcheckResult("", HealthcheckStatus.HEALTHY)
