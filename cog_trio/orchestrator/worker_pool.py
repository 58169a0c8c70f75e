"""All workers of a service as one: who can take a prediction, and what they are together.

There is a ``Backend`` for each; nothing here depends on how many there are, and one is a fleet too. Slots are counted
over all that are ready, and the worker with the most idle ones gets the next run. Together they are READY while one
is, else STARTING while one may still become it, else DEFUNCT, or SETUP_FAILED when none ever was. A worker that is
lost takes its own runs along and its slots, nothing else (D33).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

import trio

from cog_trio.bridge.protocol import Init, Mode
from cog_trio.config.settings import Settings, worker_variables
from cog_trio.orchestrator.spawn import WorkerProcess
from cog_trio.orchestrator.worker_handle import UNKNOWN, Backend, Berth, Callee
from cog_trio.state.health import RUNTIME_TARGET, HealthSnapshot, State
from cog_trio.state.service_events import Lifecycle

if TYPE_CHECKING:
    from cog_trio.orchestrator.process import Link

BEST_FIRST: Final = (State.READY, State.STARTING, State.DEFUNCT, State.SETUP_FAILED, State.UNKNOWN)


class Fleet:
    """The workers of one service; their tasks live in its nursery.

    ``on_idle`` is called when a slot is free again, ``on_change`` when a worker is ready, gone or at its end.
    """

    def __init__(
        self,
        settings: Settings,
        nursery: trio.Nursery,
        lifecycle: Lifecycle,
        on_change: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.modes: Collection[Mode] = (Mode.PREDICT,)  # what the model's references name
        self.settled = trio.Event()  # one is ready, or none will be
        self.ended = trio.Event()  # all have ended and were reaped
        self._settings = settings
        self._nursery = nursery
        self._lifecycle = lifecycle
        self._on_change = on_change
        self._on_idle = on_idle
        self._workers = self._make()
        self._retired: list[Backend] = []  # that others are to follow, until they have ended
        self._cleared = trio.Event()  # none of these is left
        self._past_respawns = 0  # of those

    def begin(
        self, init: Init, worker: WorkerProcess | Link | None, cwd: str | None, environment: Mapping[str, str]
    ) -> None:
        """Start them; ``worker`` is the first one, if it was spawned before."""
        self.modes = tuple(
            mode
            for mode, named in ((Mode.PREDICT, init.predict_ref), (Mode.TRAIN, init.train_ref))
            if named is not None or (mode is Mode.PREDICT and init.train_ref is None)
        )
        for number, backend in enumerate(self._workers):
            if backend.health.state is State.UNKNOWN:
                backend.health.spawned()
            backend.begun = True
            variables = {**environment, **worker_variables(self._settings, number)}
            self._nursery.start_soon(backend.run, None if number else worker, init, cwd, variables)

    def retire(self, why: str) -> None:
        """Others are to follow: from now on nothing more is sent to those that there are."""
        self._past_respawns = self.respawns
        self._retired += [backend for backend in self._workers if not backend.ended]
        for backend in self._workers:
            backend.retire()
        self._workers = self._make()
        if self.settled.is_set():
            self.settled = trio.Event()
        if self.ended.is_set():  # with none left to end it was a service that had failed
            self.ended = trio.Event()
        for backend in self._workers:
            backend.health.spawned()
            backend.health.log.runtime(RUNTIME_TARGET, why)
        self._changed()

    async def clear(self) -> None:
        """End those that have retired, and wait until they are gone. Then ``begin`` can be called again."""
        for backend in self._retired:
            backend.stop()
        self._cleared = trio.Event()
        self._changed()
        await self._cleared.wait()

    def _make(self) -> tuple[Backend, ...]:
        return tuple(
            Backend(number, self._settings, self._nursery, self._lifecycle, self._changed, self._on_idle)
            for number in range(self._settings.workers)
        )

    def begin_none(self) -> None:
        """There is no model, and there will be no worker."""
        self.settled.set()
        self.ended.set()

    def _changed(self) -> None:
        if self.state is not State.STARTING:
            self.settled.set()
        self._retired = [backend for backend in self._retired if not backend.ended]
        if not self._retired:
            self._cleared.set()
            if all(backend.ended for backend in self._workers):
                self.settled.set()
                self.ended.set()
        self._on_change()

    # What they are.

    @property
    def _lead(self) -> Backend:
        """The first of those in the best state: what it is, all are."""
        return min(self._workers, key=lambda backend: BEST_FIRST.index(backend.health.state))

    @property
    def state(self) -> State:
        return self._lead.health.state

    @property
    def cause(self) -> str | None:
        """Of that state."""
        return self._lead.health.cause

    @property
    def ready(self) -> bool:
        """There is a worker that can be sent to."""
        return any(backend.orchestrator is not None for backend in self._workers)

    @property
    def available(self) -> int:
        """Slots that can be taken now."""
        return sum(backend.available for backend in self._workers)

    @property
    def capacity(self) -> int:
        """Slots of those that are ready."""
        return sum(backend.capacity for backend in self._workers)

    @property
    def workers_ready(self) -> int:
        return sum(backend.orchestrator is not None for backend in self._workers)

    @property
    def respawns(self) -> int:
        """Workers that were started again."""
        return self._past_respawns + sum(backend.health.respawns for backend in self._workers)

    @property
    def schema(self) -> bytes | None:
        """The OpenAPI document, from the first Described on."""
        return next((backend.schema for backend in self._workers if backend.schema is not None), None)

    @property
    def streaming(self) -> bool:
        return any(backend.streaming for backend in self._workers)

    def callee(self, mode: Mode) -> Callee:
        """What is known of a callable of the model; complete while READY."""
        return self._lead.callees.get(mode, UNKNOWN)

    def snapshot(self, *, draining: bool, errors: Mapping[int, str], queued: int) -> HealthSnapshot:
        """Health as it is shown. ``errors``: of the user's check, by the number of the worker."""
        settings = self._settings
        shown = self._lead.health.snapshot(
            busy=self.ready and not self.available,
            draining=draining,
            user_healthcheck_error=errors[min(errors)] if errors else None,
        )
        return dataclasses.replace(
            shown,
            setup=self._workers[0].health.setup,
            queued=queued if settings.queue else None,
            respawns=self.respawns if settings.respawn else None,
            workers=[backend.show(errors.get(number)) for number, backend in enumerate(self._workers)]
            if settings.workers > 1
            else None,
        )

    # What is asked of them.

    def acquire_nowait(self) -> Berth:
        """Take a slot of the worker that has the most idle ones.

        Raises:
          trio.WouldBlock: if none is available.
        """
        return max(self._workers, key=lambda backend: backend.available).acquire_nowait()

    async def check(self) -> dict[int, str]:
        """Why the user's health check did not pass, by the number of the worker; all are asked at once (W28: if
        there is one).

        Cancellation: the checks go on, for others who ask.
        """
        errors: dict[int, str] = {}

        async def ask(number: int, backend: Backend) -> None:
            if (error := await backend.check()) is not None:
                errors[number] = error

        asked = [(number, backend) for number, backend in enumerate(self._workers) if backend.has_check]
        if asked:
            async with trio.open_nursery() as nursery:
                for number, backend in asked:
                    nursery.start_soon(ask, number, backend)
        return errors

    def stop(self) -> None:
        """End all workers: asked first, killed after the orchestrator's grace. Repeatable."""
        for backend in (*self._retired, *self._workers):
            backend.stop()
        self._changed()

    def kill(self) -> None:
        """End all workers at once."""
        for backend in (*self._retired, *self._workers):
            backend.kill()
        self._changed()
