"""Runs predictions on one worker, from its adoption to its grave.

``open_orchestrator`` yields once the worker is Ready (for ``Init.describe``: described). A run takes its permit along:
it numbers the run, writes the Predict, waits for the terminal frame and for Idle, and gives the permit back with that
proof or loses the slot, all before it returns, so that whoever hears of the end finds the slot free (W14). What the
worker says meanwhile is applied to the prediction by the slot's reader; the life of the worker is ``supervisor.py``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from cog_trio.bridge.channel import ChannelBroken
from cog_trio.bridge.codec import FrameTooLarge
from cog_trio.bridge.protocol import (
    Cancel,
    Described,
    FilesTaken,
    HealthcheckResult,
    HealthcheckStatus,
    Init,
    Predict,
    Shutdown,
)
from cog_trio.orchestrator import deadlines
from cog_trio.orchestrator.control_channel import Event, TextLost
from cog_trio.orchestrator.health_checks import WorkerLost
from cog_trio.orchestrator.permits import PermitPool, SlotIdle
from cog_trio.orchestrator.prediction_slot import FileTaker, PredictionSlot, RunRequest
from cog_trio.orchestrator.process import WorkerLink, adopt
from cog_trio.orchestrator.run import CUT, Run, lost
from cog_trio.orchestrator.spawn import WorkerProcess
from cog_trio.orchestrator.supervisor import Supervisor
from cog_trio.state.prediction import Blame, Outcome

if TYPE_CHECKING:
    from cog_trio.config.settings import Settings

__all__ = ["Event", "NeverReady", "Orchestrator", "TextLost", "WorkerLost", "open_orchestrator"]
log: Final = logging.getLogger("cog_trio.orchestrator")

SEND_LIMIT: Final = 5.0  # seconds for a frame that fits the empty buffer of an idle slot
FAREWELL: Final = (2.0, 10.0)  # seconds, least and most, for the worker's own exit, its atexit handlers included (D30)
DIRECT_SEND: Final = 32 * 2**10  # bytes of payload that surely fit this buffer


class NeverReady(Exception):
    """The worker did not become Ready. The text is the cause; what it printed has gone to ``on_event``."""


@asynccontextmanager
async def open_orchestrator(
    worker: WorkerProcess | WorkerLink, init: Init, settings: Settings, *, on_event: Callable[[Event], None]
) -> AsyncIterator[Orchestrator]:
    """Adopt a worker, set it up, and yield once it is Ready; leaving the block shuts it down.

    A worker that does not leave is killed after the drain grace, or after 2 s or 10 s where that is less or more.

    ``on_event`` is called synchronously, in the order of the worker's messages.

    Raises:
      NeverReady: if it does not become Ready; it is dead and reaped then.

    Cancellation: a worker in setup is killed. Errors of the body leave in a group.
    """
    with ExitStack() as process:
        if isinstance(worker, WorkerProcess):
            process.enter_context(worker)
        supervisor = Supervisor(adopt(worker), init, settings, on_event)
        async with trio.open_nursery() as nursery:
            usable: bool = await nursery.start(supervisor.supervise)
            if usable:
                orchestrator = Orchestrator(supervisor, settings)
                try:
                    yield orchestrator
                finally:
                    least, most = FAREWELL
                    farewell = min(max(settings.drain_grace, least), most)
                    with trio.move_on_after(farewell, shield=True) as grace:
                        await orchestrator.shutdown()
                    if grace.cancelled_caught:
                        log.warning("the worker ignored its shutdown for %g s and is killed", farewell)
                    supervisor.pumps.cancel()
    if not usable:
        raise NeverReady(supervisor.cause)


class Orchestrator:
    """One usable worker; made by ``open_orchestrator`` only."""

    def __init__(self, supervisor: Supervisor, settings: Settings) -> None:
        self._supervisor = supervisor
        self._predict_timeout = math.inf if settings.predict_timeout is None else settings.predict_timeout
        self._cancel_grace = settings.cancel_grace
        self._last_run = 0

    @property
    def pool(self) -> PermitPool:
        return self._supervisor.pool

    @property
    def described(self) -> Described:
        return self._supervisor.described

    @property
    def cause(self) -> str | None:
        """Why the worker has ended, or is about to; None while it serves."""
        return self._supervisor.cause

    async def run(self, slot: PredictionSlot, job: RunRequest, files: FileTaker) -> Outcome:
        """Run a prediction; back when it has ended, its slot is idle or given up, and its permit is returned.

        The prediction's terminal step is left to the caller. Over its time limit a run is stopped like a cancelled
        one, and has failed.

        Cancellation: before a byte is written it is cut at once. From then on the worker is asked to stop and the wait
        goes on. Cancelled is raised only where there is no user code to wait for: while files are being taken (the run
        is settled all the same), and while a worker that is dead already is being buried.
        """
        supervisor = self._supervisor
        with slot.permit as permit:
            if trio.current_effective_deadline() == -math.inf:
                return CUT
            if supervisor.dying or supervisor.cause is not None:
                await supervisor.ended.wait()
                return lost(supervisor.cause or deadlines.SHUT_DOWN)
            self._last_run += 1
            flight = Run(permit.slot, self._last_run, slot.prediction, files)
            permit.dispatch(slot.prediction.id, flight.run)
            supervisor.flights[flight.slot] = flight
            slot.prediction.dispatched()
            slot.began(slot.prediction)
            try:
                await self._dispatch(flight, job)
                with trio.move_on_after(self._predict_timeout) as limit:
                    await flight.wait_ended(lambda: self._ask_to_stop(flight, limit))
                try:
                    if flight.announced:
                        await files.settled()
                finally:
                    await self._settle(flight)
            finally:
                supervisor.limits.lift(flight.run)
                if self._is_open(flight):
                    del supervisor.flights[flight.slot]
                if flight.proof is not None:
                    permit.into_idle(flight.proof)
            assert flight.outcome is not None
            return flight.outcome

    async def _dispatch(self, flight: Run, job: RunRequest) -> None:
        predict = Predict(
            flight.slot,
            flight.prediction.id,
            flight.run,
            job.output_dir,
            job.input,
            job.input_file,
            job.context,
            flight.prediction.mode,
        )
        size = sum(len(key) + len(value) for key, value in job.context.items())
        if not isinstance(job.input, msgspec.UnsetType):
            size += len(memoryview(job.input))
        if size <= DIRECT_SEND:
            await self._send(flight, predict)
        else:  # it may wait for the worker to read: in a task of the supervisor's, so that a cancel is heard meanwhile
            self._supervisor.nursery.start_soon(self._write, flight, predict)

    async def _send(self, flight: Run, message: Predict | FilesTaken) -> None:
        """Write a small frame, whole or not at all."""
        try:
            if self._supervisor.slots[flight.slot].send_nowait(message):
                return
        except (FrameTooLarge, ChannelBroken) as error:
            self._not_sent(flight, error)
            return
        with trio.move_on_after(SEND_LIMIT, shield=True) as limit:
            await self._write(flight, message)
        if limit.cancelled_caught:
            self._supervisor.break_slot(flight.slot, deadlines.NOT_READ.format(flight.slot))

    async def _write(self, flight: Run, message: Predict | FilesTaken) -> None:
        try:
            await self._supervisor.slots[flight.slot].send(message)
        except (FrameTooLarge, ChannelBroken) as error:
            self._not_sent(flight, error)

    def _not_sent(self, flight: Run, error: FrameTooLarge | ChannelBroken) -> None:
        supervisor = self._supervisor
        if isinstance(error, FrameTooLarge):  # nothing was written, which is proof enough (D22)
            flight.settle(SlotIdle(flight.slot, flight.prediction.id, flight.run))
            flight.end(lost(str(error), Blame.SERVICE))
        elif not supervisor.dying:
            supervisor.nursery.start_soon(supervisor.close_slot, flight.slot)

    def _ask_to_stop(self, flight: Run, limit: trio.CancelScope) -> None:
        """A cancellation has come, or else the time limit has passed."""
        overrun = limit.cancel_called and not flight.prediction.cancel_requested
        if overrun and flight.outcome is not None:
            return  # it was in time, only its Idle is late
        if overrun:
            flight.overrun = lost(deadlines.TIMED_OUT.format(self._predict_timeout), Blame.LIMIT)
        flight.prediction.event_log.release()
        self._supervisor.send_control(Cancel(flight.slot, flight.prediction.id, flight.run))
        if self._cancel_grace is not None:
            cause = deadlines.OVERRAN if overrun else deadlines.DID_NOT_STOP
            self._supervisor.limits.set(flight.run, self._cancel_grace, cause.format(self._cancel_grace))

    async def _settle(self, flight: Run) -> None:
        """Get the proof of idleness, or lose the slot."""
        if flight.announced and not flight.settled and self._is_open(flight):
            await self._send(flight, FilesTaken(flight.slot, flight.prediction.id, flight.run))
            self._supervisor.expect_idle(flight.slot)
        await flight.wait_settled()

    def _is_open(self, flight: Run) -> bool:
        return self._supervisor.flights.get(flight.slot) is flight

    async def healthcheck(self) -> HealthcheckResult:
        """The user's health check, 10 s at most; all who ask meanwhile share one answer.

        Raises:
          WorkerLost: if the worker has ended, or ends first.

        Cancellation: the check goes on, for the others.
        """
        if self.described.has_healthcheck:
            return await self._supervisor.checks.ask()
        await trio.lowlevel.checkpoint()  # W65: nothing to ask the worker for
        return HealthcheckResult("", HealthcheckStatus.HEALTHY)

    async def wait_ended(self) -> None:
        """Wait until the worker has ended, was reaped, and all its runs are settled; ``cause`` says why."""
        await self._supervisor.ended.wait()

    async def shutdown(self) -> None:
        """Ask the worker to leave, and wait until it has; the wait has no limit of its own. Repeatable."""
        if not self._supervisor.asked:
            self._supervisor.asked = True
            self._supervisor.send_control(Shutdown())
        await self._supervisor.ended.wait()

    def kill(self) -> None:
        """End the worker at once, as asked for; runs in flight fail. Synchronous, repeatable."""
        self._supervisor.asked = True
        self._supervisor.end(deadlines.SHUT_DOWN)
