"""The life of one worker: set up, listened to, watched, buried. ``orchestrator.py`` runs predictions on it.

One task holds the readers behind a shield that goes up when the worker is usable, so that they outlive the body that
uses it and hear its goodbye. The task's own wait is for the worker's exit, under one deadline:
the earliest of all limits (setup, a channel that closed, an end that was decided, the cancel grace). Every way out of
that wait leads to ``_bury``, the only place where a worker ends: its group is killed, what it left in sockets and
pipes is applied, it is reaped, and the runs still open are failed with the cause.

Frames of a slot go to the run that is open there (``run.py``). What breaks the rules on one slot costs that slot;
on the control channel, the worker. One task writes the control channel, so that asking a run to stop is synchronous
and no cancelled sender leaves half a message.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from cog_trio.bridge.channel import Channel, ChannelBroken
from cog_trio.bridge.codec import ProtocolBroken, TruncatedFrame, slot_responses
from cog_trio.bridge.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Cancelled,
    ControlRequest,
    ControlResponse,
    Described,
    DroppedLogs,
    Failed,
    Fatal,
    HealthcheckResult,
    Idle,
    Init,
    Log,
    LogSource,
    ProtocolVersion,
    Ready,
    ShuttingDown,
    SlotId,
    SlotRequest,
    SlotResponse,
    WorkerLog,
)
from cog_trio.orchestrator import deadlines
from cog_trio.orchestrator.control_channel import ControlDecoder, Event, TextLost
from cog_trio.orchestrator.health_checks import HealthChecks
from cog_trio.orchestrator.permits import PermitPool, SlotIdle
from cog_trio.orchestrator.process import WorkerLink
from cog_trio.orchestrator.run import CUT, Run, lost

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

if TYPE_CHECKING:
    from cog_trio.config.settings import Settings

log: Final = logging.getLogger("cog_trio.orchestrator")

EOF_GRACE: Final = 1.0  # seconds between a channel's end and the kill: the dying close first, then their exit is seen
IDLE_LIMIT: Final = 5.0  # seconds from the terminal frame, or FilesTaken, to Idle (D22)
BURY_LIMIT: Final = 5.0  # seconds from SIGKILL to the exit; longer means that it hangs in the kernel
MAX_SLOTS: Final = 10_000
MAX_OUTBOX: Final = 2 * MAX_SLOTS + 16  # control messages: at most one Cancel a run, and a handful of others


class Supervisor:
    """One worker; made by ``open_orchestrator`` only."""

    described: Described

    def __init__(self, link: WorkerLink, init: Init, settings: Settings, on_event: Callable[[Event], None]) -> None:
        self.pool = PermitPool()  # filled when the worker is Ready
        self.pumps = trio.CancelScope()
        self.cause: str | None = None  # why it ended, or is about to
        self.dying = False  # nothing is sent and no task is started any more
        self.asked = False  # its end was asked for
        self.ended = trio.Event()
        self.flights: dict[SlotId, Run] = {}
        self.checks = HealthChecks(self.send_control)
        self.limits = deadlines.Deadlines()  # the first to pass kills the worker
        self.slots: list[Channel[SlotRequest, SlotResponse]] = []
        self.nursery: trio.Nursery
        self._link = link
        self._init = init
        self._setup_timeout = settings.setup_timeout
        self._on_event = on_event
        self._control: Channel[ControlRequest, ControlResponse] = Channel(link.control, ControlDecoder(), lines=True)
        self._outbox, self._to_send = trio.open_memory_channel[ControlRequest](MAX_OUTBOX)
        self._streams: list[trio.abc.Stream] = []
        self._due: dict[SlotId, trio.CancelScope] = {}  # of each slot's reader: when Idle is overdue
        self._greeted: set[SlotId] = set()  # slots that have sent their ProtocolVersion
        self._ready: Ready | None = None
        self._usable = False
        self._said_lost = False

    async def supervise(self, *, task_status: trio.TaskStatus[bool]) -> None:
        """Live with the worker from here to its grave; ``started`` tells whether it became usable.

        Cancellation: the worker is killed, buried, and its runs are failed. Once it is usable only ``pumps`` cancels.
        """
        self._task_status = task_status
        with self.pumps:
            try:
                async with trio.open_nursery() as self.nursery:
                    self.nursery.start_soon(self._write_control)
                    self.nursery.start_soon(self._read_control)
                    self._open_slot(self._link.slot0)
                    if (timeout := self._setup_timeout) is not None:
                        self.limits.set("setup", timeout - self._link.age, deadlines.SETUP_TIMED_OUT.format(timeout))
                    self.send_control(self._init)
                    await self._watch()
                    self.nursery.cancel_scope.cancel()
            finally:
                self.dying = True
                await self._bury()
        if not self._usable:
            task_status.started(False)

    # Its end.

    async def _watch(self) -> None:
        """Wait for the exit, or until a limit has passed."""
        with self.limits.scope as patience:
            await self._link.wait_exit()
        self.dying = True
        if patience.cancelled_caught:
            self.end(self.limits.first[1])

    def end(self, cause: str, grace: float = 0.0) -> None:
        """The worker ends, by itself within the grace or killed, for this cause; the first one stands."""
        if self.cause is None:
            self.cause = cause
            self.limits.set("end", grace, cause)
            self._say_lost(cause)

    def _say_lost(self, cause: str) -> None:
        if self._usable and not self.asked and not self._said_lost:
            self._said_lost = True
            log.error("%s", cause)
            self._on_event(TextLost(cause))

    async def _bury(self) -> None:
        self._link.kill()
        with trio.move_on_after(BURY_LIMIT, shield=True) as limit:
            await self._link.wait_exit()
            await self._take_leftovers()
        if limit.cancelled_caught:
            log.error("the worker was killed and has not ended within %g s", BURY_LIMIT)
            how = deadlines.UNKILLABLE
        else:
            how = deadlines.DIED.format(self._link.reap())
        self.end(deadlines.SHUT_DOWN if self.asked else how)
        assert self.cause is not None
        flights, self.flights = self.flights, {}
        for flight in flights.values():
            flight.end(lost(self.cause))
            flight.settle(None)
        self.checks.lose(self.cause)
        self.ended.set()

    async def _take_leftovers(self) -> None:
        """What a dead worker has written counts: it did so before it died (W3)."""
        for number, channel in enumerate(self.slots):
            data = await self._link.leftover(self._streams[number])
            try:
                self._take(SlotId(number), channel.feed(data))
            except ProtocolBroken as fault:
                log.warning("slot %d of a dead worker: %s", number, fault)
        data = await self._link.leftover(self._link.control)
        try:
            for message in self._control.feed(data):
                self._hear(message)
        except ProtocolBroken as fault:
            log.warning("control channel of a dead worker: %s", fault)
        for source, text in self._link.captured():
            self._take_captured(source, text)

    def _take_captured(self, source: LogSource, text: str) -> None:
        """To the one run that it can only belong to, else to nobody's log (D24)."""
        runs = [flight for flight in self.flights.values() if flight.outcome is None]
        if len(self.slots) == 1 and runs:
            runs[0].prediction.append_log(text, source)
        else:
            self._on_event(Log(source, text))

    # The control channel.

    def send_control(self, message: ControlRequest) -> None:
        """Send a message to the worker, soon and in order; to a dying one, not at all."""
        if not self.dying:
            self._outbox.send_nowait(message)

    async def _write_control(self) -> None:
        try:
            async for message in self._to_send:
                await self._control.send(message)
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
        self.limits.set("control", EOF_GRACE, deadlines.CLOSED_CONTROL)

    def _hear(self, message: ControlResponse) -> None:
        """Act on one control message.

        Raises:
          ProtocolBroken: if it has no place here.
        """
        match message:
            case Idle():
                if (flight := self._named(message)) is not None:
                    flight.settle(SlotIdle(message.slot, message.id, message.run))
                    self._due[message.slot].deadline = math.inf
            case Cancelled():
                if (flight := self._named(message)) is not None:
                    if flight.outcome is not None:
                        raise ProtocolBroken(f"Cancelled after the end of run {message.run}")
                    flight.end(CUT)
                    self.expect_idle(message.slot)
            case Log() | WorkerLog() | DroppedLogs():
                self._on_event(message)
            case HealthcheckResult():
                self.checks.answer(message)
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
                self.end(deadlines.FAILED.format(message.reason), EOF_GRACE)
            case ShuttingDown():
                if not self.asked:
                    self.end(deadlines.LEFT, EOF_GRACE)
            case _:
                assert_never(message)

    def _named(self, message: Idle | Cancelled | Failed) -> Run | None:
        """The open run that a message names; None on a slot that is given up already."""
        slot = message.slot
        if slot is None or not 0 <= slot < len(self.slots):
            raise ProtocolBroken(f"{type(message).__name__} names no slot")
        if self.pool.is_poisoned(slot):
            return None
        flight = self.flights.get(slot)
        if flight is None:
            raise ProtocolBroken(f"{type(message).__name__} for slot {slot}, where no run is open")
        flight.check_name(message)
        return flight

    def _hear_described(self, message: Described) -> None:
        if hasattr(self, "described") or not 1 <= message.concurrency <= MAX_SLOTS:
            raise ProtocolBroken("Described twice, or without slots")
        self.described = message
        self._on_event(message)
        if self._init.describe:
            self.asked = True  # it ends by itself now
            self._start()
        elif message.concurrency > 1:
            self.nursery.start_soon(self._open_more_slots, message.concurrency - 1)

    def _hear_failed(self, message: Failed) -> None:
        if not self._usable:
            self.end(message.error, EOF_GRACE)
        elif message.slot is not None and message.id is None and 0 <= message.slot < len(self.slots):
            self.break_slot(message.slot, message.error)  # while it is idle
        elif (flight := self._named(message)) is not None:
            self.break_slot(flight.slot, message.error)

    # The slots.

    async def _open_more_slots(self, count: int) -> None:
        try:
            streams = await self._link.more_slots(count)
        except (OSError, trio.BrokenResourceError) as error:
            self.end(deadlines.NO_SOCKETS.format(error), EOF_GRACE)
            return
        for stream in streams:
            self._open_slot(stream)

    def _open_slot(self, stream: trio.abc.Stream) -> None:
        slot = SlotId(len(self.slots))
        self._streams.append(stream)
        self.slots.append(Channel(stream, slot_responses))
        self.nursery.start_soon(self._read_slot, slot)

    async def _read_slot(self, slot: SlotId) -> None:
        overdue = True
        while overdue:
            with trio.CancelScope() as self._due[slot]:
                await self._read_frames(slot)
            overdue = self._due[slot].cancelled_caught
            flight = self.flights.get(slot)
            if overdue and flight is not None and flight.outcome is not None and flight.proof is None:
                self.break_slot(slot, deadlines.NOT_IDLE.format(slot, IDLE_LIMIT))
                return

    async def _read_frames(self, slot: SlotId) -> None:
        channel = self.slots[slot]
        try:
            while frames := await channel.receive():
                self._take(slot, frames)
                flight = self.flights.get(slot)
                if flight is not None and flight.outcome is None:
                    await flight.prediction.event_log.wait_room()
        except (TruncatedFrame, ChannelBroken):
            pass  # ended as by EOF
        except ProtocolBroken as fault:
            self.break_slot(slot, deadlines.BROKE_PROTOCOL.format(fault))
            return
        await self.close_slot(slot)

    def expect_idle(self, slot: SlotId) -> None:
        """Nothing but Idle is due on this slot, from now on: it has its time, and then the slot is lost (D22)."""
        self._due[slot].deadline = trio.current_time() + IDLE_LIMIT

    def _take(self, slot: SlotId, frames: list[SlotResponse]) -> None:
        """Apply what one read brought, in one go."""
        flight = self.flights.get(slot)
        for frame in frames:
            if isinstance(frame, Idle) and frame.slot == slot:
                self._hear(frame)
            elif flight is not None and not isinstance(frame, Idle):
                flight.apply(frame)
            elif type(frame) is ProtocolVersion and slot not in self._greeted:
                self._greet(slot, frame)
            else:
                raise ProtocolBroken(f"{type(frame).__name__} on slot {slot}, where no run is open")
        if flight is not None and flight.awaits_idle:
            self.expect_idle(slot)

    def _greet(self, slot: SlotId, frame: ProtocolVersion) -> None:
        if frame.version != PROTOCOL_VERSION:
            self.end(deadlines.OTHER_VERSION.format(frame.version, PROTOCOL_VERSION))
        self._greeted.add(slot)
        self._check_ready()

    def _check_ready(self) -> None:
        if self._ready is None or len(self._greeted) < self.described.concurrency:
            return
        if self.dying or self.cause is not None:
            return  # too late
        if self._ready.slots != tuple(range(self.described.concurrency)):
            raise ProtocolBroken(f"Ready names the slots {self._ready.slots}")
        self.pool = PermitPool(self._ready.slots)
        if self._start():
            self._on_event(self._ready)

    def _start(self) -> bool:
        """It is usable, unless the one who waits for it was cancelled: no shield may go up then."""
        if not self.dying and trio.current_effective_deadline() == -math.inf:
            return False
        self.limits.lift("setup")
        self._usable = True
        self._task_status.started(True)
        self.pumps.shield = True
        return True

    async def close_slot(self, slot: SlotId) -> None:
        """A slot's socket has ended; lose it, unless the worker's death comes first and tells why."""
        await trio.sleep(EOF_GRACE)
        self.break_slot(slot, deadlines.CLOSED_SLOT.format(slot))

    def break_slot(self, slot: SlotId, reason: str) -> None:
        """Lose a slot: its run fails, the others go on; with the last slot the worker ends. Repeatable."""
        if not self._usable:
            self.end(reason)
            return
        if self.pool.is_poisoned(slot):
            return
        log.error("slot %d is lost: %s", slot, reason)
        self.pool.poison(slot, reason)
        if self.pool.capacity == 0:
            self.end(deadlines.UNUSABLE.format(reason))
        if (flight := self.flights.pop(slot, None)) is not None:
            if flight.outcome is None:
                self.send_control(Cancel(slot, flight.prediction.id, flight.run))  # nobody wants the rest of it
                flight.end(lost(reason))
            flight.settle(flight.proof)
