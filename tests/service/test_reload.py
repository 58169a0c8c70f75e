"""The model started again in the same service: what is in flight, what waits, what shows, and what may not overlap."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Failed, Init, Predict
from cog_trio.config.settings import Settings
from cog_trio.service.open_service import open_service
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import NotReady
from cog_trio.testing.fakes import FakeWorker, deaf, echo, exit_9, stall
from tests.orchestrator.test_respawn import Spawner, respawning, shown, until
from tests.service.test_service import DIED, Clock, ended, no_threads, temporary_folder

__all__ = ["no_threads", "temporary_folder"]

OFF = {"respawn": False}


async def slow(worker: FakeWorker, run: Predict) -> None:
    await trio.sleep(5)
    worker.finish(run, b'"slow"')


async def test_another_worker_takes_the_place_of_the_old_one(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, echo, echo, **OFF) as (service, workers, spawner):
        service.reload("predict.py has changed")
        await trio.testing.wait_all_tasks_blocked()
        assert await until(service, "READY") == 0.0, "nothing was in flight: nothing is waited for"
        assert workers[0].reaped
        assert spawner.calls == [(0.0, "folder", {"A": "b", "COG_TRIO_DOWNLOAD_TIMEOUT": "600.0"})]
        setup = shown(service)["setup"]
        assert setup["logs"].startswith("[cog_trio] predict.py has changed\n")
        assert (await service.predict({"n": 1})).output == {"n": 1}


@pytest.mark.covers("D49")
async def test_what_runs_may_end_and_nothing_new_is_begun(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, slow, echo, **OFF) as (service, workers, spawner):
        prediction = service.create(NewPrediction())
        await trio.sleep(1)
        service.reload("changed")
        await trio.sleep(1)
        assert service.health().status == "STARTING"
        with pytest.raises(NotReady, match="Setup has not finished yet"):
            service.create(NewPrediction())
        assert not workers[0].reaped
        await prediction.wait_finished()
        assert (prediction.output, trio.current_time()) == ("slow", 5.0)
        await until(service, "READY")
        assert [time for time, *_ in spawner.calls] == [5.0]


@pytest.mark.covers("D49")
async def test_what_does_not_end_within_the_drain_grace_is_cancelled(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, stall, echo, **OFF, drain_grace=3.0) as (service, _, _):
        prediction = service.create(NewPrediction())
        await trio.sleep(1)
        service.reload("changed")
        await prediction.wait_finished()
        assert (prediction.status.value, trio.current_time()) == ("canceled", 4.0)
        assert await until(service, "READY") == 4.0


async def test_a_run_that_does_not_stop_is_ended_with_its_worker(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, deaf, echo, **OFF, drain_grace=3.0) as (service, workers, _):
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        service.reload("changed")
        await prediction.wait_finished()
        assert trio.current_time() >= 3.0 + 5.0
        assert prediction.terminal
        await until(service, "READY")
        assert workers[0].reaped


@pytest.mark.covers("D49")
async def test_who_waits_in_the_queue_runs_on_the_new_model(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, slow, echo, **OFF, queue=2) as (service, _, _):
        first, second = (
            service.create(NewPrediction(input=b'{"n": 1}')),
            service.create(NewPrediction(input=b'{"n": 2}')),
        )
        await trio.testing.wait_all_tasks_blocked()
        service.reload("changed")
        await second.wait_finished()
        assert (first.output, second.output) == ("slow", {"n": 2})


@pytest.mark.covers("D49")
async def test_a_broken_edit_shows_and_the_next_one_heals(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = FakeWorker()
    async with respawning(monkeypatch, echo, bad, echo, **OFF) as (service, _, _):
        service.reload("first")
        await bad.control_message()
        bad.say(Failed("SyntaxError: never closed"))
        bad.exit(0)
        await until(service, "SETUP_FAILED")
        with pytest.raises(NotReady, match="SyntaxError: never closed"):
            service.create(NewPrediction())
        service.reload("second")
        await until(service, "READY")
        assert (await service.predict({"n": 1})).output == {"n": 1}


async def test_a_setup_that_still_runs_is_cut(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    long = FakeWorker()
    async with respawning(monkeypatch, echo, long, echo, **OFF) as (service, _, spawner):
        service.reload("first")
        await long.control_message()
        service.reload("second")
        await until(service, "READY")
        assert long.reaped
        assert len(spawner.calls) == 2


async def test_a_defunct_service_is_healed(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with respawning(monkeypatch, exit_9, echo, **OFF) as (service, _, _):
        assert (await ended(service)).error == DIED
        assert service.health().status == "DEFUNCT"
        service.reload("changed")
        await until(service, "READY")
        assert (await ended(service)).status.value == "succeeded"


async def test_who_asks_and_then_waits_gets_the_new_model(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the step in which it was asked for: nothing may be begun, or waited for, by what is no more."""
    async with respawning(monkeypatch, exit_9, echo, echo, **OFF) as (service, _, _):
        await ended(service)
        for state in ("DEFUNCT", "READY"):
            assert service.health().status == state
            service.reload("changed")
            with pytest.raises(NotReady, match="Setup has not finished yet"):
                service.create(NewPrediction())
            assert (await service.wait_started()).status == "READY"


