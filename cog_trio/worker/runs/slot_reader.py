"""Reads the Predicts of one slot, on the thread that runs the model, and makes runs of them.

What a run is made of is decoded here, so that no other thread makes objects which the model's finalizers may follow.
Files that must be fetched are the I/O thread's work; a run that needs them comes back through ``submit``.

The parent sends a Predict only after it has heard the end of the slot's last run, so two of them in one read, or one
while a run is open, break the protocol. Where user code keeps this thread, that is seen when the run has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from cog_trio.bridge.channel import FIRST_READ, READ_SIZE
from cog_trio.bridge.codec import FrameBuffer, ProtocolBroken, slot_requests
from cog_trio.bridge.protocol import Predict
from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.model.input_values import FileSource
from cog_trio.worker.runs.prepare_inputs import Unready, fetch, load_inputs
from cog_trio.worker.runs.slots import Job, SlotSocket, Stage

STATEFUL_FILES.add(__file__)


class SlotReader:
    """The reading end of one slot.

    Args:
      make_job: a run of a Predict; raises ``ProtocolBroken`` if the model can't do what it asks for.
      start: begins a run, on this thread.
      submit: has it begun there, from any thread.
    """

    def __init__(
        self,
        slot: SlotSocket,
        make_job: Callable[[SlotSocket, Predict], Job],
        start: Callable[[Job], None],
        submit: Callable[[Job], None],
    ) -> None:
        self.slot: Final = slot
        self._make_job = make_job
        self._start = start
        self._submit = submit
        self._buffer = FrameBuffer()
        self._size = FIRST_READ
        self._last_run = 0

    def read(self) -> bool:
        """Take what has come; False: nothing more will be read from this slot."""
        slot = self.slot
        try:
            data = os.read(slot.fd, self._size)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            data = b""
        try:
            if not data:
                self._buffer.close()
                raise ProtocolBroken("the parent closed it")
            self._size = READ_SIZE if len(data) >= FIRST_READ else FIRST_READ
            self._buffer.feed(data)
            predicts = [slot_requests.decode(body) for body in self._buffer.frames()]
            if len(predicts) > 1:
                raise ProtocolBroken(f"Predict {predicts[1].run} before the end of run {predicts[0].run} was heard")
            for predict in predicts:
                self._take(predict)
        except ProtocolBroken as fault:
            slot.fail(f"slot {slot.index} broke: {fault}")
        return not slot.dead

    def _take(self, predict: Predict) -> None:
        slot = self.slot
        if predict.slot != slot.index:
            raise ProtocolBroken(f"a frame for slot {predict.slot}")
        if slot.job is not None:
            raise ProtocolBroken(f"Predict {predict.run} while run {slot.job.run} is open")
        if predict.run <= self._last_run:
            raise ProtocolBroken(f"Predict {predict.run} after run {self._last_run}")
        if (predict.input is msgspec.UNSET) is (predict.input_file is msgspec.UNSET):
            raise ProtocolBroken("Predict needs exactly one of input and input_file")
        self._last_run = predict.run
        job = slot.job = self._make_job(slot, predict)
        try:
            self._begin(job)
        except Exception as error:  # noqa: BLE001  a fault of ours costs this run alone
            job.break_off(error)

    def _begin(self, job: Job) -> None:
        if job.cancelled:
            job.end()
            return
        try:
            wanted = load_inputs(job)
        except Unready as error:
            job.end(str(error))
            return
        if not wanted:
            self._start(job)
            return
        job.fetching = trio.CancelScope()
        job.stage = Stage.FETCHING
        what = f"fetching the inputs of {job.id}"
        self.slot.io_thread.start_task(what, job.end, self._fetch, job, job.fetching, wanted)

    async def _fetch(self, job: Job, scope: trio.CancelScope, wanted: list[FileSource]) -> None:
        """In the I/O thread."""
        fault = None
        with scope:
            if not job.cancelled:
                try:
                    await fetch(job, wanted)
                except Unready as error:
                    fault = str(error)
        if job.cancelled or fault is not None:
            job.end(fault)
        else:
            job.stage = Stage.WAITING
            self._submit(job)
