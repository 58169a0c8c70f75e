"""A scripted worker under an orchestrator, and what was heard of it, in order: for the tests of both halves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
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
from cog_trio.orchestrator.prediction_slot import PredictionSlot, RunRequest
from cog_trio.state.prediction import Blame, Fact, Outcome, Prediction
from cog_trio.testing.fakes import FakeWorker

INIT = Init("predict.py")
INPUT = b'{"n":1}'
RETURNED = Outcome(Fact.RETURNED)
CUT = Outcome(Fact.CUT)


class Files:
    """Takes files when it is told to."""

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        self.announced: list[str] = []
        self.taken = trio.Event()

    def announce(self, item: OutputChunk | FileOutput) -> None:
        self.announced.append(item.filename if isinstance(item, FileOutput) else "")
        if isinstance(item, OutputChunk) or item.place is None:
            self.prediction.reserve_output()

    async def settled(self) -> None:
        await self.taken.wait()


class Bench:
    """An orchestrator, its scripted worker, and what was heard, in order."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker
        self.heard: list[Event | Outcome] = []
        self.orchestrator: Orchestrator
        self.nursery: trio.Nursery

    @property
    def outcomes(self) -> list[Outcome]:
        return [thing for thing in self.heard if isinstance(thing, Outcome)]

    @property
    def events(self) -> list[Event]:
        return [thing for thing in self.heard if not isinstance(thing, Outcome)]

    def start(
        self, id: str = "p", input: bytes = INPUT, context: dict[str, str] | None = None, *, streamed: bool = False
    ) -> Run:
        """Start a run; its Predict is out when the others get their turn."""
        run = self.make(id, input, context, streamed=streamed)
        self.nursery.start_soon(run.perform)
        return run

    def make(
        self, id: str, input: bytes = INPUT, context: dict[str, str] | None = None, *, streamed: bool = False
    ) -> Run:
        """A run that has its permit, not yet started."""
        return Run(
            self, Prediction(id, streamed=streamed), RunRequest("dir", msgspec.Raw(input), context=context or {})
        )

    async def begin(self, id: str = "p", slot: int = 0, **options: Any) -> tuple[Run, Predict]:
        """Start a run and receive its Predict."""
        run = self.start(id, **options)
        return run, await self.worker.next_request(Predict, slot)


class Run:
    def __init__(self, bench: Bench, prediction: Prediction, job: RunRequest) -> None:
        self.bench = bench
        self.prediction = prediction
        self.files = Files(prediction)
        self.job = job
        self.slot = PredictionSlot(prediction, bench.orchestrator.pool.acquire_nowait())
        self.outcome: Outcome | None = None
        self.over = trio.Event()

    async def perform(self) -> None:
        with self.prediction.scope:
            self.outcome = await self.bench.orchestrator.run(self.slot, self.job, self.files)
            self.bench.heard.append(self.outcome)
        self.over.set()


@asynccontextmanager
async def opened(worker: FakeWorker | None = None, **settings: Any) -> AsyncIterator[Bench]:
    """A worker that is Ready; at the end it leaves at once, as if it had been quick."""
    bench = Bench(worker or FakeWorker())
    async with trio.open_nursery() as nursery:
        bench.nursery = nursery
        nursery.start_soon(bench.worker.set_up)
        async with open_orchestrator(
            bench.worker, INIT, Settings(**settings), on_event=bench.heard.append
        ) as orchestrator:
            bench.orchestrator = orchestrator
            yield bench
            bench.worker.exit(0)
        assert bench.worker.reaped


def outcome_of(error: str, blame: Blame = Blame.WORKER) -> Outcome:
    return Outcome(Fact.RAISED, error, blame=blame)


def a_file(index: int = 0, place: int | None = None) -> FileOutput:
    return FileOutput("/tmp/x.png", FileKind(FileOutputKind.FILE), index, place=place)
