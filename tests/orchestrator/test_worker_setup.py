"""Setting a worker up, scripted, on a fake clock: what is told, and each way to fail; exact times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import (
    MAX_FRAME,
    ControlResponse,
    Described,
    Done,
    Failed,
    Fatal,
    Idle,
    Init,
    Log,
    LogLevel,
    LogSource,
    PredictionId,
    ProtocolVersion,
    Ready,
    ShuttingDown,
    SlotId,
    WorkerLog,
)
from cog_trio.config.settings import Settings
from cog_trio.orchestrator.control_channel import Event
from cog_trio.orchestrator.orchestrator import NeverReady, Orchestrator, open_orchestrator
from cog_trio.testing.fakes import FakeWorker
from tests.bench import INIT, opened


async def enter(manager: AbstractAsyncContextManager[Orchestrator]) -> None:
    async with manager:
        raise AssertionError("it became ready")


async def setup_error(
    script: Callable[[FakeWorker], Awaitable[None]], worker: FakeWorker | None = None, **settings: Any
) -> tuple[str, list[Event]]:
    """How setup fails with this script of the worker."""
    worker = worker or FakeWorker()
    events: list[Event] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(script, worker)
        with pytest.raises(NeverReady) as caught:
            await enter(open_orchestrator(worker, INIT, Settings(**settings), on_event=events.append))
        nursery.cancel_scope.cancel()
    assert worker.reaped
    return str(caught.value), events


async def test_setup_is_told_in_order() -> None:
    async def script(worker: FakeWorker) -> None:
        assert await worker.next_control(Init) == INIT
        worker.wire.up.put(b"printed too early\xff\n42\n")
        worker.describe()
        worker.say(Log(LogSource.STDOUT, "loading\n"))
        worker.say(WorkerLog("cog_trio", LogLevel.WARNING, "hm"))
        worker.greet()
        await trio.testing.wait_all_tasks_blocked()
        worker.ready()
        worker.say(Log(LogSource.STDERR, "later\n"))

    worker, events = FakeWorker(), list[Event]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(script, worker)
        async with open_orchestrator(worker, INIT, Settings(), on_event=events.append) as orchestrator:
            assert orchestrator.available == 1
            assert orchestrator.described.concurrency == 1
            assert orchestrator.cause is None
            await trio.testing.wait_all_tasks_blocked()
            worker.exit(0)
    described = events.pop(2)
    assert isinstance(described, Described)
    assert events == [
        Log(LogSource.STDOUT, "printed too early\ufffd\n"),
        Log(LogSource.STDOUT, "42\n"),
        Log(LogSource.STDOUT, "loading\n"),
        WorkerLog("cog_trio", LogLevel.WARNING, "hm"),
        Ready((SlotId(0),)),
        Log(LogSource.STDERR, "later\n"),
    ]


async def test_more_slots_follow_over_slot_0() -> None:
    async with opened(FakeWorker(concurrency=5)) as bench:
        assert bench.pool.available == 5
        seen = set()
        for number in range(5):
            run, predict = await bench.begin(f"p{number}", slot=number)
            assert (predict.slot, predict.id, predict.run) == (number, run.prediction.id, number + 1)
            seen.add(predict.slot)
        assert bench.pool.acquire() is None
        assert seen == set(range(5))


async def never(worker: FakeWorker) -> None:
    await worker.next_control(Init)
    worker.describe()


@pytest.mark.covers("http:W10", "worker:W5")
async def test_W5_setup_timeout_kills_then_reports(autojump_clock: trio.testing.MockClock) -> None:
    worker = FakeWorker()
    cause, _ = await setup_error(never, worker, setup_timeout=3.0)
    assert trio.current_time() == 3.0
    assert cause == "Setup timed out after 3 s"
    assert (worker.status, worker.kills > 0) == (-9, True)


@pytest.mark.covers("http:W7", "worker:W4")
async def test_W4_setup_timeout_counts_from_the_spawn(autojump_clock: trio.testing.MockClock) -> None:
    worker = FakeWorker()
    worker.age = 0.75
    await setup_error(never, worker, setup_timeout=3.0)
    assert trio.current_time() == 2.25


async def test_setup_timeout_ends_with_ready(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(setup_timeout=3.0) as bench:
        await trio.sleep(10)
        assert bench.orchestrator.cause is None


@pytest.mark.covers("worker:W4")
@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "Worker died: exit code 0"),
        (3, "Worker died: exit code 3"),
        (-9, "Worker died: signal 9 (SIGKILL), possibly out of memory"),
        (-11, "Worker died: signal 11 (SIGSEGV)"),
    ],
)
async def test_W4_worker_that_exits_before_ready(
    autojump_clock: trio.testing.MockClock, status: int, text: str
) -> None:
    async def script(worker: FakeWorker) -> None:
        worker.unread = [(LogSource.STDERR, "No module named x\n")]
        worker.exit(status)

    assert await setup_error(script) == (text, [Log(LogSource.STDERR, "No module named x\n")])
    assert trio.current_time() == 0.0


async def test_failed_setup_keeps_its_logs(autojump_clock: trio.testing.MockClock) -> None:
    """The worker says all in one go and ends by itself: nothing of it is lost, and it is not killed for it."""

    async def script(worker: FakeWorker) -> None:
        await worker.next_control(Init)
        worker.describe()
        worker.say(Log(LogSource.STDERR, "Traceback\n"))
        worker.say(Failed("ValueError: boom"))
        worker.exit(0)

    cause, events = await setup_error(script)
    assert cause == "ValueError: boom"
    assert events[1:] == [Log(LogSource.STDERR, "Traceback\n")]
    assert trio.current_time() == 0.0


async def test_failed_setup_that_does_not_exit_is_killed(autojump_clock: trio.testing.MockClock) -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.next_control(Init)
        worker.say(Failed("ValueError: boom"))

    assert (await setup_error(script))[0] == "ValueError: boom"
    assert trio.current_time() == 1.0


def says(*messages: ControlResponse | ProtocolVersion | Done | bytes) -> Callable[[FakeWorker], Awaitable[None]]:
    async def script(worker: FakeWorker) -> None:
        await worker.next_control(Init)
        for message in messages:
            if isinstance(message, bytes):
                worker.wire.up.put(message)
            elif isinstance(message, ProtocolVersion | Done):
                worker.send(message)
            else:
                worker.say(message)

    return script


P = PredictionId("p")
S0, S1 = SlotId(0), SlotId(1)
DESCRIBED = Described(msgspec.Raw(b"{}"), None, "sync", 1, False, False, {}, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (says(ProtocolVersion(1)), "Worker speaks version 1 of the protocol, not version 2"),
        (says(b'{"type":"nonsense"}\n'), "Worker broke the protocol: not a message of this channel: "),
        (says(Ready((SlotId(0),))), "Worker broke the protocol: Ready out of turn"),
        (says(DESCRIBED, DESCRIBED), "Worker broke the protocol: Described twice, or without slots"),
        (says(DESCRIBED, ProtocolVersion(2), Ready((S1,))), "Worker broke the protocol: Ready names the slots (1,)"),
        (says(DESCRIBED, Done(Idle(S0, P, 1))), "Worker broke the protocol: Done on slot 0, where no run is open"),
        (says(Fatal("no memory")), "Worker failed: no memory"),
        (says(ShuttingDown()), "Worker shut down unasked"),
        (says(b"x" * (MAX_FRAME + 1)), "Worker broke the protocol: a control line of"),
    ],
)  # fmt: skip
async def test_setup_that_breaks_the_rules(
    autojump_clock: trio.testing.MockClock, script: Callable[[FakeWorker], Awaitable[None]], text: str
) -> None:
    cause, _ = await setup_error(script)
    assert cause.startswith(text)
    assert trio.current_time() <= 1.0


async def test_slots_that_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    class Poor(FakeWorker):
        async def more_slots(self, count: int) -> list[trio.abc.Stream]:
            raise OSError(24, "Too many open files")

    assert "Too many open files" in (await setup_error(never, Poor(concurrency=2)))[0]


async def test_cancelled_setup_kills_and_reaps(autojump_clock: trio.testing.MockClock) -> None:
    worker = FakeWorker()
    with trio.move_on_after(2) as limit:
        async with open_orchestrator(worker, INIT, Settings(), on_event=lambda event: None):
            raise AssertionError("it became ready")
    assert limit.cancelled_caught
    assert (trio.current_time(), worker.status, worker.reaped) == (2.0, -9, True)


async def test_cancel_in_the_very_step_of_ready(autojump_clock: trio.testing.MockClock) -> None:
    """The shield must not go up when the one who waits has been cancelled: nobody would take it down."""
    worker = FakeWorker()
    with trio.CancelScope() as scope:

        def cut(event: Event) -> None:
            if isinstance(event, Log):
                scope.cancel()

        async def script() -> None:
            await worker.next_control(Init)
            worker.describe()
            worker.greet()
            await trio.testing.wait_all_tasks_blocked()
            worker.say(Log(LogSource.STDOUT, "about to be ready"))
            worker.ready()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(script)
            async with open_orchestrator(worker, INIT, Settings(), on_event=cut):
                await trio.sleep_forever()
    assert scope.cancelled_caught
    assert (worker.reaped, trio.current_time() < 11) == (True, True)


async def test_describe_stops_after_described(autojump_clock: trio.testing.MockClock) -> None:
    worker, events = FakeWorker(), list[Event]()

    async def script() -> None:
        assert (await worker.next_control(Init)).describe
        worker.describe()
        worker.exit(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(script)
        init = Init("predict.py", describe=True)
        async with open_orchestrator(worker, init, Settings(setup_timeout=3), on_event=events.append) as orchestrator:
            assert orchestrator.described is events[0]
            assert orchestrator.capacity == 0
            await trio.sleep(100)
    assert len(events) == 1, "its end was asked for: no Lost"
