"""Several workers (``--workers``, D33): slots over all of them, health of all of them, and what a crash takes along."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Healthcheck, HealthcheckResult, HealthcheckStatus, Predict
from cog_trio.config.parsers import GPUS
from cog_trio.config.settings import Settings, worker_variables
from cog_trio.service.open_service import open_service
from cog_trio.service.service import PredictionService
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import AtCapacity, NotReady
from cog_trio.testing.fakes import Behaviour, FakeWorker, echo, exit_9, open_fake_worker, stall
from tests.orchestrator.test_respawn import Spawner, until
from tests.service.test_service import DIED, Clock, ended, no_threads, temporary_folder

__all__ = ["no_threads", "temporary_folder"]


@asynccontextmanager
async def worker_pool(
    monkeypatch: pytest.MonkeyPatch, *workers: Behaviour | FakeWorker, slots: int = 1, more: int = 0, **settings: Any
) -> AsyncIterator[tuple[PredictionService, list[FakeWorker], Spawner]]:
    """A service over these workers, in whatever state they are; the last ``more`` of them follow lost ones."""
    async with AsyncExitStack() as stack:
        fakes: list[FakeWorker] = []
        for given in workers:
            if not isinstance(given, FakeWorker):
                given = await stack.enter_async_context(open_fake_worker(given, concurrency=slots))
            given.inputs = None
            fakes.append(given)
        spawner = Spawner([*fakes[1:]])
        monkeypatch.setattr("cog_trio.orchestrator.worker_handle.spawn", spawner)
        chosen = Settings(**{"workers": len(fakes) - more, **settings})
        service = await stack.enter_async_context(open_service("m.py", worker=fakes[0], settings=chosen))
        yield service, fakes, spawner


@asynccontextmanager
async def ready(
    monkeypatch: pytest.MonkeyPatch, *workers: Behaviour, **options: Any
) -> AsyncIterator[tuple[PredictionService, list[FakeWorker], Spawner]]:
    """The same, once all are ready."""
    async with worker_pool(monkeypatch, *workers, **options) as (service, fakes, spawner):
        await service.wait_started()
        await trio.testing.wait_all_tasks_blocked()
        yield service, fakes, spawner


def shown(service: PredictionService) -> dict[str, Any]:
    health: dict[str, Any] = json.loads(service.health().json())
    return health


def listed(service: PredictionService) -> list[tuple[str, int | None, int | None]]:
    return [(entry["status"], entry.get("slots"), entry.get("busy")) for entry in shown(service)["workers"]]


async def test_slots_are_over_all_workers(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(monkeypatch, stall, stall, stall) as (service, _, _):
        for number in range(3):
            assert service.health().status == "READY", number
            service.create(NewPrediction())
        assert service.health().status == "BUSY"
        with pytest.raises(AtCapacity):
            service.create(NewPrediction())
        assert listed(service) == [("BUSY", 1, 1)] * 3


async def test_the_worker_with_the_most_idle_slots_gets_the_next_run(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(monkeypatch, stall, stall, slots=2) as (service, _, _):
        seen = []
        for _ in range(4):
            service.create(NewPrediction())
            seen.append(sorted(busy or 0 for _, _, busy in listed(service)))
        assert seen == [[0, 1], [1, 1], [1, 2], [2, 2]]


@pytest.mark.covers("D33")
async def test_D33_ready_when_the_first_is_up_and_setup_is_worker_0s(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FakeWorker()
    async with worker_pool(monkeypatch, first, echo) as (service, _, _):
        assert service.health().status == "STARTING"
        await service.wait_started()
        assert (await service.predict({"n": 1})).output == {"n": 1}
        assert [status for status, *_ in listed(service)] == ["STARTING", "READY"]
        assert shown(service)["setup"]["status"] == "starting"
        await first.set_up()
        await trio.testing.wait_all_tasks_blocked()
        assert [status for status, *_ in listed(service)] == ["READY", "READY"]
        assert (shown(service)["status"], shown(service)["setup"]["status"]) == ("READY", "succeeded")


async def test_one_crash_takes_only_its_own_predictions(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(monkeypatch, exit_9, stall) as (service, workers, _):
        lost, lives = service.create(NewPrediction(id="lost")), service.create(NewPrediction(id="lives"))
        await lost.wait_finished()
        assert (lost.error, lives.status.value, service.health().status) == (DIED, "processing", "BUSY")
        entries = shown(service)["workers"]
        assert entries[0] == {"status": "DEFUNCT", "cause": DIED}
        assert entries[1]["status"] == "BUSY"
        with pytest.raises(AtCapacity):
            service.create(NewPrediction())
        service.cancel("lives")
        await lives.wait_finished()
        assert service.health().status == "READY"
        assert (workers[0].reaped, workers[1].reaped) == (True, False)


@pytest.mark.covers("D33")
async def test_D33_defunct_when_none_is_left(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(monkeypatch, exit_9, exit_9) as (service, _, _):
        await ended(service)
        assert service.health().status == "READY"
        await ended(service)
        assert service.health().status == "DEFUNCT"
        with pytest.raises(NotReady, match="The worker is gone"):
            service.create(NewPrediction())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_setup_has_failed_when_it_has_for_all(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    workers = [FakeWorker(), FakeWorker()]
    async with worker_pool(monkeypatch, *workers) as (service, _, _):
        await trio.testing.wait_all_tasks_blocked()
        workers[order[0]].exit(3)
        await trio.testing.wait_all_tasks_blocked()
        assert service.health().status == "STARTING"
        workers[order[1]].exit(4)
        assert (await service.wait_started()).status == "SETUP_FAILED"
        assert service.health().cause == f"Worker died: exit code {4 if order[1] == 0 else 3}"


async def test_a_worker_whose_setup_fails_lowers_capacity_only(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = FakeWorker()
    async with worker_pool(monkeypatch, echo, bad) as (service, _, _):
        await service.wait_started()
        bad.exit(1)
        await trio.testing.wait_all_tasks_blocked()
        assert listed(service) == [("READY", 1, 0), ("SETUP_FAILED", None, None)]
        assert (await service.predict()).status.value == "succeeded"


async def test_each_lost_worker_is_followed_by_its_own(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(monkeypatch, exit_9, stall, echo, more=1, respawn=True) as (service, _, spawner):
        lost, lives = service.create(NewPrediction()), service.create(NewPrediction(id="lives"))
        await lost.wait_finished()
        assert [entry["status"] for entry in shown(service)["workers"]] == ["STARTING", "BUSY"]
        assert service.health().status == "BUSY"
        assert await until(service, "READY") == spawner.calls[-1][0] == 1.0
        assert (await service.predict()).status.value == "succeeded"
        assert (lives.status.value, shown(service)["respawns"]) == ("processing", 1)


async def test_the_queue_is_served_by_whoever_is_free(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(worker: FakeWorker, run: Predict) -> None:
        await trio.sleep(3.5)
        worker.finish(run)

    async def fast(worker: FakeWorker, run: Predict) -> None:
        await trio.sleep(1)
        worker.finish(run)

    async with ready(monkeypatch, slow, fast, queue=9) as (service, _, _):
        predictions = [service.create(NewPrediction()) for _ in range(8)]
        for prediction in predictions:
            await prediction.wait_finished()
        assert [prediction.predict_time for prediction in predictions] == [3.5, 1, 2, 3, 4, 7, 5, 6]


async def test_all_are_ended_at_shutdown(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(monkeypatch, stall, stall, stall, drain_grace=5.0) as (service, workers, _):
        prediction = service.create(NewPrediction())
        start = trio.current_time()
        service.shutdown()
        await service.wait_stopped()
        assert (prediction.status.value, trio.current_time() - start) == ("canceled", 5.0)
        assert [(worker.status, worker.reaped) for worker in workers] == [(0, True)] * 3


async def test_the_users_check_is_asked_of_all_at_once(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [FakeWorker(healthcheck=True) for _ in range(3)]
    async with worker_pool(monkeypatch, *workers) as (service, _, _):
        for worker in workers:
            await worker.set_up()
        await trio.testing.wait_all_tasks_blocked()
        seen: list[dict[str, Any]] = []

        async def ask() -> None:
            seen.append(json.loads((await service.check_health()).json()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            checks = [await worker.next_control(Healthcheck) for worker in workers]
            for worker, check in zip(workers, checks, strict=True):
                bad = worker is workers[1]
                status = HealthcheckStatus.UNHEALTHY if bad else HealthcheckStatus.HEALTHY
                worker.say(HealthcheckResult(check.id, status, "sick" if bad else None))
        assert (seen[0]["status"], seen[0]["user_healthcheck_error"]) == ("UNHEALTHY", "sick")
        entries = seen[0]["workers"]
        assert sorted(entry["status"] for entry in entries) == ["READY", "READY", "UNHEALTHY"]
        assert [entry["user_healthcheck_error"] for entry in entries if entry["status"] == "UNHEALTHY"] == ["sick"]


async def test_one_worker_is_not_listed(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(monkeypatch, echo) as (service, _, _):
        assert "workers" not in shown(service)


async def test_each_is_given_its_devices(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(monkeypatch, echo, echo, echo, gpus=("4", "7")) as (_, _, spawner):
        assert sorted(env["CUDA_VISIBLE_DEVICES"] for _, _, env in spawner.calls) == ["4", "7"]


@pytest.mark.parametrize(
    ("workers", "gpus", "dealt"),
    [
        (1, "2", ["0,1"]),
        (2, "2", ["0", "1"]),
        (2, "0,1,2,3", ["0,2", "1,3"]),
        (3, "0,1", ["0", "1", "0"]),
        (2, "3,", ["3", "3"]),
        (2, "GPU-8932f937,MIG-GPU/1/0", ["GPU-8932f937", "MIG-GPU/1/0"]),
    ],
)
def test_devices_are_dealt_to_workers(workers: int, gpus: str, dealt: list[str]) -> None:
    settings = Settings(workers=workers, gpus=GPUS.call(gpus))
    assert [worker_variables(settings, number)["CUDA_VISIBLE_DEVICES"] for number in range(workers)] == dealt


@pytest.mark.parametrize("text", ["0", "", ",", "0,,1", "0,0", "a b", "-1", "9999", "0;1"])
def test_what_is_no_list_of_devices_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected devices"):
        GPUS.call(text)


async def test_a_run_costs_no_look_at_the_health_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slot that comes back sets off is the queue alone: each run pays for it. By count, not by time."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")

    async with ready(monkeypatch, echo, echo) as (service, _, _):
        sys.setprofile(note)
        try:
            await service.predict({})
        finally:
            sys.setprofile(None)
    assert "cog_trio.service.service._on_idle" in called
    assert not called & {
        "cog_trio.orchestrator.worker_pool._changed",
        "cog_trio.orchestrator.worker_pool.state",
        "cog_trio.service.service._on_change",
    }
