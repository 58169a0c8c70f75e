"""A program that embeds the service is cancelled after each number of checkpoints: nothing stays behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.service.open_service import open_service
from cog_trio.service.service import PredictionService
from cog_trio.testing.fakes import FakeWorker, open_fake_worker
from tests.service.test_service import Clock, no_threads, temporary_folder

__all__ = ["no_threads", "temporary_folder"]

MOST = 40  # checkpoints: more than a run has


async def cancelled_after(checkpoints: int, work: Callable[[], Awaitable[object]]) -> bool:
    """Cancel work after so many turns of others; whether it was cut."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            nursery.start_soon(cancel)
            await work()
    return scope.cancelled_caught


async def predict(service: PredictionService) -> None:
    await service.predict({"n": 1})


async def submit(service: PredictionService) -> None:
    await (await service.submit({"n": 1})).wait_finished()


async def stream(service: PredictionService) -> None:
    async with service.stream({"n": 1}) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("use", [predict, submit, stream])
async def test_a_run_that_is_cut_anywhere_gives_its_slot_back(
    autojump_clock: Clock, use: Callable[[PredictionService], Awaitable[None]]
) -> None:
    async with open_fake_worker() as worker, open_service("m.py", worker=worker, cwd=".") as service:
        worker.inputs = None
        await service.wait_ready()
        cuts = 0
        for checkpoints in range(MOST):
            cuts += await cancelled_after(checkpoints, lambda: use(service))
            await trio.testing.wait_all_tasks_blocked()
            now = service.statistics()
            assert (now.slots, now.idle, now.queued) == (1, 1, 0)
            assert now.created == now.succeeded + now.failed + now.canceled
        assert 2 <= cuts < MOST
        assert (await service.predict({"n": 2})).output == {"n": 2}


async def test_a_service_that_is_cut_anywhere_leaves_no_worker(autojump_clock: Clock) -> None:
    """From its opening through setup to a run; the worker is given, so it is buried also if nobody adopted it."""
    for checkpoints in range(MOST):
        async with open_fake_worker() as worker:
            worker.inputs = None

            async def serve(worker: FakeWorker = worker) -> None:
                async with open_service("m.py", worker=worker, settings=Settings(), cwd=".") as service:
                    await service.wait_ready()
                    await service.predict({"n": 1})
                    await trio.sleep_forever()

            assert await cancelled_after(checkpoints, serve)
            assert worker.reaped
