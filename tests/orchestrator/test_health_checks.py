"""The user's health check as asked of a worker: one on its way, one answer for all, never a wait beyond its limit."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Healthcheck, HealthcheckResult, HealthcheckStatus
from cog_trio.orchestrator.health_checks import HealthChecks, WorkerLost
from cog_trio.testing.fakes import FakeWorker
from tests.bench import opened

HEALTHY = HealthcheckStatus.HEALTHY


class Asker:
    """Asks, and keeps what comes of it."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.got: list[HealthcheckResult | str] = []
        self.checks = HealthChecks(lambda message: self.sent.append(message.id))

    async def ask(self) -> None:
        try:
            self.got.append(await self.checks.ask())
        except WorkerLost as error:
            self.got.append(str(error))


async def test_all_who_ask_share_one_answer(autojump_clock: trio.testing.MockClock) -> None:
    asker = Asker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.ask)
        nursery.start_soon(asker.ask)
        await trio.sleep(3)
        nursery.start_soon(asker.ask)
        await trio.testing.wait_all_tasks_blocked()
        asker.checks.answer(HealthcheckResult("hc_1", HEALTHY))
    assert asker.sent == ["hc_1"]
    assert asker.got == [HealthcheckResult("hc_1", HEALTHY)] * 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.ask)
        await trio.testing.wait_all_tasks_blocked()
        asker.checks.answer(HealthcheckResult("hc_2", HEALTHY))
    assert asker.sent == ["hc_1", "hc_2"]


async def test_one_who_leaves_does_not_end_the_check() -> None:
    asker = Asker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.ask)
        with trio.CancelScope() as scope:
            scope.cancel()
            await asker.ask()
        await trio.testing.wait_all_tasks_blocked()
        asker.checks.answer(HealthcheckResult("hc_1", HEALTHY))
    assert asker.got == [HealthcheckResult("hc_1", HEALTHY)]


async def test_a_check_that_hangs_says_so_at_once_to_all_who_come_later(autojump_clock: trio.testing.MockClock) -> None:
    asker = Asker()
    await asker.ask()
    assert trio.current_time() == 10.0
    await asker.ask()
    assert trio.current_time() == 10.0
    timed_out = HealthcheckResult("hc_1", HealthcheckStatus.UNHEALTHY, "healthcheck timed out")
    assert (asker.got, asker.sent) == ([timed_out, timed_out], ["hc_1"])
    asker.checks.answer(HealthcheckResult("hc_0", HEALTHY))
    asker.checks.answer(HealthcheckResult("hc_1", HEALTHY))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.ask)
        await trio.testing.wait_all_tasks_blocked()
        asker.checks.answer(HealthcheckResult("hc_2", HEALTHY))
    assert asker.got[-1] == HealthcheckResult("hc_2", HEALTHY)


async def test_a_worker_that_ends(autojump_clock: trio.testing.MockClock) -> None:
    asker = Asker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.ask)
        await trio.testing.wait_all_tasks_blocked()
        asker.checks.lose("Worker died: exit code 1")
    await asker.ask()
    assert asker.got == ["Worker died: exit code 1"] * 2
    assert trio.current_time() == 0.0


@pytest.mark.covers("http:W28", "worker:W65")
async def test_W65_without_a_check_the_worker_is_not_asked() -> None:
    async with opened() as bench:
        assert (await bench.orchestrator.healthcheck()).status is HEALTHY
        assert not bench.worker.wire.down.data


@pytest.mark.covers("http:W27", "worker:W32")
async def test_W32_a_check_goes_beside_the_runs(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(healthcheck=True)) as bench, trio.open_nursery() as nursery:

        async def ask() -> None:
            unhealthy = await bench.orchestrator.healthcheck()
            assert unhealthy.error == "no"

        nursery.start_soon(ask)
        check = await bench.worker.next_control(Healthcheck)
        run, predict = await bench.begin()
        bench.worker.finish(predict)
        await run.over.wait()
        bench.worker.say(HealthcheckResult(check.id, HealthcheckStatus.UNHEALTHY, "no"))


async def test_a_check_of_a_worker_that_dies() -> None:
    async with opened(FakeWorker(healthcheck=True)) as bench, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(WorkerLost, match=r"^Worker died: exit code 1$"):
                await bench.orchestrator.healthcheck()

        nursery.start_soon(ask)
        await bench.worker.next_control(Healthcheck)
        bench.worker.exit(1)
        await bench.orchestrator.wait_ended()
        await ask()
