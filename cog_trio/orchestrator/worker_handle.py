"""One worker of a service, from its spawn to its end, and what the service knows through it.

One task holds the orchestrator (``run``), or with ``--respawn`` one after the other: a worker that is lost, once one
has been set up, is followed by another, after a pause that grows while they do not last. A first setup that fails is
final. What the worker says outside of runs arrives by ``on_event``, in order
and synchronously: logs of setup, the description of the model, its own messages, its loss. From it come health,
the document and the validator (compiled in a thread, beside setup). READY, the setup result and admission are
published in one step, when all of that is there (W29).
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
from cog_trio.inputs.validation import Validator
from cog_trio.orchestrator.log_context import WORKER
from cog_trio.orchestrator.orchestrator import NeverReady, Orchestrator, TextLost, WorkerLost, open_orchestrator
from cog_trio.orchestrator.permits import PermitInUse
from cog_trio.orchestrator.spawn import WorkerProcess, spawn
from cog_trio.state.health import Health, HealthState, WorkerHealth
from cog_trio.state.service_events import ServiceEvents, WorkerDescribed, WorkerEnded, WorkerReady, WorkerStarted

if TYPE_CHECKING:
    from cog_trio.orchestrator.orchestrator import Event
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


class FreeSlot(NamedTuple):
    """A slot that was taken, and the worker that it is of."""

    orchestrator: Orchestrator
    permit: PermitInUse


class ModelCallable(NamedTuple):
    """What is known of one callable of the model."""

    validator: Validator | None = None  # None: its inputs can't be checked
    output_is_array: bool = False

    def check(self, input: bytes | memoryview, id: str | None) -> tuple[bytes | memoryview, bytes | memoryview]:
        """The input for the worker, and the input as clients may see it. ``id`` is for the log.

        Raises:
          InvalidInput, MalformedInput: as the validator.
        """
        if self.validator is None:
            return input, input
        sent, echo, dropped = self.validator.check(input)
        if dropped:
            names = ", ".join(name[:MAX_NAME] for name in dropped[:MAX_NAMES])
            more = f" and {len(dropped) - MAX_NAMES} more" if len(dropped) > MAX_NAMES else ""
            extra = {} if id is None else {"id": id}
            log.warning("inputs that the model does not have were dropped: %s%s", names, more, extra=extra)
        return sent, echo


UNKNOWN: Final = ModelCallable()


class WorkerHandle:
    """One worker of a service; its tasks live in the service's nursery.

    ``on_idle`` is called when a slot is free again, ``on_change`` when the worker is ready, gone or at its end.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        nursery: trio.Nursery,
        service_events: ServiceEvents,
        on_change: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.health = Health(service_events.now, settings.log_limit)
        self.orchestrator: Orchestrator | None = None  # while READY
        self.schema: bytes | None = None  # the OpenAPI document, from Described on
        self.streaming = False
        self.model_callables: dict[Mode, ModelCallable] = {}  # complete while READY
        self.ended = False  # it has ended and was reaped, and no other one will follow
        self._number = number
        self._service_events = service_events
        self._on_change = on_change
        self._on_idle = on_idle
        self._settings = settings
        self._nursery = nursery
        self._compiled = trio.Event()
        self._setting_up = False
        self._alive = False  # a worker was started and has not ended
        self._pause = FIRST_PAUSE
        self._began = 0.0  # on the trio clock: this setup, and when it was over
        self._ready_since = 0.0
        self._life = trio.CancelScope()
        self.begun = False  # ``run`` was called, or is about to be
        self._serving: Orchestrator | None = None  # from READY until the worker has ended, also when it has retired
        self._stopping = False

    @property
    def capacity(self) -> int:
        """Slots while it is ready."""
        return 0 if self.orchestrator is None else self.orchestrator.pool.capacity

    @property
    def available(self) -> int:
        """Slots that can be taken now."""
        return 0 if self.orchestrator is None else self.orchestrator.pool.available

    def show(self, check_error: str | None) -> WorkerHealth:
        """It alone, as health lists it."""
        health, unset = self.health, msgspec.UNSET
        if self.orchestrator is None:
            return WorkerHealth(health.state.value, cause=unset if health.cause is None else health.cause)
        pool = self.orchestrator.pool
        shown = health.snapshot(busy=not pool.available, draining=False, user_healthcheck_error=check_error)
        return WorkerHealth(
            shown.status,
            slots=pool.capacity,
            busy=pool.capacity - pool.available,
            pid=self.orchestrator.described.pid,
            user_healthcheck_error=unset if check_error is None else check_error,
        )

    def acquire_nowait(self) -> FreeSlot:
        """Take a slot.

        Raises:
          trio.WouldBlock: if none is available.
        """
        if self.orchestrator is None:
            raise trio.WouldBlock
        return FreeSlot(self.orchestrator, self.orchestrator.pool.acquire_nowait())

    async def run(
        self, worker: WorkerProcess | WorkerLink | None, init: Init, cwd: str | None, environment: Mapping[str, str]
    ) -> None:
        """Own the worker, and those that follow it, from start to end; what is spawned here runs in ``cwd``.

        Shielded until ``stop``, which the service's shutdown always comes to: an outer cancellation must not take
        the worker away under predictions that are being cancelled.
        """
        self._life.shield = True
        if self._settings.workers > 1:
            WORKER.set(self._number)
        try:
            with self._life:
                while worker is not None or not self._stopping:  # one that was given must be buried
                    self._setting_up = True
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
            self.ended = True
            if self._alive:
                self._has_ended(None)
            self._on_change()

    async def _serve(self, worker: WorkerProcess | WorkerLink, init: Init) -> None:
        self._compiled = trio.Event()
        async with open_orchestrator(worker, init, self._settings, on_event=self._on_event) as orchestrator:
            await self._compiled.wait()
            if orchestrator.cause is None:  # it may have died while we compiled
                self.orchestrator = self._serving = orchestrator
                orchestrator.pool.on_idle = self._on_idle
                self._setting_up = False
                self._ready_since = trio.current_time()
                self.health.set_up()
                log.info("Server ready")
                if self._service_events.observed:
                    setup = self._ready_since - self._began
                    self._service_events.publish(WorkerReady(self._service_events.now(), self._number, setup))
                self._on_change()
            await orchestrator.wait_ended()

    def _has_started(self, worker: WorkerProcess | WorkerLink) -> None:
        self._alive = True
        self._began = trio.current_time()
        if self._service_events.observed:
            pid = worker.pid if isinstance(worker, WorkerProcess) else None
            self._service_events.publish(WorkerStarted(self._service_events.now(), self._number, pid))

    def _has_ended(self, cause: str | None) -> None:
        self._alive = False
        if self._service_events.observed:
            self._service_events.publish(WorkerEnded(self._service_events.now(), self._number, cause))

    def retire(self) -> None:
        """Take no more runs; those that there are may end before ``stop``. A worker in setup ends now."""
        self._stopping = True
        if self.orchestrator is None:
            self.stop()
        self.orchestrator = None

    def stop(self) -> None:
        """End the worker: asked first, killed after the orchestrator's grace. Repeatable."""
        self._stopping = True
        self._life.cancel()
        self.ended = self.ended or not self.begun

    def kill(self) -> None:
        """End the worker at once."""
        self.stop()
        if self._serving is not None:
            self._serving.kill()

    def _lose(self, cause: str) -> None:
        """The worker is of no use any more."""
        self.orchestrator = self._serving = None
        again = self._settings.respawn and (self.health.state is HealthState.READY or self.health.respawns)
        if self._setting_up:
            log.error("setup failed: %s", cause)
        elif trio.current_time() - self._ready_since >= LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        self._setting_up = False
        if self._alive:
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
            if self._setting_up:
                self.health.log.runtime(event.target, event.message)
            worker_log.log(LEVELS[event.level], "%s", event.message, extra={"worker_target": event.target})
        elif isinstance(event, DroppedLogs):
            log.warning("the worker dropped %d log lines within %d ms", event.count, event.interval_millis)
        elif isinstance(event, Described):
            self.streaming = event.streaming
            self.schema = bytes(event.schema)
            self.health.versions.update(event.versions)
            self._nursery.start_soon(self._compile, event, self._compiled)
            if self._service_events.observed:
                self._service_events.publish(WorkerDescribed(self._service_events.now(), self._number))
        elif isinstance(event, TextLost):
            self._lose(event.cause)

    def _on_log(self, event: Log) -> None:
        if self._setting_up:
            self.health.log.user(event.source.value, event.data)
        extra = {} if event.id is None else {"id": event.id}
        for line in event.data.removesuffix("\n").split("\n"):
            user_log.info("%s", line, extra=extra)

    async def _compile(self, described: Described, compiled: trio.Event) -> None:
        def compile() -> dict[Mode, ModelCallable]:
            document = msgspec.json.decode(described.schema)
            tables = {Mode.PREDICT: described.inputs, Mode.TRAIN: described.train_inputs}
            return {mode: _model_callable(document, mode, table) for mode, table in tables.items() if table is not None}

        model_callables = await trio.to_thread.run_sync(compile)
        if compiled is self._compiled:  # not of a worker that is gone
            self.model_callables = model_callables
        compiled.set()

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
