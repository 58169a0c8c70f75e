"""Workers that follow a lost one (``--respawn``): pauses, health, counters, and what is final. Exact times."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Failed, Log, LogSource
from cog_trio.config.settings import Settings
from cog_trio.service.open_service import open_service
from cog_trio.service.service import PredictionService
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import NotReady
from cog_trio.testing.fakes import Behaviour, FakeWorker, deaf, echo, exit_9, open_fake_worker, stall
from tests.service.test_service import DIED, Clock, ended, exists, no_threads, serving, temporary_folder

__all__ = ["no_threads", "temporary_folder"]


class Spawner:
    """Stands in for ``spawn``: gives the workers that were laid out, and notes when."""

    def __init__(self, workers: list[FakeWorker | OSError]) -> None:
        self.workers = workers
        self.calls: list[tuple[float, str | None, dict[str, str]]] = []

    def __call__(self, cwd: str | None, env: dict[str, str]) -> FakeWorker:
        self.calls.append((trio.current_time(), cwd, env))
        worker = self.workers.pop(0)
        if isinstance(worker, OSError):
            raise worker
        return worker


@asynccontextmanager
async def respawning(
    monkeypatch: pytest.MonkeyPatch, *workers: Behaviour | FakeWorker | OSError, **settings: Any
) -> AsyncIterator[tuple[PredictionService, list[FakeWorker], Spawner]]:
    """A service on the first of these workers, ready; the others follow. A FakeWorker is one that the test runs."""
    async with AsyncExitStack() as stack:
        fakes: list[FakeWorker | OSError] = []
        for given in workers:
            if isinstance(given, (FakeWorker, OSError)):
                fakes.append(given)
            else:
                fakes.append(await stack.enter_async_context(open_fake_worker(given)))
        living = [worker for worker in fakes if isinstance(worker, FakeWorker)]
        for worker in living:
            worker.inputs = None
        spawner = Spawner(fakes[1:])
        monkeypatch.setattr("cog_trio.orchestrator.worker_handle.spawn", spawner)
        chosen = Settings(**{"respawn": True, **settings})
        service = await stack.enter_async_context(
            open_service("m.py", worker=living[0], settings=chosen, cwd="folder", environment={"A": "b"})
        )
        await service.wait_started()
        yield service, living, spawner


async def until(service: PredictionService, status: str) -> float:
    """Wait for a health; gives the time."""
    await trio.testing.wait_all_tasks_blocked()
    while service.health().status != status:
        await trio.sleep(0.25)
        await trio.testing.wait_all_tasks_blocked()
    return trio.current_time()


def shown(service: PredictionService) -> dict[str, Any]:
    health: dict[str, Any] = json.loads(service.health().json())
    return health


@pytest.mark.covers("D27")
async def test_D27_a_lost_worker_is_followed_by_another(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with respawning(monkeypatch, exit_9, echo) as (service, workers, spawner):
        assert shown(service)["respawns"] == 0
        seen: list[tuple[str | None, str]] = []
        prediction = service.create(NewPrediction(id="a"))
        await prediction.wait_finished()
        seen.append((prediction.error, service.health().status))
        assert seen == [(DIED, "STARTING")], "STARTING comes before the prediction fails"
        died = trio.current_time()
        with pytest.raises(NotReady, match="Setup has not finished yet"):
            service.create(NewPrediction())
        setup = shown(service)["setup"]
        assert (setup["status"], setup["logs"]) == ("starting", f"[cog_trio] started again: {DIED}")
        assert await until(service, "READY") == died + 1.0
        assert spawner.calls == [(died + 1.0, "folder", {"A": "b", "COG_TRIO_DOWNLOAD_TIMEOUT": "600.0"})]
        assert (await service.predict({"n": 1})).output == {"n": 1}
        assert (shown(service)["respawns"], shown(service)["setup"]["status"]) == (1, "succeeded")
        assert workers[0].reaped
        assert service.get("a") is prediction


async def test_the_pause_grows_while_workers_do_not_last(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, *[exit_9] * 9, echo) as (service, _, _):
        pauses = []
        for _ in range(9):
            assert (await ended(service)).error == DIED
            died = trio.current_time()
            pauses.append(await until(service, "READY") - died)
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert service.health().respawns == 9
        await service.wait_ready()
        assert (await ended(service)).status.value == "succeeded"


async def test_a_worker_that_has_lasted_starts_the_pauses_anew(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, exit_9, exit_9, exit_9, exit_9, echo) as (service, _, _):
        pauses = []
        for lasted in (0, 59, 60, 0):
            await trio.sleep(lasted)
            await ended(service)
            died = trio.current_time()
            pauses.append(await until(service, "READY") - died)
        assert pauses == [1, 2, 1, 2]


async def test_a_setup_that_fails_after_a_respawn_is_tried_again(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It worked before with the same code: what fails now may pass."""
    bad = FakeWorker()
    async with respawning(monkeypatch, exit_9, bad, OSError(11, "busy"), echo) as (service, _, spawner):
        await ended(service)
        died = trio.current_time()
        await trio.sleep(1)
        await bad.control_message()
        bad.say(Log(LogSource.STDERR, "no memory\n"))
        bad.say(Failed("RuntimeError: no memory"))
        bad.exit(0)
        await trio.testing.wait_all_tasks_blocked()
        setup = shown(service)["setup"]
        assert (service.health().status, setup["status"]) == ("STARTING", "starting")
        assert setup["logs"] == "[cog_trio] started again: RuntimeError: no memory"
        await until(service, "READY")
        assert [time - died for time, *_ in spawner.calls] == [1, 3, 7]
        assert service.health().respawns == 3


