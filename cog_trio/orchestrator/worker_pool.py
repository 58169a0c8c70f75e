"""All workers of a service as one: who can take a prediction, and what they are together.

There is a ``WorkerHandle`` for each; nothing here depends on how many there are, and one is a pool too. Slots are
counted over all that are ready, and the worker with the most idle ones gets the next run. Together they are READY while
one is, else STARTING while one may still become it, else DEFUNCT, or SETUP_FAILED when none ever was. A worker that is
lost takes its own runs along and its slots, nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

import trio

from cog_trio.bridge.protocol import DumpState, Init, Mode
from cog_trio.config.settings import Settings, worker_variables
from cog_trio.orchestrator.permits import PermitPool
from cog_trio.orchestrator.slot import Slot
from cog_trio.orchestrator.spawn import WorkerProcess
from cog_trio.orchestrator.worker_handle import UNKNOWN, ModelCallable, WorkerHandle
from cog_trio.state.health import RUNTIME_TARGET, HealthSnapshot, HealthState
from cog_trio.state.internal_errors import Where, contain
from cog_trio.state.refusals import ABSENT
from cog_trio.state.service_events import ServiceEvents

if TYPE_CHECKING:
    from cog_trio.orchestrator.process import WorkerLink

BEST_FIRST: Final = (
    HealthState.READY,
    HealthState.STARTING,
    HealthState.DEFUNCT,
    HealthState.SETUP_FAILED,
    HealthState.UNKNOWN,
)


class WorkerPool:
    """The workers of one service; their tasks live in its nursery.

    ``on_idle`` is called when a slot is free again, ``on_change`` when a worker is ready, gone or at its end. The idle
    slots of all of them are in ``permits``.
    """

    def __init__(
        self,
        settings: Settings,
        nursery: trio.Nursery,
        service_events: ServiceEvents,
        on_change: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.modes: Collection[Mode] = (Mode.PREDICT,)  # what the model's references name
        self.settled = trio.Event()  # one is ready, or none will be
        self.ended = trio.Event()  # all have ended and were reaped
        self._settings = settings
        self._nursery = nursery
        self._service_events = service_events
        self._on_change = on_change
        self.permits = PermitPool[Slot](on_idle)
        self._workers = self._make()
        self._retired: list[WorkerHandle] = []  # that others are to follow, until they have ended
        self._cleared = trio.Event()  # none of these is left
        self._past_respawns = 0  # of those

    def start(
        self, init: Init, worker: WorkerProcess | WorkerLink | None, cwd: str | None, environment: Mapping[str, str]
    ) -> None:
        """Start them; ``worker`` is the first one, if it was spawned before."""
        self.modes = tuple(
            mode
            for mode, named in ((Mode.PREDICT, init.predict_ref), (Mode.TRAIN, init.train_ref))
            if named is not None or (mode is Mode.PREDICT and init.train_ref is None)
        )
        for number, handle in enumerate(self._workers):
            if handle.health.state is HealthState.UNKNOWN:
                handle.health.spawned()
            variables = {**environment, **worker_variables(self._settings, number)}
            handle.start(None if number else worker, init, cwd, variables)

    def retire(self, why: str) -> None:
        """Others are to follow: from now on nothing more is sent to those that there are."""
        self._past_respawns = self.respawns
        self._retired += [handle for handle in self._workers if not handle.ended]
        for handle in self._workers:
            handle.retire()
        self._workers = self._make()
        if self.settled.is_set():
            self.settled = trio.Event()
        if self.ended.is_set():  # with none left to end it was a service that had failed
            self.ended = trio.Event()
        for handle in self._workers:
            handle.health.spawned()
            handle.health.log.runtime(RUNTIME_TARGET, why)
        self._changed()

    async def clear(self) -> None:
        """End those that have retired, and wait until they are gone. Then ``begin`` can be called again."""
        for handle in self._retired:
            handle.stop()
        self._cleared = trio.Event()
        self._changed()
        await self._cleared.wait()

    def _make(self) -> tuple[WorkerHandle, ...]:
        return tuple(
            WorkerHandle(number, self._settings, self._nursery, self._service_events, self.permits, self._changed)
            for number in range(self._settings.workers)
        )

    def start_without_model(self) -> None:
        """There is no model, and there will be no worker."""
        self.settled.set()
        self.ended.set()

    def _changed(self) -> None:
        if self.state is not HealthState.STARTING:
            self.settled.set()
        self._retired = [handle for handle in self._retired if not handle.ended]
        if not self._retired:
            self._cleared.set()
            if all(handle.ended for handle in self._workers):
                self.settled.set()
                self.ended.set()
        self._on_change()

    # What they are.

    @property
    def _lead(self) -> WorkerHandle:
        """The first of those in the best state: what it is, all are."""
        return min(self._workers, key=lambda handle: BEST_FIRST.index(handle.health.state))

    @property
    def state(self) -> HealthState:
        return self._lead.health.state

    @property
    def cause(self) -> str | None:
        """Of that state."""
        return self._lead.health.cause

    @property
    def ready(self) -> bool:
        """There is a worker that can be sent to."""
        return any(handle.orchestrator is not None for handle in self._workers)

    @property
    def capacity(self) -> int:
        """Slots of those that are ready."""
        return sum(handle.capacity for handle in self._workers)

    @property
    def workers_ready(self) -> int:
        return sum(handle.orchestrator is not None for handle in self._workers)

    @property
    def respawns(self) -> int:
        """Workers that were started again."""
        return self._past_respawns + sum(handle.health.respawns for handle in self._workers)

    @property
    def schema(self) -> bytes | None:
        """The OpenAPI document, from the first Described on."""
        return next((handle.schema for handle in self._workers if handle.schema is not None), None)

    @property
    def described(self) -> bool:
        """What is known of the callables is complete, for one worker at least."""
        return any(handle.model_callables for handle in self._workers)

    @property
    def streaming(self) -> bool:
        return any(handle.streaming for handle in self._workers)

    @property
    def method(self) -> str:
        """What the model's author calls the function that makes predictions, from Described on."""
        return self._lead.method

    def absence(self, mode: Mode) -> str | None:
        """Why the model has no callable of this kind, as a text for clients; None: it has, as far as it is known."""
        if mode not in self.modes:
            return ABSENT[mode]
        return self._lead.no_training if mode is Mode.TRAIN else None

    def model_callable(self, mode: Mode) -> ModelCallable:
        """What is known of a callable of the model; complete while READY."""
        return self._lead.model_callables.get(mode, UNKNOWN)

    def snapshot(self, *, draining: bool, errors: Mapping[int, str], queued: int) -> HealthSnapshot:
        """Health as it is shown. ``errors``: of the user's check, by the number of the worker."""
        settings = self._settings
        shown = self._lead.health.snapshot(
            busy=self.ready and not self.permits.available,
            draining=draining,
            user_healthcheck_error=errors[min(errors)] if errors else None,
        )
        return dataclasses.replace(
            shown,
            setup=self._workers[0].health.setup,
            queued=queued if settings.queue else None,
            respawns=self.respawns if settings.respawn else None,
            workers=[handle.show(errors.get(number)) for number, handle in enumerate(self._workers)]
            if settings.workers > 1
            else None,
        )

    # What is asked of them.

    @property
    def has_check(self) -> bool:
        """A user's health check can be asked for."""
        return any(handle.has_check for handle in self._workers)

    async def check(self) -> dict[int, str]:
        """Why the user's health check did not pass, by the number of the worker. All workers are asked at once; a model
        without a health check passes.

        Cancellation: the checks go on, for others who ask.
        """
        errors: dict[int, str] = {}

        async def ask(number: int, handle: WorkerHandle) -> None:
            def fail(text: str) -> None:
                errors[number] = text

            with contain(Where.HEALTH_CHECK, fail):
                if (error := await handle.check()) is not None:
                    errors[number] = error

        asked = [(number, handle) for number, handle in enumerate(self._workers) if handle.has_check]
        if asked:
            async with trio.open_nursery() as nursery:
                for number, handle in asked:
                    nursery.start_soon(ask, number, handle)
        return errors

    def dump_state(self) -> None:
        """Have all workers that serve tell where their threads are, in the log."""
        for handle in self._workers:
            if handle.orchestrator is not None:
                handle.orchestrator.send_control(DumpState())

    def stop(self) -> None:
        """End all workers: asked first, killed after the orchestrator's grace. Repeatable."""
        for handle in (*self._retired, *self._workers):
            handle.stop()
        self._changed()

    def kill(self) -> None:
        """End all workers at once."""
        for handle in (*self._retired, *self._workers):
            handle.kill()
        self._changed()
