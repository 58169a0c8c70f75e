"""From a created prediction to its terminal step: what the service does between clients and the slots of the workers.

A plain prediction needs no task: its slot is taken and its Predict written by the step that creates it, and its slot's
task carries it. A task is started for what must wait on its behalf: a turn in the queue, a large input that goes to the
disk, output files that are read or uploaded.

At its end the order is fixed: the slot is idle (or lost), *then* the terminal state is published, the reply goes out,
and the books are kept, all in one step. So whoever learns of the end can send the next request at once, and finds the
prediction among those that have ended.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from cog_trio.bridge.codec import FrameTooLarge
from cog_trio.config.settings import Settings
from cog_trio.files.output_files import OutputFiles
from cog_trio.files.upload import UploadTarget
from cog_trio.files.workspace import Workspace, needs_spill, spill
from cog_trio.orchestrator.run import CUT, FileTaker, Run, lost
from cog_trio.orchestrator.slot import Slot
from cog_trio.service.prediction_queue import PredictionQueue, QueueEntry
from cog_trio.state.internal_errors import INTERNAL_ERROR, Where, contain
from cog_trio.state.prediction import Prediction
from cog_trio.state.retention import RetainedPredictions
from cog_trio.state.service_events import ServiceEvents
from cog_trio.state.status import Blame, Fact, Outcome

log: Final = logging.getLogger("cog_trio.service")

BROKEN: Final = Outcome(Fact.RAISED, INTERNAL_ERROR, blame=Blame.SERVICE)


class PredictionTasks:
    """The predictions of one service, in flight and finished.

    ``start_soon`` starts tasks in its nursery; ``on_accepted`` is called for each before it begins.

    ``output_folder``: where output files stay; None: they go where the settings say.
    """

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        queue: PredictionQueue,
        service_events: ServiceEvents,
        start_soon: Callable[..., Any],
        on_accepted: Callable[[Prediction], None],
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
        self._on_accepted = on_accepted

    def get(self, id: str) -> Prediction | None:
        """In flight, else finished and still kept."""
        return self.open.get(id) or self.retained.get(id)

    def all(self) -> list[Prediction]:
        """In flight, then finished and still kept."""
        return [*self.open.values(), *self.retained]

    def start(self, prediction: Prediction, input: bytes | memoryview, context: dict[str, str]) -> None:
        """Register it, and start its run or the task that waits for it; there is room in the queue."""
        self.open[prediction.id] = prediction
        run = Run(prediction, self, self._workspace.run_folder(), input, context)
        entry = self._queue.enter(prediction)
        if prediction.waits_briefly:
            prediction.on_decision(self._accept)
        else:
            self._accept(prediction)
        if isinstance(entry, Slot) and not needs_spill(input, context):
            self._begin(run, entry)
        else:
            self._start_soon(self._wait_and_begin, run, entry)

    def _accept(self, prediction: Prediction) -> None:
        """It is created, unless it was refused after a moment: then it never was."""
        if prediction.refusal is None:
            self._on_accepted(prediction)
            self._service_events.has_created(prediction)

    def _begin(self, run: Run, slot: Slot) -> None:
        """Send the run; a cancellation that came before cuts it, before a byte is written."""
        if run.prediction.cancel_requested:
            slot.release()
            self._finish(run, CUT)
            return
        with contain(Where.RUN, lambda _: self._give_up(run, slot), id=run.prediction.id):
            try:
                slot.start(run)
            except FrameTooLarge as error:
                slot.release()
                self._finish(run, lost(str(error), Blame.SERVICE))

    def _give_up(self, run: Run, slot: Slot) -> None:
        slot.worker.break_slot(slot, INTERNAL_ERROR, Blame.SERVICE)
        run.lose(BROKEN)

    async def _wait_and_begin(self, run: Run, entry: Slot | QueueEntry) -> None:
        """Wait for a slot and put a large input on the disk, in a cancel scope of its own."""
        outcome: Outcome | None = CUT
        wall = contain(Where.RUN, id=run.prediction.id)
        try:
            with wall, trio.CancelScope() as scope:
                run.prediction.enter(scope)
                slot = entry if isinstance(entry, Slot) else await self._queue.wait(entry)
                outcome = slot if isinstance(slot, Outcome) else await self._prepare_and_begin(run, slot)
        finally:
            if outcome is not None:
                self._finish(run, BROKEN if wall.failed else outcome)

    async def _prepare_and_begin(self, run: Run, slot: Slot) -> Outcome | None:
        """Send a run, its input on the disk where it is large. Gives the outcome of one that could not be sent.

        Cancellation: the slot is given back.
        """
        try:
            if needs_spill(run.input, run.context):
                run.folder_made = True
                run.input_file = await spill(run.folder, run.input, run.context)
            if slot.worker.cause is not None:
                await slot.worker.wait_ended()  # whoever hears of this end finds the worker's end in health
        except OSError as error:
            slot.release()
            return lost(f"{type(error).__name__}: {error}", Blame.SERVICE)
        except BaseException:
            slot.release()
            raise
        if slot.worker.cause is not None:
            slot.release()
            return lost(slot.worker.cause)
        self._begin(run, slot)
        return None

    # What its slot says of a run.

    def begun(self, run: Run) -> None:
        self._service_events.has_started(run.prediction)

    def open_files(self, run: Run) -> OutputFiles:
        target = self._target
        if self._output_folder is not None:  # files that stay with us get a folder of the run's own
            target = UploadTarget((self._output_folder / secrets.token_hex(8)).as_uri(), math.inf)
        return OutputFiles(run.prediction, run.folder, self._workspace, self._start_soon, target=target)

    def ended(self, run: Run) -> None:
        if run.files is not None:
            self._start_soon(self._finish_with_files, run, run.files)
        else:
            assert run.outcome is not None
            self._finish(run, run.outcome)

    async def _finish_with_files(self, run: Run, files: FileTaker) -> None:
        """Read or upload what is left of its files; the slot is held until then, since the model may overwrite them."""
        assert run.outcome is not None
        outcome = CUT
        wall = contain(Where.RUN, id=run.prediction.id)
        try:
            with wall, trio.CancelScope() as scope:
                run.prediction.enter(scope)
                await files.settled()
                outcome = run.outcome
        finally:
            if files.error is not None and outcome.fact is Fact.RETURNED:
                outcome = Outcome(Fact.RAISED, files.error)
            self._finish(run, BROKEN if wall.failed else outcome)

    def _finish(self, run: Run, outcome: Outcome) -> None:
        """The terminal step, and all bookkeeping with it: the slot first, then the reply, then the books."""
        prediction = run.prediction
        if run.proof is not None:
            run.into_idle(run.proof)
        if prediction.cancel_requested and not outcome.ours:
            outcome = CUT  # the work has stopped and its end was asked for, whatever it said last
        prediction.finish(outcome)
        if prediction.waits_briefly and prediction.refusal is not None:
            self._service_events.has_refused(prediction.id, prediction.mode, prediction.refusal)
            del self.open[prediction.id]
            return
        self._service_events.has_finished(prediction)
        del self.open[prediction.id]
        self.retained.add(prediction)
        lines, size = prediction.dropped_logs
        if lines:
            self._service_events.lines_over_limit += lines
            log.warning(
                "%d log lines (%d bytes) were dropped: over the limit of %d bytes",
                lines,
                size,
                self._log_limit,
                extra={"id": prediction.id},
            )
        if run.folder_made:
            self._workspace.discard(run.folder)
