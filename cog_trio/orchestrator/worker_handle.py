"""One worker of a service, from its spawn to its end, and what the service knows through it.

One task holds the orchestrator (``run``), or with ``--respawn`` one after the other: a worker that is lost, once one
has been set up, is followed by another, after a pause that grows while they do not last. A first setup that fails is
final. What the worker says outside of runs arrives by ``on_event``, in order
and synchronously: logs of setup, the description of the model, its own messages, its loss. From it come health,
the document and the validator (compiled in a thread, beside setup). READY, the setup result and admission are
published in one step, when all of that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import trio

from cog_trio.bridge.protocol import (
    Described,
    DroppedLogs,
    HealthcheckStatus,
    Init,
    Inputs,
    Json,
    Log,
    LogLevel,
    Mode,
    WorkerLog,
)
from cog_trio.config.settings import Settings
from cog_trio.inputs.compiled_schema import UnusableSchema
from cog_trio.inputs.validation import Checked, Validator, check_input
from cog_trio.orchestrator.control_channel import Event, WorkerGone
from cog_trio.orchestrator.health_checks import WorkerLost
from cog_trio.orchestrator.log_context import WORKER
from cog_trio.orchestrator.orchestrator import NeverReady, Orchestrator, open_orchestrator
from cog_trio.orchestrator.permits import PermitPool
from cog_trio.orchestrator.slot import Slot
from cog_trio.orchestrator.spawn import WorkerProcess, spawn
from cog_trio.orchestrator.worker_life import (
    IN_SETUP,
    PLACE,
    PROCESS,
    Life,
    PlaceFact,
    PlaceState,
    ProcessState,
)
from cog_trio.state.health import Health, HealthState, WorkerHealth
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.service_events import ServiceEvents, WorkerDescribed, WorkerEnded, WorkerReady, WorkerStarted

if TYPE_CHECKING:
    from cog_trio.orchestrator.process import WorkerLink

log = logging.getLogger("cog_trio.service")
user_log = logging.getLogger("cog_trio.user")
worker_log = logging.getLogger("cog_trio.worker")

LEVELS: Final = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
FIRST_PAUSE: Final = 1.0  # seconds before a new worker; twice as long each time
LONGEST_PAUSE: Final = 60.0  # seconds; a worker that was ready for so long has lasted, and the next pause is the first
MAX_NAMES: Final = 20  # dropped inputs that one line of the log names
MAX_NAME: Final = 100  # characters of each
OUTPUTS: Final = {Mode.PREDICT: "Output", Mode.TRAIN: "TrainingOutput"}  # names of their components


class ModelCallable(NamedTuple):
    """What is known of one callable of the model."""

    validator: Validator | None = None  # None: its inputs can't be checked
    output_is_array: bool = False

    def check(
        self, input: bytes | memoryview | Checked, id: str | None
    ) -> tuple[bytes | memoryview, bytes | memoryview]:
        """The input for the worker, and the input as clients may see it. ``id`` is for the log.

        Raises:
          InvalidInput, MalformedInput: as the validator.
        """
        sent, echo, dropped = input if isinstance(input, Checked) else check_input(input, self.validator)
        if dropped:
            names = ", ".join(name[:MAX_NAME] for name in dropped[:MAX_NAMES])
            more = f" and {len(dropped) - MAX_NAMES} more" if len(dropped) > MAX_NAMES else ""
            extra = {} if id is None else {"id": id}
            log.warning("inputs that the model does not have were dropped: %s%s", names, more, extra=extra)
        return sent, echo


UNKNOWN: Final = ModelCallable()


class WorkerHandle:
    """One worker of a service; its tasks live in the service's nursery.

    ``on_change`` is called when the worker is ready, gone or at its end.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        nursery: trio.Nursery,
        service_events: ServiceEvents,
        permits: PermitPool[Slot],
        on_change: Callable[[], None],
    ) -> None:
        self.health = Health(service_events.now, settings.log_limit)
        self.orchestrator: Orchestrator | None = None  # while READY
        self.schema: bytes | None = None  # the OpenAPI document, from Described on
        self.streaming = False
        self.method = "predict"
        self.no_training: str | None = None  # why the train callable can't be run
        self.model_callables: dict[Mode, ModelCallable] = {}  # complete while READY
        self._number = number
        self._service_events = service_events
        self._permits = permits
        self._on_change = on_change
        self._settings = settings
        self._nursery = nursery
        self._place = Life(PLACE)
        self._process = Life(PROCESS)  # of the last one that was started
        self._announced = False  # as started, and not yet as ended
        self._lost = False  # the last one that was started is of no use any more
        self._pause = FIRST_PAUSE
        self._began = 0.0  # on the trio clock: this setup, and when it was over
        self._ready_since = 0.0
        self._scope = trio.CancelScope()  # around its lives
        self._serving: Orchestrator | None = None  # from READY until the worker has ended, also when it has retired

    @property
    def ended(self) -> bool:
        """Its worker has ended and was reaped, and no other one will follow."""
        return self._place.state is PlaceState.CLOSED

    @property
    def _stopping(self) -> bool:
        return self._place.state is PlaceState.STOPPING

    @property
    def capacity(self) -> int:
        """Slots while it is ready."""
        return 0 if self.orchestrator is None else self.orchestrator.capacity

    def show(self, check_error: str | None) -> WorkerHealth:
        """It alone, as health lists it."""
        health, unset, worker = self.health, msgspec.UNSET, self.orchestrator
        if worker is None:
            return WorkerHealth(health.state.value, cause=unset if health.cause is None else health.cause)
        shown = health.snapshot(busy=not worker.available, draining=False, user_healthcheck_error=check_error)
        return WorkerHealth(
            shown.status,
            slots=worker.capacity,
            busy=worker.capacity - worker.available,
            pid=worker.described.pid,
            user_healthcheck_error=unset if check_error is None else check_error,
        )

    def start(
        self, worker: WorkerProcess | WorkerLink | None, init: Init, cwd: str | None, environment: Mapping[str, str]
    ) -> None:
        """Start its task, which owns the worker and those that follow it; what is spawned there runs in ``cwd``."""
        self._place.step(PlaceFact.STARTED)
        self._nursery.start_soon(self._run, worker, init, cwd, environment)

    async def _run(
        self, worker: WorkerProcess | WorkerLink | None, init: Init, cwd: str | None, environment: Mapping[str, str]
    ) -> None:
        """Shielded until ``stop``, which the service's shutdown always comes to: an outer cancellation must not take
        the worker away under predictions that are being cancelled.
        """
        self._scope.shield = True
        if self._settings.workers > 1:
            WORKER.set(self._number)
        try:
            with self._scope:
                while worker is not None or not self._stopping:  # one that was given must be buried
                    self._lost = False
                    with contain(Where.WORKER, self._lose):
                        try:
                            worker = worker or spawn(cwd, environment)
                            self._has_started(worker)
                            await self._serve(worker, init)
                        except NeverReady as error:
                            self._lose(str(error))
                        except OSError as error:
                            self._lose(f"Worker could not be started: {error}")
                    if self._stopping or self.health.state is not HealthState.STARTING:
                        break
                    worker = None
                    log.warning("another worker is started in %g s", self._pause)
                    await trio.sleep(self._pause)
                    self._pause = min(2 * self._pause, LONGEST_PAUSE)
        finally:
            self.orchestrator = self._serving = None
            self._has_ended(None)
            self._place.step(PlaceFact.EMPTIED)
            self._on_change()

    async def _serve(self, worker: WorkerProcess | WorkerLink, init: Init) -> None:
        async with open_orchestrator(
            worker,
            init,
            self._settings,
            on_event=self._on_event,
            pool=self._permits,
            number=self._number,
            life=self._process,
            prepare=self._compile,
        ) as orchestrator:
            if orchestrator.cause is None:  # it may have died in the meantime
                self.orchestrator = self._serving = orchestrator
                self._ready_since = trio.current_time()
                self.health.set_up()
                setup = self._ready_since - self._began
                slots = {"slots": orchestrator.described.concurrency, "setup_seconds": round(setup, 3)}
                log.info("Server ready", extra=slots)
                if self._service_events.observed:
                    self._service_events.publish(WorkerReady(self._service_events.now(), self._number, setup))
                self._on_change()
            await orchestrator.wait_ended()

    def _has_started(self, worker: WorkerProcess | WorkerLink) -> None:
        self._process = Life(PROCESS)
        self._announced = True
        self._began = trio.current_time()
        if self._service_events.observed:
            pid = worker.pid if isinstance(worker, WorkerProcess) else None
            self._service_events.publish(WorkerStarted(self._service_events.now(), self._number, pid))

    def _has_ended(self, cause: str | None) -> None:
        announced, self._announced = self._announced, False
        if announced and self._service_events.observed:
            self._service_events.publish(WorkerEnded(self._service_events.now(), self._number, cause))

    def retire(self) -> None:
        """Take no more runs; those that there are may end before ``stop``. A worker in setup ends now."""
        self._place.step(PlaceFact.STOPPED)
        if self.orchestrator is None:
            self.stop()
        else:
            self.orchestrator.withdraw()
        self.orchestrator = None

    def stop(self) -> None:
        """End the worker: asked first, killed after the orchestrator's grace. Repeatable."""
        self._place.step(PlaceFact.STOPPED)
        self._scope.cancel()

    def kill(self) -> None:
        """End the worker at once."""
        self.stop()
        if self._serving is not None:
            self._serving.kill()

    def _lose(self, cause: str) -> None:
        """The worker is of no use any more. The first cause of one life stands."""
        if self._lost:
            return
        self._lost = True
        self.orchestrator = self._serving = None
        again = self._settings.respawn and (self.health.state is HealthState.READY or self.health.respawns)
        if self._process.state in IN_SETUP or self._process.state is ProcessState.BURIED:
            log.error("setup failed: %s", cause)
        elif trio.current_time() - self._ready_since >= LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        self._has_ended(None if self._stopping else cause)
        if self._stopping:
            log.info("the worker has ended: %s", cause)
        elif again:
            self.health.respawned(cause)
        elif self.health.state is HealthState.STARTING:
            self.health.setup_broke(cause)
        else:
            self.health.lost(cause)
        self._on_change()

    # What it says.

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Log):
            self._on_log(event)
        elif isinstance(event, WorkerLog):
            if self._process.state in IN_SETUP:
                self.health.log.runtime(event.target, event.message)
            worker_log.log(LEVELS[event.level], "%s", event.message, extra={"worker_target": event.target})
        elif isinstance(event, DroppedLogs):
            self._service_events.worker_lines_dropped += event.count
            log.warning("the worker dropped %d log lines within %d ms", event.count, event.interval_millis)
        elif isinstance(event, Described):
            self.streaming = event.streaming
            self.no_training = event.no_training
            self.method = event.method
            self.schema = bytes(event.schema)
            self.health.versions.update(event.versions)
        elif isinstance(event, WorkerGone):
            self._lose(event.cause)

    def _on_log(self, event: Log) -> None:
        extra: dict[str, object] = {"source": event.source.value}
        if event.id is not None:
            extra["id"] = event.id
        if self._process.state in IN_SETUP:
            self.health.log.user(event.source.value, event.data)
            extra["setup"] = True  # passes at every level
        for line in event.data.removesuffix("\n").split("\n"):
            user_log.info("%s", line, extra=extra)

    async def _compile(self, described: Described) -> None:
        """Compile the model's schemas in a thread, beside setup."""

        def compile() -> dict[Mode, ModelCallable]:
            document = msgspec.json.decode(described.schema)
            tables = {Mode.PREDICT: described.inputs, Mode.TRAIN: described.train_inputs}
            return {mode: _model_callable(document, mode, table) for mode, table in tables.items() if table is not None}

        self.model_callables = {}  # after an internal error inputs are not checked
        with contain(Where.SCHEMA):
            self.model_callables = await trio.to_thread.run_sync(compile)
        if self._service_events.observed:
            self._service_events.publish(WorkerDescribed(self._service_events.now(), self._number))

    @property
    def has_check(self) -> bool:
        """The user's health check can be asked for."""
        return self.orchestrator is not None and self.orchestrator.described.has_healthcheck

    async def check(self) -> str | None:
        """Why the user's health check did not pass; ``None`` if it did, or if the worker is gone.

        All who ask meanwhile share one check. Cancellation: it goes on for the others.
        """
        if self.orchestrator is None:
            return None
        try:
            result = await self.orchestrator.healthcheck()
        except WorkerLost:
            return None  # health says DEFUNCT now
        return None if result.status is HealthcheckStatus.HEALTHY else result.error or "healthcheck failed"


def _model_callable(document: Json, mode: Mode, inputs: Inputs) -> ModelCallable:
    validator = None
    try:
        validator = Validator(document, inputs)
    except UnusableSchema as error:
        log.warning("inputs are not checked: the model's schema can't be compiled: %s", error)
    return ModelCallable(validator, _is_array(document, OUTPUTS[mode]))


def _is_array(document: Json, component: str) -> bool:
    try:
        return bool(document["components"]["schemas"][component]["type"] == "array")
    except (KeyError, TypeError):
        return False