async def test_a_first_setup_that_fails_is_final(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cog_trio.orchestrator.worker_handle.spawn", Spawner([]))
    worker = FakeWorker()
    async with open_service("m.py", worker=worker, settings=Settings(respawn=True)) as service:
        worker.exit(3)
        assert (await service.wait_started()).status == "SETUP_FAILED"
        await trio.sleep(1000)
        assert service.health().status == "SETUP_FAILED"


async def test_the_worker_that_follows_is_waited_for(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with respawning(monkeypatch, exit_9, echo) as (service, _, _):
        await ended(service)
        died = trio.current_time()
        await service.wait_ready()
        assert trio.current_time() == died + 1.0
        assert (await service.predict({"n": 1})).result() == {"n": 1}


async def test_without_respawn_it_is_over(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cog_trio.orchestrator.worker_handle.spawn", Spawner([]))
    async with serving(exit_9) as (service, _):
        await ended(service)
        await trio.sleep(1000)
        assert service.health().status == "DEFUNCT"
        assert "respawns" not in shown(service)


async def test_who_waits_in_the_queue_gets_the_next_worker(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, exit_9, echo, queue=2) as (service, _, _):
        first, second = service.create(NewPrediction()), service.create(NewPrediction())
        await second.wait_finished()
        assert (first.error, second.status.value) == (DIED, "succeeded")


@pytest.mark.covers("D28")
async def test_D28_a_worker_killed_for_what_does_not_stop_is_followed(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, deaf, echo, cancel_grace=2.0, predict_timeout=3.0) as (service, workers, _):
        prediction = await ended(service)
        assert prediction.predict_time == 5.0
        await until(service, "READY")
        assert workers[0].reaped
        assert (await ended(service)).status.value == "succeeded"


async def test_a_worker_that_dies_while_the_model_is_compiled_is_not_ready(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says Ready and dies at once: nobody may be sent to it."""
    dies = FakeWorker()
    async with respawning(monkeypatch, exit_9, dies, echo) as (service, _, _):
        await ended(service)
        await trio.sleep(1)
        await dies.set_up()
        dies.exit(-9)
        await trio.testing.wait_all_tasks_blocked()
        assert service.health().status == "STARTING"
        await until(service, "READY")
        assert service.health().respawns == 2


@pytest.mark.parametrize("after", [0.5, 1.5])
async def test_a_shutdown_in_the_pause_or_in_the_new_setup_is_immediate(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    never_ready = FakeWorker()
    async with respawning(monkeypatch, exit_9, never_ready) as (service, _, spawner):
        await ended(service)
        await trio.sleep(after)
        start = trio.current_time()
        service.shutdown()
        await service.wait_stopped()
        assert trio.current_time() == start
        assert never_ready.reaped is bool(spawner.calls) is (after > 1)


@pytest.mark.covers("http:W30")
async def test_W30_the_readiness_file_goes_and_comes_back(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "ready"
    async with respawning(monkeypatch, exit_9, stall, ready_file=str(path)) as (service, _, _):
        await trio.testing.wait_all_tasks_blocked()
        assert exists(path)
        await ended(service)
        await trio.testing.wait_all_tasks_blocked()
        assert not exists(path)
        await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        assert exists(path)


async def test_what_a_dead_worker_printed_last_is_not_in_the_next_ones_setup(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, stall, echo) as (service, workers, _):
        workers[0].unread.append((LogSource.STDERR, "last words\n"))
        workers[0].exit(-9)
        await until(service, "READY")
        assert "words" not in shown(service)["setup"]["logs"]
