"""A scripted worker under an orchestrator, and what was heard of it, in order: for the tests of both halves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from cog_trio.bridge.protocol import (
    FileKind,
    FileOutput,
    FileOutputKind,
    Init,
    OutputChunk,
    Predict,
)
from cog_trio.config.settings import Settings
from cog_trio.orchestrator.control_channel import Event
from cog_trio.orchestrator.orchestrator import Orchestrator, open_orchestrator
from cog_trio.orchestrator.permits import PermitPool
from cog_trio.orchestrator.run import Run
from cog_trio.orchestrator.slot import Slot
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Blame, Fact, Outcome
from cog_trio.testing.fakes import FakeWorker

INIT = Init("predict.py")
INPUT = b'{"n":1}'
RETURNED = Outcome(Fact.RETURNED)
CUT = Outcome(Fact.CUT)


class Files:
    """Notes which files are announced."""

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        self.announced: list[str] = []
        self.error: str | None = None

    def announce(self, item: OutputChunk | FileOutput) -> None:
        self.announced.append(item.filename if isinstance(item, FileOutput) else "")
        if isinstance(item, OutputChunk) or item.place is None:
            self.prediction.reserve_output()

    async def settled(self) -> None:
        await trio.lowlevel.checkpoint()


class Bench:
    """An orchestrator, its scripted worker, and what was heard, in order."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker
        self.heard: list[Event | Outcome] = []
        self.pool = PermitPool[Slot]()
        self.orchestrator: Orchestrator

    @property
    def outcomes(self) -> list[Outcome]:
        return [thing for thing in self.heard if isinstance(thing, Outcome)]

    @property
    def events(self) -> list[Event]:
        return [thing for thing in self.heard if not isinstance(thing, Outcome)]

    def new_prediction(self, id: str = "p") -> Prediction:
        return Prediction(id)

    def take(self) -> Slot:
        slot = self.pool.acquire()
        assert slot is not None
        return slot

    def start(
        self, id: str = "p", input: bytes = INPUT, context: dict[str, str] | None = None, *, streamed: bool = False
    ) -> Flight:
        """Start a run on the next slot."""
        flight = Flight(self, Prediction(id, NewPrediction(streamed=streamed)), input, context or {})
        self.take().start(flight.run)
        return flight

    async def begin(self, id: str = "p", slot: int = 0, **options: Any) -> tuple[Flight, Predict]:
        """Start a run and receive its Predict."""
        flight = self.start(id, **options)
        return flight, await self.worker.next_request(Predict, slot)


class Flight:
    """The owner of one run: what its slot says of it. A run that had files holds its slot until ``release``."""

    def __init__(self, bench: Bench, prediction: Prediction, input: bytes = INPUT, context: Any = None) -> None:
        self.prediction = prediction
        self.run = Run(prediction, self, "dir", input, context)
        self.files = Files(prediction)
        self.over = trio.Event()
        self._bench = bench

    @property
    def outcome(self) -> Outcome | None:
        return self.run.outcome

    def begun(self, run: Run) -> None:
        assert run is self.run
        assert run.prediction.status.value == "processing"

    def open_files(self, run: Run) -> Files:
        return self.files

    def ended(self, run: Run) -> None:
        assert run is self.run
        assert run.outcome is not None
        self._bench.heard.append(run.outcome)
        if run.files is None:
            self.release()
        self.over.set()

    def release(self) -> None:
        """Its files, if it had any, are read."""
        if self.run.proof is not None:
            self.run.into_idle(self.run.proof)


@asynccontextmanager
async def opened(worker: FakeWorker | None = None, **settings: Any) -> AsyncIterator[Bench]:
    """A worker that is Ready; at the end it leaves at once, as if it had been quick."""
    worker = worker or FakeWorker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.set_up)
        async with adopted(worker, **settings) as bench:
            yield bench
            worker.exit(0)
        assert worker.reaped


@asynccontextmanager
async def adopted(worker: FakeWorker, **settings: Any) -> AsyncIterator[Bench]:
    """An orchestrator of a worker that sets itself up."""
    bench = Bench(worker)
    async with open_orchestrator(
        worker, INIT, Settings(**settings), on_event=bench.heard.append, pool=bench.pool
    ) as bench.orchestrator:
        yield bench


def outcome_of(error: str, blame: Blame = Blame.WORKER) -> Outcome:
    return Outcome(Fact.RAISED, error, blame=blame)


def a_file(index: int = 0, place: int | None = None) -> FileOutput:
    return FileOutput("/tmp/x.png", FileKind(FileOutputKind.FILE), index, place=place)