async def test_the_end_waits_for_the_worker_that_has_healed_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, exit_9, echo, **OFF) as (service, workers, _):
        await ended(service)
        service.reload("changed")
        await service.wait_ready()
        service.shutdown()
        await service.wait_stopped()
        assert workers[1].reaped


async def test_a_worker_that_dies_while_it_drains_is_not_respawned(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(worker: FakeWorker, run: Predict) -> None:
        await trio.sleep(2)
        await exit_9(worker, run)

    async with respawning(monkeypatch, dies, echo, respawn=True) as (service, _, spawner):
        prediction = service.create(NewPrediction())
        await trio.sleep(1)
        service.reload("changed")
        await prediction.wait_finished()
        assert prediction.error == DIED
        assert await until(service, "READY") == 2.0
        assert [time for time, *_ in spawner.calls] == [2.0]


@pytest.mark.covers("D49")
async def test_asked_again_meanwhile_the_last_call_counts(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with respawning(monkeypatch, slow, echo, **OFF) as (service, _, spawner):
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        service.reload("first", environment={"A": "c"})
        await trio.sleep(1)
        service.reload("second", environment={"A": "d"})
        await prediction.wait_finished()
        await until(service, "READY")
        assert [variables["A"] for _, _, variables in spawner.calls] == ["d"]


async def test_another_model_can_take_the_place(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = FakeWorker()
    async with respawning(monkeypatch, echo, fresh, **OFF) as (service, _, _):
        service.reload("cog.yaml has changed", init=Init("other.py:Runner", "other.py:train"))
        init: Any = await fresh.control_message()
        assert (init.predict_ref, init.train_ref) == ("other.py:Runner", "other.py:train")
        assert service.health().status == "STARTING"


@pytest.mark.parametrize("checkpoints", range(8))
async def test_a_shutdown_meanwhile_starts_nothing(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, checkpoints: int
) -> None:
    async with respawning(monkeypatch, slow, **OFF) as (service, workers, spawner):
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        service.reload("changed")
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        service.shutdown()
        service.reload("too late")
        with trio.fail_after(20):
            await service.wait_stopped()
        assert (prediction.error, prediction.output) == (None, "slow")
        assert spawner.calls == []
        assert workers[0].reaped


async def test_leaving_the_block_meanwhile_ends_everything(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trio.CancelScope() as scope:
        async with respawning(monkeypatch, slow, **OFF) as (service, workers, spawner):
            service.create(NewPrediction())
            await trio.testing.wait_all_tasks_blocked()
            service.reload("changed")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert (workers[0].reaped, spawner.calls) == (True, [])


async def test_a_service_without_a_model_has_nothing_to_start(autojump_clock: Clock) -> None:
    async with open_service(settings=Settings()) as service:
        with pytest.raises(NotReady):
            service.reload("changed")


async def test_several_workers_are_all_replaced(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cog_trio.orchestrator.worker_handle.spawn", Spawner([]))
    async with respawning(monkeypatch, slow, echo, echo, echo, **OFF, workers=2) as (service, workers, spawner):
        await trio.testing.wait_all_tasks_blocked()
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        service.reload("changed")
        await prediction.wait_finished()
        await until(service, "READY")
        await trio.testing.wait_all_tasks_blocked()
        assert [worker.reaped for worker in workers[:2]] == [True, True]
        assert service.statistics().workers == 2
        assert len(spawner.calls) == 3
