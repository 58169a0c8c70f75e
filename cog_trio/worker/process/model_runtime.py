"""What the main thread makes, once the model is there, for the I/O thread and for the runs.

It picks the executor by the kinds of the callables, and it is where a run meets what is around it: its text (capture)
and the scope that user code sees are opened on the main thread as its user code begins, and closed before its terminal
frame.
"""

from __future__ import annotations

import contextvars
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from cog_trio.bridge.codec import encode_subclass
from cog_trio.bridge.protocol import MAX_METRIC, HealthcheckResult, Kind, MetricMode
from cog_trio.sdk.scope import Mode, Scope, enter, set_fallback
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.executors.mixed_executor import MixedExecutor
from cog_trio.worker.executors.sync_executor import SyncExecutor
from cog_trio.worker.logs.capture import Capture
from cog_trio.worker.logs.run_log import RunLog, current
from cog_trio.worker.model.healthcheck import HealthCheck
from cog_trio.worker.model.load import LoadedModels
from cog_trio.worker.process.io_thread import Executor
from cog_trio.worker.runs.slots import IOThreadInterface, Job, end_forked_child

if TYPE_CHECKING:
    from cog_trio.worker.executors.asyncio_executor import AsyncExecutor
    from cog_trio.worker.executors.trio_executor import TrioExecutor

_MODES: Final = {"replace": MetricMode.REPLACE, "increment": MetricMode.INCREMENT, "append": MetricMode.APPEND}


class ModelRuntime:
    def __init__(self, models: LoadedModels, capture: Capture, io_thread: IOThreadInterface) -> None:
        self.models: Final = models
        self.schema: Final = msgspec.Raw(msgspec.json.encode(models.document, enc_hook=encode_subclass))
        self._server: SyncExecutor | AsyncExecutor | MixedExecutor = SyncExecutor(gate)
        self._loop: AsyncExecutor | None = None
        self._trio: TrioExecutor | None = None
        mixed = len(models.kinds) > 1
        if Kind.ASYNC in models.kinds:
            from cog_trio.worker.executors.asyncio_executor import AsyncExecutor  # a sync model does without asyncio

            self._loop = AsyncExecutor(gate, io_thread)
            self._server = MixedExecutor(self._server, self._loop) if mixed else self._loop
        elif Kind.TRIO in models.kinds:
            from cog_trio.worker.executors.trio_executor import TrioExecutor

            self._trio = TrioExecutor(gate, io_thread)
        self.executor: Final[Executor] = self._trio or self._server
        self._capture = capture
        loop = self._trio or (None if mixed else self._loop)  # one that runs all the time
        self._health = HealthCheck(models.main.healthcheck, self._outside(), loop)
        self._scopes: dict[int, Scope] = {}  # of the runs whose user code is running
        if models.main.concurrency == 1:
            set_fallback(self._only_scope)

    def live(self, ready: Callable[[], bool]) -> None:
        """Set the model up; then, if ``ready`` says so, serve until told to stop.

        Raises:
          BaseException: what ``setup`` raised.
        """
        if self._trio is not None:
            self._trio.live(self.models.setups, ready)
            return
        for setup in self.models.setups:
            result = setup()
            if inspect.isawaitable(result):
                self._complete(result)
            if gate.forked:
                end_forked_child(None)
        if self._loop is not None:
            self._loop.renew()  # a sync setup may have closed the loop that it found
        if ready():
            self._server.serve()

    def _complete(self, awaitable: Awaitable[Any]) -> None:
        """Run an async ``setup``, on the loop of async predictions if there is one."""
        if self._loop is not None:
            self._loop.complete(awaitable)
        else:
            import asyncio

            asyncio.run(_whole(awaitable))

    async def check_health(self, id: str) -> HealthcheckResult:
        """In the I/O thread."""
        return await self._health(id)

    # Main thread, in the context that will run the user code

    def opened(self, job: Job) -> None:
        def record(name: str, value: Any, mode: Mode) -> None:
            data = _encode(value)
            if len(data) > MAX_METRIC:
                raise ValueError(f"metric {name!r}: {len(data)} bytes are over the limit of {MAX_METRIC}")
            job.metric(name, data, _MODES[mode])

        self._capture.attach(job.run_log)
        current.set(job.run_log)
        scope = self._scopes[job.run] = Scope(context=job.context, record=record)
        enter(scope)

    def leaving(self, job: Job) -> None:
        self._capture.flush_user_streams()

    def closing(self, job: Job) -> None:
        scope = self._scopes.pop(job.run, None)
        if scope is None:  # no user code began
            job.run_log.finish()
        else:
            scope.close()
            self._capture.detach(job.run_log)

    def _only_scope(self) -> Scope | None:
        return next(iter(self._scopes.values()), None)

    def _outside(self) -> contextvars.Context:
        """The context of code that belongs to no run, whatever runs beside it: its text is the service's."""
        context = contextvars.Context()
        context.run(current.set, cast(RunLog, self._capture.service))  # all that is asked of it is a Journal's
        context.run(enter, Scope())
        return context


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except OverflowError:  # integers beyond 64 bits; the scope has made sure that all else is JSON
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


async def _whole(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
