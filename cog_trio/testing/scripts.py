"""What a fake worker does with a Predict, put together from its parts; ``fakes.py`` has the failures by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec
import trio

from cog_trio.bridge.protocol import LogLine, LogSource, OutputChunk, Predict, RunFailed, SlotResponse
from cog_trio.testing.fakes import Behaviour, FakeWorker, echo, open_fake_worker, proof_of

Step: TypeAlias = "SlotResponse | float"


def scripted(*steps: Step) -> Behaviour:
    """Sends frames in order, and waits where a number of seconds stands; then Done."""

    async def behave(worker: FakeWorker, run: Predict) -> None:
        await _play(worker, run, steps)
        worker.finish(run)

    return behave


def answer(*outputs: Any, logs: str = "", error: str | None = None, seconds: float = 0.0) -> Behaviour:
    """Prints ``logs``, waits so many seconds before each of the outputs, and ends: well, or with ``error``.

    Several outputs are those of a generator. The seconds are those of the test's clock.
    """
    steps: list[Step] = [LogLine(LogSource.STDOUT, logs)] if logs else []
    for index, output in enumerate(outputs):
        steps += [seconds, OutputChunk(msgspec.Raw(msgspec.json.encode(output)), index)]

    async def behave(worker: FakeWorker, run: Predict) -> None:
        await _play(worker, run, steps or [seconds])
        if error is None:
            worker.finish(run)
        else:
            worker.send(RunFailed(proof_of(run), error=error), run.slot)

    return behave


@asynccontextmanager
async def open_scripted_worker(
    behaviour: Behaviour = echo, *, concurrency: int = 1, healthcheck: bool = False, document: Any = None
) -> AsyncIterator[FakeWorker]:
    """A fake worker for a service; without a ``document`` (of OpenAPI) it takes every input. It ends with the block."""
    async with open_fake_worker(
        behaviour, concurrency=concurrency, healthcheck=healthcheck, document=document
    ) as worker:
        if document is None:
            worker.inputs = None
        yield worker


async def _play(worker: FakeWorker, run: Predict, steps: tuple[Step, ...] | list[Step]) -> None:
    for step in steps:
        if isinstance(step, float | int):
            await trio.sleep(step)
        else:
            worker.send(step, run.slot)
    await trio.lowlevel.checkpoint()
