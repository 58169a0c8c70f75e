"""How the life of a scripted worker ends, on a fake clock: what ends it, and leaving; exact times."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import (
    ControlResponse,
    DroppedLogs,
    Failed,
    Fatal,
    Log,
    LogLine,
    LogSource,
    OutputChunk,
    PredictionId,
    Ready,
    Shutdown,
    ShuttingDown,
    SlotId,
)
from cog_trio.config.settings import Settings
from cog_trio.orchestrator import deadlines
from cog_trio.orchestrator.control_channel import Event, WorkerGone
from cog_trio.orchestrator.orchestrator import open_orchestrator
from cog_trio.state.status import Blame
from cog_trio.testing.fakes import HALF_FRAME, FakeWorker
from tests.bench import INIT, RETURNED, Bench, opened, outcome_of

# What ends the worker.


@pytest.mark.covers("worker:W2", "worker:W3")
async def test_W2_W3_death_keeps_what_came_before(autojump_clock: trio.testing.MockClock) -> None:
    """A child of the worker holds all descriptors; the worker wrote half a frame when it was killed."""
    async with opened() as bench:
        run, _ = await bench.begin()
        bench.worker.send(OutputChunk(msgspec.Raw(b"1"), 0))
        bench.worker.send(LogLine(LogSource.STDOUT, "last words\n"))
        bench.worker.slots[0].up.put(HALF_FRAME)
        bench.worker.unread = [(LogSource.STDERR, "Segmentation fault\n")]
        bench.worker.exit(-9, closing=False)
        await run.over.wait()
        text = "Worker died: signal 9 (SIGKILL), possibly out of memory"
        assert bench.heard[-2:] == [WorkerGone(text), outcome_of(text)]
        assert run.prediction.logs == "last words\nSegmentation fault\n"
        assert run.prediction._outputs == [msgspec.Raw(b"1")]
        assert trio.current_time() == 0.0
        assert bench.worker.kills >= 1, "its group"


async def test_a_run_that_ended_before_the_death_has_ended_well() -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        bench.worker.finish(predict, b"1")
        bench.worker.exit(1)
        await run.over.wait()
        assert run.outcome == RETURNED


async def test_captured_text_of_no_known_run_is_the_services() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        run, _ = await bench.begin()
        bench.worker.unread = [(LogSource.STDOUT, "whose?\n")]
        bench.worker.exit(1)
        await run.over.wait()
        assert Log(LogSource.STDOUT, "whose?\n") in bench.events
        assert run.prediction.logs == ""


async def test_death_while_idle_and_a_slot_that_was_held(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        held = bench.take()
        bench.worker.exit(3)
        await bench.orchestrator.wait_ended()
        assert bench.heard[-1] == WorkerGone("Worker died: exit code 3")
        assert bench.pool.acquire() is None, "nothing of a dead worker is handed out"
        held.release()
        assert bench.pool.acquire() is None


@pytest.mark.covers("http:W6")
async def test_control_that_closes_without_an_exit(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bench:
        run, _ = await bench.begin()
        await trio.sleep(1)
        bench.worker.wire.up.close()
        await run.over.wait()
        assert trio.current_time() == 2.0
        assert bench.heard[-2:] == [
            WorkerGone("Worker closed its control channel"),
            outcome_of("Worker closed its control channel"),
        ]
        assert bench.worker.status == -9


async def test_control_that_closes_and_then_the_exit(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bench:
        bench.worker.wire.up.close()
        await trio.sleep(0.5)
        bench.worker.exit(7)
        await bench.orchestrator.wait_ended()
        assert bench.orchestrator.cause == "Worker died: exit code 7", "its exit is the better cause"
        assert trio.current_time() == 0.5


@pytest.mark.covers("http:W6")
@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"garbage\n", "Worker broke the protocol: not a message of this channel"),
        (b"half a line", "Worker closed its control channel"),
        (Failed("lost it", SlotId(0), PredictionId("q"), 1), "Worker broke the protocol: Failed names run 1"),
        (Failed("no slot"), "Worker broke the protocol: Failed names no slot"),
        (Ready((SlotId(0),)), "Worker broke the protocol: Ready out of turn"),
        (Fatal("CUDA is gone"), "Worker failed: CUDA is gone"),
        (ShuttingDown(), "Worker shut down unasked"),
    ],
)
async def test_what_breaks_the_control_channel(
    autojump_clock: trio.testing.MockClock, said: ControlResponse | bytes, text: str
) -> None:
    async with opened() as bench:
        run, _ = await bench.begin()
        if isinstance(said, bytes):
            bench.worker.wire.up.put(said)
            if b"half" in said:
                bench.worker.wire.up.close()
        else:
            bench.worker.say(said)
        await run.over.wait()
        lost = bench.heard[-2]
        assert isinstance(lost, WorkerGone)
        assert lost.cause.startswith(text)
        assert run.outcome == outcome_of(lost.cause)
        assert bench.worker.status == -9
        assert trio.current_time() <= 1.0


async def test_logs_of_no_run_go_on_after_ready() -> None:
    async with opened() as bench:
        bench.worker.say(Log(LogSource.STDERR, "late", PredictionId("p")))
        bench.worker.say(DroppedLogs(3, 5000))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.events[-2:] == [Log(LogSource.STDERR, "late", PredictionId("p")), DroppedLogs(3, 5000)]


# Leaving.


async def test_shutdown_of_a_quick_worker(autojump_clock: trio.testing.MockClock) -> None:
    worker, events = FakeWorker(), list[Event]()

    async def script() -> None:
        await worker.set_up()
        await worker.next_control(Shutdown)
        worker.say(ShuttingDown())
        worker.say(Log(LogSource.STDOUT, "atexit says bye\n"))
        await trio.sleep(2)
        worker.exit(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(script)
        async with open_orchestrator(worker, INIT, Settings(), on_event=events.append):
            pass
    assert trio.current_time() == 2.0
    assert events[-1] == Log(LogSource.STDOUT, "atexit says bye\n"), "heard to the end, and no WorkerGone"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_shutdown_of_a_deaf_worker(autojump_clock: trio.testing.MockClock, cancelled: bool) -> None:
    """It is killed when its farewell is over, also when the body was cancelled; what ran in it fails with our cause."""
    worker = FakeWorker()
    bench = Bench(worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.set_up)
        with trio.CancelScope() as scope:
            async with open_orchestrator(
                worker, INIT, Settings(), on_event=bench.heard.append, pool=bench.pool
            ) as bench.orchestrator:
                run, _ = await bench.begin()
                if cancelled:
                    scope.cancel()
        await run.over.wait()
    assert trio.current_time() == 10.0
    assert run.outcome == outcome_of("Worker was shut down", Blame.SERVICE_END)
    assert not any(isinstance(event, WorkerGone) for event in bench.heard)
    assert (worker.status, worker.reaped) == (-9, True)


@pytest.mark.parametrize(("grace", "seconds"), [(0.0, 2.0), (1.0, 2.0), (4.0, 4.0), (30.0, 10.0)])
async def test_the_farewell_of_a_worker_follows_the_drain_grace(
    autojump_clock: trio.testing.MockClock, grace: float, seconds: float
) -> None:
    """D30: within the grace. An interpreter needs a moment to end, though, and nobody waits for one for ever."""
    worker = FakeWorker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.set_up)
        async with open_orchestrator(worker, INIT, Settings(drain_grace=grace), on_event=list[Event]().append):
            pass
    assert (trio.current_time(), worker.status) == (seconds, -9)


async def test_kill_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    worker = FakeWorker()
    bench = Bench(worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.set_up)
        async with open_orchestrator(
            worker, INIT, Settings(), on_event=bench.heard.append, pool=bench.pool
        ) as bench.orchestrator:
            run, _ = await bench.begin()
            bench.orchestrator.kill()
            bench.orchestrator.kill()
            await run.over.wait()
    assert (trio.current_time(), run.outcome) == (0.0, outcome_of("Worker was shut down", Blame.SERVICE_END))
    assert not any(isinstance(event, WorkerGone) for event in bench.heard)


async def test_an_error_of_the_body_still_buries_the_worker() -> None:
    worker = FakeWorker()

    async def fail() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.set_up)
            async with open_orchestrator(worker, INIT, Settings(), on_event=lambda event: None) as orchestrator:
                orchestrator.kill()
                raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await fail()
    assert worker.reaped


async def test_a_worker_that_can_not_be_killed(autojump_clock: trio.testing.MockClock) -> None:
    class Stuck(FakeWorker):
        def kill(self) -> None:
            self.kills += 1

    worker = Stuck()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.set_up)
        async with open_orchestrator(worker, INIT, Settings(), on_event=lambda event: None) as orchestrator:
            orchestrator.kill()
            await orchestrator.wait_ended()
            assert trio.current_time() == 5.0
    assert not worker.reaped


@pytest.mark.covers("D14")
def test_each_cause_is_one_line() -> None:
    texts = [value for name, value in vars(deadlines).items() if name.isupper() and isinstance(value, str)]
    assert len(texts) > 10
    assert all("\n" not in text and text[0].isupper() for text in texts)
