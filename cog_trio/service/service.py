"""The service: sole owner of predictions, health and files; everything that a face of cog-trio can do.

In come create, cancel, watch, shutdown: synchronous calls without a checkpoint, so there is nothing to lock, and
registering a prediction and taking its permit are one step. Out come predictions to wait for and snapshots to
show. Its nursery holds one task a worker, one for each prediction that has to wait, and a few short ones; none
outlives the block of ``open_service``, which yields at once: setup goes on beside, and health says STARTING.

A prediction runs here, a request only watches it. The last worker that ends unasked makes health DEFUNCT before
its predictions fail; the service lives on and answers. What waits for predictions on behalf of a program stands in
python_api.py, and what is told of all this in service_events.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import trio

from cog_trio.bridge.protocol import Init, Mode
from cog_trio.config.settings import Settings
from cog_trio.files.workspace import Readiness, Workspace, keep_ready_file
from cog_trio.inputs.decoding_thread import run_in_decoding_thread
from cog_trio.inputs.validation import Checked, InvalidInput, MalformedInput, check_input
from cog_trio.orchestrator.spawn import WorkerProcess
from cog_trio.orchestrator.worker_pool import WorkerPool
from cog_trio.service.prediction_queue import PredictionQueue
from cog_trio.service.prediction_tasks import PredictionTasks
from cog_trio.service.python_api import PythonAPI
from cog_trio.service.reload import NewWorkers, Reload
from cog_trio.service.shutdown import ShutdownSequence
from cog_trio.service.watchers import Watchers
from cog_trio.service.webhook_sender import Webhooks
from cog_trio.state.event_log import Subscription
from cog_trio.state.health import FINAL, HealthSnapshot, HealthState
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Bounds, Prediction
from cog_trio.state.refusals import AlreadyRunning, AtCapacity, NotOffered, Rejected, not_ready
from cog_trio.state.service_events import Callback, Feed, Printed, ServiceEvents, Statistics
from cog_trio.state.status import Status

if TYPE_CHECKING:
    from cog_trio.orchestrator.process import WorkerLink


class PredictionService(PythonAPI):
    """Made by ``open_service`` only."""

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        nursery: trio.Nursery,
        now: Callable[[], datetime],
        output_folder: str | None = None,
    ) -> None:
        self.settings = settings
        self._workspace = workspace
        self._nursery = nursery
        self._now = now
        self._renewals: list[Callable[[Settings], None]] = []
        self._service_events = ServiceEvents(now)
        self._worker_pool = WorkerPool(settings, nursery, self._service_events, self._on_change, self._on_idle)
        self._watchers = Watchers(settings.stream_grace, nursery.start_soon)
        self._readiness = Readiness()
        self._changed = trio.lowlevel.ParkingLot()  # those who wait for another health
        self._last_number = 0
        self._webhooks = Webhooks(
            nursery.start_soon,
            interval=settings.throttle_interval,
            token=settings.webhook_auth_token,
            secret=settings.webhook_secret,
            now=now,
        )
        self._queue = PredictionQueue(self._worker_pool.permits, settings.queue, settings.queue_timeout)
        self._bounds = Bounds(settings.log_limit, settings.stream_history)
        self._tasks = PredictionTasks(
            settings,
            workspace,
            self._queue,
            self._service_events,
            nursery.start_soon,
            self._webhooks.follow,
            output_folder,
        )
        self._shutdown_sequence = ShutdownSequence(settings, self._tasks.open, self._worker_pool, self._webhooks)
        self._reload = Reload(settings.drain_grace, self._tasks.open, self._worker_pool, nursery.start_soon)
        self._opened: NewWorkers | None = None  # with which model; None: with none

    def _start(
        self,
        model: str | None,
        train: str | None,
        worker: WorkerProcess | WorkerLink | None,
        cwd: str | None,
        environment: Mapping[str, str],
    ) -> None:
        start = self._nursery.start_soon
        start(self._workspace.sweep_predecessors)
        start(self._workspace.remove_discarded)
        if model is None and train is None and worker is None:
            self._worker_pool.start_without_model()
            return
        chosen = self.settings
        init = Init(model, train, chosen.max_concurrency, concurrency_from=chosen.concurrency_from)
        self._opened = NewWorkers("", init, cwd, environment)
        self._worker_pool.start(init, worker, cwd, environment)
        self._tell_health()
        if self.settings.ready_file is not None:
            start(keep_ready_file, self.settings.ready_file, self._readiness)

    # What it shows.

    @property
    def draining(self) -> bool:
        return self._shutdown_sequence.begun.is_set()

    @property
    def schema(self) -> bytes | None:
        """The OpenAPI document, from the moment the model is described."""
        return self._worker_pool.schema

    def required(self, mode: Mode) -> frozenset[str] | None:
        """The inputs that can't be left out; None if they are not checked, or not known yet."""
        validator = self._worker_pool.model_callable(mode).validator
        return None if validator is None else validator.required

    @property
    def described(self) -> bool:
        """The model is imported, and its inputs can be checked; setup may go on."""
        return self._worker_pool.described

    def validate_input(self, input: bytes, mode: Mode = Mode.PREDICT) -> None:
        """Check an input as ``create`` would, before the model is ready too; an input of which nothing is known passes.

        Raises:
          InvalidInput, MalformedInput: with every fault of the input.
        """
        self._worker_pool.model_callable(mode).check(input, None)

    @property
    def streaming(self) -> bool:
        """The model offers its output as a stream."""
        return self._worker_pool.streaming

    @property
    def method(self) -> str:
        """What the model's author calls the function that makes predictions, once it is imported."""
        return self._worker_pool.method

    def absence(self, mode: Mode) -> str | None:
        """Why the model has no callable of this kind, as a text for clients; None: it has, as far as it is known."""
        return self._worker_pool.absence(mode)

    @property
    def has_health_check(self) -> bool:
        """The model has a health check of its own that can be asked for; without one ``health`` says it all."""
        return self._worker_pool.has_check

    def health(self) -> HealthSnapshot:
        """Health without the user's check; answers at once, whatever the model does."""
        return self._show_health({})

    async def check_health(self) -> HealthSnapshot:
        """Health with the user's check, if there is one: 5 s at most, shared by all who ask meanwhile.

        Cancellation: the check goes on for the others.
        """
        return self._show_health(await self._worker_pool.check())

    def _show_health(self, errors: Mapping[int, str]) -> HealthSnapshot:
        return self._worker_pool.snapshot(draining=self.draining, errors=errors, queued=len(self._queue))

    def get(self, id: str) -> Prediction | None:
        """The prediction of this id: in flight, else a finished one that is still kept."""
        return self._tasks.get(id)

    def running(self, id: str) -> Prediction | None:
        """The prediction of this id, if it is in flight."""
        return self._tasks.open.get(id)

    def in_flight(self) -> list[Prediction]:
        """The predictions that have not ended, the oldest first."""
        return list(self._tasks.open.values())

    def predictions(self, mode: Mode = Mode.PREDICT) -> list[Prediction]:
        """All of one kind that can be asked for: those that have not ended, then those that are retained."""
        return [
            prediction
            for prediction in self._tasks.all()
            if prediction.mode is mode and not (prediction.waits_briefly and prediction.queued)
        ]

    def renew_secrets(self, settings: Settings) -> None:
        """Take the token, the signing secret and the certificate of these settings, and nothing else, from now on."""
        self._webhooks.renew_secret(settings.webhook_secret)
        for renew in self._renewals:
            renew(settings)

    @contextmanager
    def on_renewal(self, renew: Callable[[Settings], None]) -> Iterator[None]:
        """Have a face of the service take new secrets, for the length of a block."""
        self._renewals.append(renew)
        try:
            yield
        finally:
            self._renewals.remove(renew)

    def dump_workers(self) -> None:
        """Have each worker write to the log where its threads and tasks are. Nothing is stopped."""
        self._worker_pool.dump_state()

    def statistics(self) -> Statistics:
        """The service in numbers, now."""
        finished, queued = self._service_events.finished, len(self._queue)
        return Statistics(
            slots=self._worker_pool.capacity,
            idle=self._worker_pool.permits.available,
            running=len(self._tasks.open) - queued,
            queued=queued,
            workers=self._worker_pool.workers_ready,
            respawns=self._worker_pool.respawns,
            created=self._service_events.created,
            succeeded=finished[Status.SUCCEEDED],
            failed=finished[Status.FAILED],
            canceled=finished[Status.CANCELED],
            refused=self._service_events.refused,
            retained=len(self._tasks.retained),
            retained_bytes=self._tasks.retained.size,
            webhooks=self._webhooks.pending,
            webhooks_failed=self._webhooks.failed,
            webhooks_lost=self._webhooks.lost,
            service_lines_dropped=self._service_events.service_lines_dropped(),
            worker_lines_dropped=self._service_events.worker_lines_dropped,
            lines_over_limit=self._service_events.lines_over_limit,
        )

    def events(self) -> AbstractAsyncContextManager[Feed]:
        """What happens from here on: ``async with service.events() as feed: async for event in feed``.

        The feed holds ``lifecycle.CAPACITY`` events for a slow reader, then the oldest are lost and it gets
        ``EventsLost``. It ends when the service has ended.
        """
        return self._service_events.feed()

    def observe(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` for each event, in the step in which it happens: it must not wait, nor act on the service.

        Gives what ends that. One that raises is logged and called no more.
        """
        return self._service_events.observe(callback)

    def attach_log(self, printed: Printed | None, lines_dropped: Callable[[], int]) -> None:
        """Name the log of this process.

        Args:
          printed: called for each piece of text that the predictions from here on print.
          lines_dropped: returns how many lines it has dropped so far, for ``statistics``.
        """
        self._service_events.on_printed = printed
        self._service_events.service_lines_dropped = lines_dropped

    # What it does.

    def admit(self, id: str | None = None, mode: Mode = Mode.PREDICT) -> None:
        """Refuse what can't be run now, whatever its input.

        Raises:
          NotReady: with a text for the state that we are in.
        """
        if not self._worker_pool.ready or self.draining:
            refusal = not_ready(self.health(), id)
            self._service_events.has_refused(id, mode, refusal)
            raise refusal

    async def check_input(self, new: NewPrediction) -> Checked:
        """Check a large input in a thread. ``create`` takes the result in the same step, without another check.

        Raises:
          NotReady, InvalidInput, MalformedInput: as ``create``.
        """
        while True:
            self.admit(new.id, new.mode)
            validator = self._worker_pool.model_callable(new.mode).validator
            try:
                checked = await run_in_decoding_thread(
                    check_input, new.input, validator, refusals=(InvalidInput, MalformedInput)
                )
            except (InvalidInput, MalformedInput) as refusal:
                self._service_events.has_refused(new.id, new.mode, refusal)
                raise
            if self._worker_pool.model_callable(new.mode).validator is validator:  # else it was reloaded meanwhile
                return checked

    def create(self, new: NewPrediction, checked: Checked | None = None) -> Prediction:
        """Check, register and start a prediction, in one step without a checkpoint.

        Args:
          checked: what ``check_input`` has returned in this step, if it was asked.

        Raises:
          NotOffered, NotReady, AlreadyRunning, AtCapacity: with the text for the client; nothing was started.
          InvalidInput, MalformedInput: with every fault of the input.
        """
        model = self._worker_pool.model_callable(new.mode)
        try:
            if (absence := self.absence(new.mode)) is not None:
                raise NotOffered(new.id, absence)
            if not self._worker_pool.ready or self.draining:
                raise not_ready(self.health(), new.id)
            sent, echo = model.check(new.input if checked is None else checked, new.id)
            if new.id in self._tasks.open:
                raise AlreadyRunning(new.id)
            if not self._queue.has_room:
                raise AtCapacity(new.id)
        except (Rejected, InvalidInput, MalformedInput) as refusal:
            self._service_events.has_refused(new.id, new.mode, refusal)
            raise
        prediction = Prediction(
            f"pred_{self._number():x}" if new.id is None else new.id,
            new,
            input=echo,
            output_is_array=model.output_is_array,
            run=f"{self._number() // 1000:x}",
            bounds=self._bounds,
            now=self._now,
        )
        prediction.on_printed = self._service_events.on_printed
        self._tasks.start(prediction, sent, new.context)
        return prediction

    def join(self, prediction: Prediction) -> Callable[[], None]:
        """As ``watch``, until the returned function is called: for those who don't wait in a block."""
        return self._watchers.join(prediction)

    def watch(self, prediction: Prediction) -> AbstractContextManager[None]:
        """Be one of those who wait for a prediction; nothing may be awaited between creating and watching it."""
        return self._watchers.watch(prediction)

    def follow(self, prediction: Prediction, after: str | None = None) -> Subscription:
        """Follow the events of a prediction, running or finished, and keep it alive by that: use it in a
        ``with`` block. Nothing may be awaited between creating and following it.

        ``after`` is the id of the last event that the client has seen.

        Raises:
          OtherRun: if that is not an event of this run.
          TooManyFollowers: if so many follow it already.
        """
        return self._watchers.follow(prediction, after)

    def creator_left(self, prediction: Prediction) -> None:
        """Who created it by a stream has left and does not come back."""
        self._watchers.creator_left(prediction)

    def cancel(self, id: str) -> bool:
        """Cancel the prediction of this id; False if none is in flight. Repeats are fine."""
        if (prediction := self._tasks.open.get(id)) is None:
            return False
        prediction.cancel()
        return True

    def reload(self, why: str, *, init: Init | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Start the model again, in new workers: nothing new is begun, what runs gets the drain grace, then its workers
        leave, and what is in the files now is set up. ``why`` is for the log, one line.

        ``init`` and ``environment`` take the place of what the service was opened with. A setup that fails shows in
        health, and the next call heals it. While the service drains nothing comes of it. Health is STARTING at once, so
        who then waits (``wait_started``, ``wait_ready``) waits for the new workers.

        Raises:
          NotReady: if the service was opened without a model.
        """
        if self._opened is None:
            raise not_ready(self.health())
        opened = self._opened
        new_workers = NewWorkers(
            why, init or opened.init, opened.cwd, opened.environment if environment is None else environment
        )
        self._opened = new_workers
        self._reload.ask(new_workers)

    def shutdown(self) -> None:
        """Stop admitting and drain: what is in flight gets the grace, then is cancelled, then the worker ends.

        Called again, it ends the wait that is going on, each time.
        """
        if self.draining:
            self._shutdown_sequence.hurry()
            return
        self._shutdown_sequence.begun.set()
        self._reload.close()
        self._readiness.set(False)
        self._tell_health()
        self._queue.dissolve(self.health())
        self._nursery.start_soon(self._shutdown_sequence.run)

    def _abort(self) -> None:
        """Shut down without a grace to finish."""
        if not self.draining:
            self.shutdown()
        self._shutdown_sequence.cut()

    async def _close(self) -> None:
        """Shut down, wait until all has stopped, within its limit, and close what outlives that.

        Cancellation: the wait goes on, as long as the shutdown may take.
        """
        if not self.draining:
            self.shutdown()
        with trio.move_on_after(self._shutdown_sequence.limit, shield=True):
            await self.wait_stopped()
        self._webhooks.close()
        self._service_events.close()

    async def wait_started(self) -> HealthSnapshot:
        """Wait until setup has succeeded or failed, or there will be none; gives the health then."""
        await self._worker_pool.settled.wait()
        return self.health()

    async def wait_ready(self) -> None:
        """Wait until predictions can be created; with ``Settings.respawn`` also for the worker that follows another.

        Raises:
          SetupFailed: if setup has failed; its ``logs`` tell how.
          NotReady: if there is no model, the worker is gone for good, or the service is shutting down.
        """
        await trio.lowlevel.checkpoint()
        while self._worker_pool.state is HealthState.STARTING and not self.draining:
            await self._changed.park()
        if not self._worker_pool.ready or self.draining:
            raise not_ready(self.health())

    async def wait_shutdown(self) -> None:
        """Wait for the first call of ``shutdown``."""
        await self._shutdown_sequence.begun.wait()

    async def wait_stopped(self) -> None:
        """Wait until everything that ``shutdown`` began is done: nothing in flight, no worker left."""
        await self._shutdown_sequence.over.wait()

    def _on_idle(self) -> None:
        """A slot has become free: each run comes by here."""
        self._queue.advance()

    def _on_change(self) -> None:
        """A worker is ready, gone or at its end."""
        self._readiness.set(self._worker_pool.ready and not self.draining)
        self._tell_health()
        if self._worker_pool.state in FINAL:
            self._queue.dissolve(self.health())
        self._queue.advance()

    def _tell_health(self) -> None:
        if self._changed:
            self._changed.unpark_all()
        self._service_events.health_is(self._worker_pool.state.value, self.draining, self._worker_pool.cause)

    def _number(self) -> int:
        """A number that no other service has used before, as far as clocks go: nanoseconds since 1970."""
        self._last_number = max(self._last_number + 1, time.time_ns())
        return self._last_number
