"""The service: sole owner of predictions, health and files; everything that a face of cog-trio can do.

In come create, cancel, watch, shutdown: synchronous calls without a checkpoint, so there is nothing to lock, and
registering a prediction and taking its permit are one step. Out come predictions to wait for and snapshots to
show. Its nursery holds one task a worker (backend.py), one a prediction, and a few short ones; none
outlives the block of ``open_service``, which yields at once: setup goes on beside, and health says STARTING.

A prediction runs here, a request only watches it (D4). Its task sits in the prediction's own cancel scope. At its
end the order is fixed: permit back (or slot poisoned), folder gone, *then* the terminal state is published, so
that whoever learns the outcome can send the next request at once (W1). The last worker that ends unasked makes health
DEFUNCT before its predictions fail; the service lives on and answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from cog_trio.bridge.protocol import Init, Json, Mode
from cog_trio.ending import Ending
from cog_trio.files import Readiness, Workspace, keep_ready_file, needs_spill, spill
from cog_trio.fleet import Fleet
from cog_trio.health import FINAL, HealthSnapshot
from cog_trio.keeping import Keeper
from cog_trio.outputs import OutputFiles
from cog_trio.permit.slot import Job, PredictionSlot
from cog_trio.prediction import ALL_EVENTS, Fact, Outcome, Prediction, WebhookEvent
from cog_trio.refusals import (
    SHUTTING_DOWN,
    AlreadyRunning,
    AtCapacity,
    NotOffered,
    NotReady,
    QueueTimedOut,
    Rejected,
    not_ready,
)
from cog_trio.retained import Retained
from cog_trio.settings import Settings
from cog_trio.spawn import WorkerProcess
from cog_trio.stream import OtherRun, Subscription, TooManyFollowers
from cog_trio.upload import Target
from cog_trio.waiting import Queue, Turn
from cog_trio.webhook import Webhooks

if TYPE_CHECKING:
    from cog_trio.process import Link

__all__ = [
    "AlreadyRunning",
    "AtCapacity",
    "NotOffered",
    "NotReady",
    "OtherRun",
    "PredictionService",
    "QueueTimedOut",
    "Rejected",
    "TooManyFollowers",
]

log = logging.getLogger("cog_trio.service")

CUT: Final = Outcome(Fact.CUT)
BROKEN: Final = Outcome(Fact.RAISED, "InternalError: the service failed while this prediction ran", ours=True)


class PredictionService:
    """Made by ``open_service`` only."""

    def __init__(
        self, settings: Settings, workspace: Workspace, nursery: trio.Nursery, now: Callable[[], datetime]
    ) -> None:
        self.settings = settings
        self._workspace = workspace
        self._target = Target(settings.upload_url, settings.upload_timeout) if settings.upload_url else None
        self._nursery = nursery
        self._now = now
        self._fleet = Fleet(settings, nursery, now, self._on_change)
        self._keeper = Keeper(settings.stream_grace, nursery.start_soon)
        self._running: dict[str, Prediction] = {}
        self._retained = Retained(count=settings.retain, age=settings.retain_age, size=settings.retain_bytes)
        self._readiness = Readiness()
        self._last_number = 0
        self._webhooks = Webhooks(
            nursery.start_soon,
            interval=settings.throttle_interval,
            token=settings.webhook_auth_token,
            secret=settings.webhook_secret,
            now=now,
        )
        self._queue = Queue(self._fleet, settings.queue, settings.queue_timeout)
        self._ending = Ending(settings, self._running, self._fleet, self._webhooks)

    def _start(
        self,
        model: str | None,
        train: str | None,
        worker: WorkerProcess | Link | None,
        cwd: str | None,
        environment: Mapping[str, str],
    ) -> None:
        start = self._nursery.start_soon
        start(self._workspace.sweep_predecessors)
        if model is None and train is None and worker is None:
            self._fleet.begin_none()
            return
        init = Init(predict_ref=model, train_ref=train, max_concurrency=self.settings.max_concurrency)
        self._fleet.begin(init, worker, cwd, environment)
        if self.settings.ready_file is not None:
            start(keep_ready_file, self.settings.ready_file, self._readiness)

    # What it shows.

    @property
    def draining(self) -> bool:
        return self._ending.begun.is_set()

    @property
    def schema(self) -> bytes | None:
        """The OpenAPI document, from the moment the model is described."""
        return self._fleet.schema

    @property
    def streaming(self) -> bool:
        """The model offers its output as a stream."""
        return self._fleet.streaming

    def serves(self, mode: Mode) -> bool:
        """Whether the model has a callable of this kind, as far as its references tell."""
        return mode in self._fleet.modes

    def health(self) -> HealthSnapshot:
        """Health without the user's check; answers at once, whatever the model does."""
        return self._show_health({})

    async def check_health(self) -> HealthSnapshot:
        """Health with the user's check, if there is one: 5 s at most, shared by all who ask meanwhile.

        Cancellation: the check goes on for the others.
        """
        return self._show_health(await self._fleet.check())

    def _show_health(self, errors: Mapping[int, str]) -> HealthSnapshot:
        return self._fleet.snapshot(draining=self.draining, errors=errors, queued=len(self._queue))

    def find(self, id: str) -> Prediction | None:
        """The prediction of this id: in flight, else a finished one that is still kept."""
        return self._running.get(id) or self._retained.get(id)

    def running(self, id: str) -> Prediction | None:
        """The prediction of this id, if it is in flight."""
        return self._running.get(id)

    # What it does.

    def admit(self, id: str | None = None) -> None:
        """Refuse what can't be run now, whatever its input.

        Raises:
          NotReady: with a text for the state that we are in.
        """
        if not self._fleet.ready or self.draining:
            raise not_ready(self._fleet.state, self._fleet.cause, self.draining, id)

    def create(
        self,
        *,
        id: str | None = None,
        input: bytes | memoryview | None = None,
        context: dict[str, str] | None = None,
        webhook: str | None = None,
        events: frozenset[WebhookEvent] = ALL_EVENTS,
        trace: tuple[tuple[bytes, bytes], ...] = (),
        watched: bool = False,
        streamed: bool = False,
        mode: Mode = Mode.PREDICT,
    ) -> Prediction:
        """Check, register and start a prediction, in one step without a checkpoint.

        ``input`` is JSON as it came. ``watched`` ties it to those who ``watch`` it: the last one to leave cancels.
        ``streamed`` too, and to those who ``follow`` it.

        Raises:
          NotOffered, NotReady, AlreadyRunning, AtCapacity: with the text for the client; nothing was started.
          InvalidInput: with every fault of the input.
        """
        if not self.serves(mode):
            raise NotOffered(id, mode)
        self.admit(id)
        callee = self._fleet.callee(mode)
        sent, echo = callee.check(input or b"{}", id)
        if id in self._running:
            raise AlreadyRunning(id)
        if not self._queue.has_room:
            raise AtCapacity(id)
        prediction = Prediction(
            f"pred_{self._number():x}" if id is None else id,
            input=echo,
            output_is_array=callee.output_is_array,
            watched=watched or streamed,
            streamed=streamed,
            run=f"{self._number() // 1000:x}",
            history=self.settings.stream_history,
            mode=mode,
            webhook=webhook,
            events=events,
            trace=trace,
            log_limit=self.settings.log_limit,
            now=self._now,
        )
        self._running[prediction.id] = prediction
        self._webhooks.follow(prediction)
        self._nursery.start_soon(self._run, self._queue.enter(prediction), sent, context or {})
        return prediction

    def watch(self, prediction: Prediction) -> AbstractContextManager[None]:
        """Be one of those who wait for a prediction (D4); nothing may be awaited between creating and watching it."""
        return self._keeper.watch(prediction)

    def follow(self, prediction: Prediction, after: str | None = None) -> Subscription:
        """Follow the events of a prediction, running or finished, and keep it alive by that (D4): use it in a
        ``with`` block. Nothing may be awaited between creating and following it.

        ``after`` is the id of the last event that the client has seen.

        Raises:
          OtherRun: if that is no event of this run.
          TooManyFollowers: if so many follow it already.
        """
        return self._keeper.follow(prediction, after)

    async def predict(
        self,
        input: Mapping[str, Json] | None = None,
        *,
        id: str | None = None,
        context: dict[str, str] | None = None,
        mode: Mode = Mode.PREDICT,
    ) -> Prediction:
        """Run one prediction to its end and give it: see its ``status``, ``output``, ``error``, ``logs``, ``metrics``.

        With ``Mode.TRAIN`` it is a training.

        Raises: as ``create``, also when it is refused after it has waited in the queue. A prediction that failed raises
        nothing.

        Cancellation: the prediction is cancelled; its slot is free again once the model has stopped.
        """
        sent = msgspec.json.encode(input or {})
        prediction = self.create(id=id, input=sent, context=context, watched=True, mode=mode)
        with self.watch(prediction):
            await prediction.wait_finished()
        if prediction.refusal is not None:
            raise prediction.refusal
        return prediction

    def cancel(self, id: str) -> bool:
        """Cancel the prediction of this id; False if none is in flight. Repeats are fine."""
        if (prediction := self._running.get(id)) is None:
            return False
        prediction.cancel()
        return True

    def shutdown(self) -> None:
        """Stop admitting and drain: what is in flight gets the grace, then is cancelled, then the worker ends.

        Called again, it ends the wait that is going on, each time.
        """
        if self.draining:
            self._ending.hurry()
            return
        self._ending.begun.set()
        self._readiness.set(False)
        self._queue.dissolve(SHUTTING_DOWN)
        self._nursery.start_soon(self._ending.run)

    def _abort(self) -> None:
        """Shut down without a grace to finish."""
        if not self.draining:
            self.shutdown()
        self._ending.cut()

    async def wait_started(self) -> HealthSnapshot:
        """Wait until setup has succeeded or failed, or there will be none; gives the health then."""
        await self._fleet.settled.wait()
        return self.health()

    async def wait_shutdown(self) -> None:
        """Wait for the first call of ``shutdown``."""
        await self._ending.begun.wait()

    async def wait_stopped(self) -> None:
        """Wait until everything that ``shutdown`` began is done: nothing in flight, no worker left."""
        await self._ending.over.wait()

    # One prediction's task.

    def _on_change(self) -> None:
        """A slot has become free, or a worker is ready, gone or at its end."""
        self._readiness.set(self._fleet.ready and not self.draining)
        if self._fleet.state in FINAL:
            self._queue.dissolve(not_ready(self._fleet.state, self._fleet.cause, self.draining, None).text)
        self._queue.advance()

    async def _run(self, turn: Turn, input: bytes | memoryview, context: dict[str, str]) -> None:
        prediction = turn.prediction
        folder = self._workspace.run_folder()
        files = OutputFiles(prediction, folder, self._workspace, self._nursery.start_soon, target=self._target)
        outcome = CUT  # stands when the cancellation comes before anything was sent, or while files are read
        try:
            with prediction.scope:
                berth = await self._queue.wait(turn)
                if isinstance(berth, Outcome):
                    outcome = berth
                else:
                    slot = PredictionSlot(prediction, berth.permit)
                    job = await self._job(slot, folder, input, context)
                    outcome = job if isinstance(job, Outcome) else await berth.orchestrator.run(slot, job, files)
        except Exception:  # a bug of ours: it ends the service, but nobody waits for ever
            outcome = BROKEN
            raise
        finally:
            if self._workspace.used(folder):
                await self._workspace.remove(folder)
            self._finish(prediction, outcome, files.error)

    async def _job(
        self, slot: PredictionSlot, folder: str, input: bytes | memoryview, context: dict[str, str]
    ) -> Job | Outcome:
        """What the worker gets; its outcome, if it could not be made. The permit is given back on every way out
        but the good one."""
        if not needs_spill(input, context):
            return Job(output_dir=folder, input=msgspec.Raw(input), context=context)
        try:
            return Job(output_dir=folder, input_file=await spill(folder, input, context))
        except BaseException as error:
            with slot.permit:
                if not isinstance(error, OSError):
                    raise
            return Outcome(Fact.RAISED, f"{type(error).__name__}: {error}", ours=True)

    def _finish(self, prediction: Prediction, outcome: Outcome, file_error: str | None) -> None:
        """The terminal step, and all bookkeeping with it."""
        if not outcome.ours:
            if prediction.cancel_requested:
                outcome = CUT  # the work has stopped and its end was asked for, whatever it said last
            elif file_error is not None and outcome.fact is Fact.RETURNED:
                outcome = Outcome(Fact.RAISED, file_error)
        prediction.finish(outcome)
        del self._running[prediction.id]
        self._retained.add(prediction)
        if dropped := prediction.dropped_logs:
            limit = self.settings.log_limit
            log.warning("%d bytes of log text were dropped: over %d", dropped, limit, extra={"id": prediction.id})

    def _number(self) -> int:
        """A number that no other service has used before, as far as clocks go: nanoseconds since 1970."""
        self._last_number = max(self._last_number + 1, time.time_ns())
        return self._last_number
