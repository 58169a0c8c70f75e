"""The task of each prediction: from its turn to its terminal step.

It sits in the prediction's own cancel scope. At its end the order is fixed: permit back (or slot poisoned), folder
gone, *then* the terminal state is published, so that whoever learns the outcome can send the next request at once (W1).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from cog_trio.config.settings import Settings
from cog_trio.files.output_files import OutputFiles
from cog_trio.files.upload import UploadTarget
from cog_trio.files.workspace import Workspace, needs_spill, spill
from cog_trio.orchestrator.prediction_slot import PredictionSlot, RunRequest
from cog_trio.service.prediction_queue import PredictionQueue, QueueEntry
from cog_trio.state.prediction import Blame, Fact, Outcome, Prediction
from cog_trio.state.retention import RetainedPredictions
from cog_trio.state.service_events import ServiceEvents

log: Final = logging.getLogger("cog_trio.service")

CUT: Final = Outcome(Fact.CUT)
BROKEN: Final = Outcome(Fact.RAISED, "InternalError: the service failed while this prediction ran", blame=Blame.SERVICE)


class PredictionTasks:
    """The predictions of one service, in flight and finished; ``start_soon`` starts tasks in its nursery.

    ``output_folder``: where output files stay; None: they go where the settings say.
    """

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        queue: PredictionQueue,
        service_events: ServiceEvents,
        start_soon: Callable[..., Any],
        output_folder: str | None = None,
    ) -> None:
        self.open: dict[str, Prediction] = {}
        self.retained = RetainedPredictions(count=settings.retain, age=settings.retain_age, size=settings.retain_bytes)
        self._log_limit = settings.log_limit
        self._target = UploadTarget(settings.upload_url, settings.upload_timeout) if settings.upload_url else None
        self._output_folder = None if output_folder is None else Path(output_folder).absolute()
        self._workspace = workspace
        self._queue = queue
        self._service_events = service_events
        self._start_soon = start_soon

    def get(self, id: str) -> Prediction | None:
        """In flight, else finished and still kept."""
        return self.open.get(id) or self.retained.get(id)

    def start(self, prediction: Prediction, input: bytes | memoryview, context: dict[str, str]) -> None:
        """Register it and start its task; there is room in the queue."""
        self.open[prediction.id] = prediction
        turn = self._queue.enter(prediction)
        self._service_events.has_created(prediction)
        self._start_soon(self._run, turn, input, context)

    async def _run(self, turn: QueueEntry, input: bytes | memoryview, context: dict[str, str]) -> None:
        prediction = turn.prediction
        folder = self._workspace.run_folder()
        files = OutputFiles(prediction, folder, self._workspace, self._start_soon, target=self._target_of(folder))
        outcome = CUT  # stands when the cancellation comes before anything was sent, or while files are read
        try:
            with prediction.scope:
                free_slot = await self._queue.wait(turn)
                if isinstance(free_slot, Outcome):
                    outcome = free_slot
                else:
                    slot = PredictionSlot(prediction, free_slot.permit, self._service_events.has_started)
                    job = await self._job(slot, folder, input, context)
                    outcome = job if isinstance(job, Outcome) else await free_slot.orchestrator.run(slot, job, files)
        except Exception:  # a bug of ours: it ends the service, but nobody waits for ever
            outcome = BROKEN
            raise
        finally:
            if self._workspace.used(folder):
                await self._workspace.remove(folder)
            self._finish(prediction, outcome, files.error)

    def _target_of(self, folder: str) -> UploadTarget | None:
        """Where the files of a run go: those that stay with us get a folder of the run's own, of the same name."""
        if self._output_folder is None:
            return self._target
        return UploadTarget((self._output_folder / os.path.basename(folder)).as_uri(), math.inf)

    async def _job(
        self, slot: PredictionSlot, folder: str, input: bytes | memoryview, context: dict[str, str]
    ) -> RunRequest | Outcome:
        """What the worker gets; its outcome, if it could not be made. The permit is given back on every way out
        but the good one."""
        if not needs_spill(input, context):
            return RunRequest(output_dir=folder, input=msgspec.Raw(input), context=context)
        try:
            return RunRequest(output_dir=folder, input_file=await spill(folder, input, context))
        except BaseException as error:
            with slot.permit:
                if not isinstance(error, OSError):
                    raise
            return Outcome(Fact.RAISED, f"{type(error).__name__}: {error}", blame=Blame.SERVICE)

    def _finish(self, prediction: Prediction, outcome: Outcome, file_error: str | None) -> None:
        """The terminal step, and all bookkeeping with it."""
        if not outcome.ours:
            if prediction.cancel_requested:
                outcome = CUT  # the work has stopped and its end was asked for, whatever it said last
            elif file_error is not None and outcome.fact is Fact.RETURNED:
                outcome = Outcome(Fact.RAISED, file_error)
        prediction.finish(outcome)
        self._service_events.has_finished(prediction)
        del self.open[prediction.id]
        self.retained.add(prediction)
        if dropped := prediction.dropped_logs:
            log.warning(
                "%d bytes of log text were dropped: over %d", dropped, self._log_limit, extra={"id": prediction.id}
            )
