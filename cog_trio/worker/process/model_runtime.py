"""What the main thread makes once the model is there: the executor that fits it, its runs, its health check."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, cast

import msgspec

from cog_trio.bridge.codec import ProtocolBroken, encode_subclass
from cog_trio.bridge.protocol import HealthcheckResult, Kind, Predict
from cog_trio.sdk.batching import set_host
from cog_trio.sdk.scope import Scope, enter, set_fallback
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.executors.executor import Executor
from cog_trio.worker.executors.sync_executor import SyncExecutor
from cog_trio.worker.logs.capture import Capture
from cog_trio.worker.logs.run_log import RunLog, current
from cog_trio.worker.logs.shared_log import SharedLog
from cog_trio.worker.model.healthcheck import HealthCheck
from cog_trio.worker.model.load import LoadedModels
from cog_trio.worker.runs.slot_reader import SlotReader
from cog_trio.worker.runs.slots import IOThreadInterface, Job, SlotSocket

if TYPE_CHECKING:
    from cog_trio.worker.executors.asyncio_executor import AsyncExecutor
    from cog_trio.worker.executors.trio_executor import TrioExecutor


class ModelRuntime:
    def __init__(self, models: LoadedModels, capture: Capture, io_thread: IOThreadInterface) -> None:
        self.models: Final = models
        self.schema: Final = msgspec.Raw(msgspec.json.encode(models.document, enc_hook=encode_subclass))
        self._capture = capture
        self.executor: Executor
        loop: AsyncExecutor | TrioExecutor | None = None  # one that runs all the time
        trio_executor: TrioExecutor | None = None
        if Kind.TRIO in models.kinds:
            from cog_trio.worker.executors.trio_executor import TrioExecutor

            self.executor = loop = trio_executor = TrioExecutor(gate, io_thread)
        elif Kind.ASYNC in models.kinds:
            from cog_trio.worker.executors.asyncio_executor import AsyncExecutor  # a sync model does without asyncio

            self.executor = loop = AsyncExecutor(gate, io_thread)
            if models.main.kind is Kind.SYNC:  # a sync run finds no loop running, as in a sync model
                self.executor, loop = SyncExecutor(gate, loop), None
        else:
            self.executor = SyncExecutor(gate)
        set_host(BatchHost(trio_executor))
        self._health = HealthCheck(models.main.healthcheck, self._outside(), loop)

    def open(self, slots: list[SlotSocket]) -> None:
        """Have the executor read these slots."""
        executor = self.executor
        executor.readers = [SlotReader(slot, self._make_job, executor.start, executor.submit) for slot in slots]
        if len(slots) == 1:
            set_fallback(lambda: None if slots[0].job is None else slots[0].job.scope)

    async def check_health(self, id: str) -> HealthcheckResult:
        """In the I/O thread."""
        return await self._health(id)

    def _make_job(self, slot: SlotSocket, predict: Predict) -> Job:
        model = self.models.get(predict.mode)
        if model is None:
            raise ProtocolBroken(f"Predict to {predict.mode.value}, which the model can't")
        return Job(slot, predict, model, self._capture)

    def _outside(self) -> contextvars.Context:
        """The context of code that belongs to no run, whatever runs beside it: its text is the service's."""
        context = contextvars.Context()
        context.run(current.set, cast(RunLog, self._capture.service))  # all that is asked of it is a Journal's
        context.run(enter, Scope())
        return context


class BatchHost:
    """What `cog_trio.batch` asks of the worker: see ``sdk/batching.py``."""

    def __init__(self, trio_executor: TrioExecutor | None) -> None:
        self._trio_executor = trio_executor

    def share(self, contexts: list[contextvars.Context]) -> contextvars.Context:
        """A copy of the first context. For several runs: what is printed goes to all, and the scope does nothing."""
        context = contexts[0].copy()
        logs = {id(log): log for log in (other.get(current) for other in contexts) if isinstance(log, RunLog)}
        if len(logs) > 1:
            context.run(current.set, SharedLog(list(logs.values())))
            context.run(enter, Scope())
        return context

    def end_share(self, context: contextvars.Context) -> None:
        log = context.get(current)
        if isinstance(log, SharedLog):
            with gate.runtime():
                log.finish()

    def start_trio_task(self, function: Callable[[], Awaitable[None]]) -> None:
        assert self._trio_executor is not None, "only code under trio asks for this"
        self._trio_executor.start_model_task(function)
