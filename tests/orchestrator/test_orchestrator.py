"""Runs on a scripted worker and a fake clock: each order, cancels, files, what breaks a slot; exact times."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import (
    MAX_FRAME,
    Cancel,
    Cancelled,
    Done,
    Failed,
    Fetching,
    FilesTaken,
    Idle,
    LogLine,
    LogSource,
    Metric,
    MetricMode,
    OutputChunk,
    Predict,
    PredictionId,
    ProtocolVersion,
    RunCancelled,
    RunFailed,
    SlotId,
    SlotResponse,
)
from cog_trio.orchestrator.control_channel import TextLost
from cog_trio.state.prediction import Fact, Outcome
from cog_trio.testing.fakes import GARBAGE, HALF_FRAME, FakeWorker
from tests.bench import CUT, RETURNED, a_file, opened, outcome_of

P = PredictionId("p")
S0, S1 = SlotId(0), SlotId(1)

# A run.


async def test_a_run_from_predict_to_idle() -> None:
    async with opened() as bench:
        run, predict = await bench.begin(input=b'{"n": 1 }', context={"who": "me"})
        name = (predict.slot, predict.id, predict.run)
        assert name == (0, "p", 1)
        assert (bytes(predict.input), predict.output_dir, predict.context) == (b'{"n": 1 }', "dir", {"who": "me"})  # type: ignore[arg-type]
        assert run.prediction.status.value == "processing"
        worker = bench.worker
        worker.send(Fetching(5, 10))
        worker.send(LogLine(LogSource.STDOUT, "hello\n"))
        worker.send(OutputChunk(msgspec.Raw(b'"a"'), 0))
        worker.send(OutputChunk(msgspec.Raw(b'"b"'), 1))
        worker.send(Metric("m", msgspec.Raw(b"3"), MetricMode.REPLACE))
        worker.send(Done(*name, 0.5, is_stream=True))
        await trio.testing.wait_all_tasks_blocked()
        assert not run.over.is_set(), "the slot is not free yet"
        worker.say(Idle(*name))
        await run.over.wait()
        assert run.outcome == Outcome(Fact.RETURNED, is_stream=True)
        assert (run.prediction.output, run.prediction.logs) == (["a", "b"], "hello\n")
        assert run.prediction.fetched == (5, 10)
        assert run.prediction.metrics == {"m": 3}
        assert not run.prediction.terminal, "the terminal step is the service's"
        assert bench.orchestrator.pool.available == 1


@pytest.mark.parametrize("idle_first", [True, False])
async def test_the_order_of_terminal_and_idle_never_matters(idle_first: bool) -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        name = (predict.slot, predict.id, predict.run)
        if idle_first:
            bench.worker.say(Idle(*name))
            await trio.testing.wait_all_tasks_blocked()
            assert not run.over.is_set()
            assert bench.orchestrator.pool.available == 0
            bench.worker.send(RunFailed(*name, "ValueError: no"))
        else:
            bench.worker.send(RunFailed(*name, "ValueError: no"))
            await trio.testing.wait_all_tasks_blocked()
            bench.worker.say(Idle(*name))
        await run.over.wait()
        assert run.outcome == Outcome(Fact.RAISED, "ValueError: no")
        assert bench.orchestrator.pool.available == 1


@pytest.mark.parametrize("idle_first", [True, False])
async def test_idle_may_ride_with_the_terminal_frame(idle_first: bool) -> None:
    async with opened() as bench:
        for number in range(1, 4):
            run, predict = await bench.begin(f"p{number}")
            name = (predict.slot, predict.id, predict.run)
            for frame in (Idle(*name), Done(*name, 0.5))[:: 1 if idle_first else -1]:
                bench.worker.send(frame)
            await run.over.wait()
            assert run.outcome == Outcome(Fact.RETURNED)
            assert bench.orchestrator.pool.available == 1


@pytest.mark.covers("worker:W18")
async def test_W18_an_idle_that_rides_names_its_own_slot_and_run() -> None:
    async with opened(FakeWorker(concurrency=3)) as bench:
        for held, (slot, number) in enumerate(((S1, 1), (S1, 7))):
            run, predict = await bench.begin(slot=held)
            bench.worker.send(Idle(slot, predict.id, number), slot=predict.slot)
            await run.over.wait()
            assert run.outcome is not None
            assert run.outcome.ours
            assert "broke the protocol" in (run.outcome.error or "")


@pytest.mark.covers("worker:W14")
async def test_W14_the_slot_is_free_when_the_run_returns() -> None:
    """1,000 runs back to back on one slot."""
    async with opened() as bench:
        for number in range(1, 1001):
            run, predict = await bench.begin(f"p{number}")
            assert predict.run == number, "run numbers increase"
            bench.worker.finish(predict, b"1")
            await run.over.wait()
            assert run.outcome == RETURNED


async def test_runs_on_many_slots_do_not_mix() -> None:
    async with opened(FakeWorker(concurrency=3)) as bench:
        runs = [await bench.begin(f"p{slot}", slot=slot) for slot in range(3)]
        for _, predict in reversed(runs):
            bench.worker.finish(predict, f'"{predict.id}"'.encode())
        for run, predict in runs:
            await run.over.wait()
            assert run.prediction.output == predict.id


async def test_a_stalled_slot_does_not_hold_the_others() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bench.worker.slots[0].down.stalled = True
        stuck = bench.start("stuck", b'"' + b"x" * 100_000 + b'"')
        run, predict = await bench.begin("quick", slot=1)
        bench.worker.finish(predict)
        await run.over.wait()
        assert not stuck.over.is_set()
        bench.worker.slots[0].down.resume()
        bench.worker.finish(await bench.worker.next_request(Predict, 0))
        await stuck.over.wait()
        assert stuck.outcome == RETURNED


@pytest.mark.covers("D22")
async def test_D22_no_idle_within_5_s_poisons(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        run, predict = await bench.begin()
        bench.worker.send(Done(predict.slot, predict.id, predict.run, 0.0))
        await run.over.wait()
        assert trio.current_time() == 5.0
        assert run.outcome == RETURNED, "what it did stands"
        statistics = bench.orchestrator.pool.statistics()
        assert (statistics.capacity, statistics.available) == (1, 1)
        assert [poisoned.reason for poisoned in statistics.poisoned] == ["Worker did not free slot 0 within 5 s"]
        bench.worker.say(Idle(predict.slot, predict.id, predict.run))
        await trio.sleep(1)
        assert bench.orchestrator.pool.available == 1, "a late proof changes nothing"
        assert bench.orchestrator.cause is None


async def test_a_predict_that_can_not_be_written_gives_the_permit_back() -> None:
    async with opened() as bench:
        run = bench.start(input=b'"' + b"x" * MAX_FRAME + b'"')
        await run.over.wait()
        assert run.outcome is not None
        assert (run.outcome.fact, run.outcome.ours) == (Fact.RAISED, True)
        assert bench.orchestrator.pool.available == 1


# Cancelling.


async def test_cut_before_anything_is_written() -> None:
    async with opened() as bench:
        run = bench.start()
        run.prediction.cancel()
        await run.over.wait()
        assert run.outcome == CUT
        assert run.prediction.status.value == "starting"
        assert bench.orchestrator.pool.available == 1
        await trio.testing.wait_all_tasks_blocked()
        assert not bench.worker.slots[0].down.data


@pytest.mark.covers("D28")
async def test_D28_canceled_only_when_the_work_has_stopped(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        name = (predict.slot, predict.id, predict.run)
        run.prediction.cancel()
        run.prediction.cancel()
        assert await bench.worker.next_control(Cancel) == Cancel(*name)
        await trio.sleep(1000)
        assert not run.over.is_set()
        bench.worker.send(LogLine(LogSource.STDOUT, "cleaning up\n"))
        bench.worker.send(RunCancelled(*name))
        bench.worker.say(Idle(*name))
        await run.over.wait()
        assert (run.outcome, run.prediction.logs) == (CUT, "cleaning up\n")
        assert (trio.current_time(), bench.orchestrator.pool.available) == (1000.0, 1)
        assert not bench.worker.wire.down.data, "one Cancel a run"


async def test_a_run_that_ends_well_in_spite_of_a_cancel_is_told_so() -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        run.prediction.cancel()
        await bench.worker.next_control(Cancel)
        bench.worker.finish(predict)
        await run.over.wait()
        assert run.outcome == RETURNED, "what the worker says; the service decides"


@pytest.mark.covers("worker:W25")
async def test_W25_cut_before_the_model_saw_it() -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        run.prediction.cancel()
        await bench.worker.next_control(Cancel)
        bench.worker.say(Cancelled(predict.slot, predict.id, predict.run))
        bench.worker.say(Idle(predict.slot, predict.id, predict.run))
        await run.over.wait()
        assert run.outcome == CUT
        assert bench.orchestrator.pool.available == 1


async def test_cancel_is_heard_while_a_large_predict_is_still_being_written() -> None:
    async with opened() as bench:
        bench.worker.slots[0].down.stalled = True
        run = bench.start(input=b'"' + b"x" * 3_000_000 + b'"')
        await trio.testing.wait_all_tasks_blocked()
        run.prediction.cancel()
        cancel = await bench.worker.next_control(Cancel)
        assert not run.over.is_set()
        bench.worker.slots[0].down.resume()
        predict = await bench.worker.next_request(Predict)
        assert predict.run == cancel.run, "the frame is whole"
        bench.worker.say(Cancelled(predict.slot, predict.id, predict.run))
        bench.worker.say(Idle(predict.slot, predict.id, predict.run))
        await run.over.wait()
        assert (run.outcome, bench.orchestrator.pool.available) == (CUT, 1)


async def test_200_immediate_cancels() -> None:
    async with opened() as bench:
        for number in range(200):
            run, predict = await bench.begin(f"p{number}")
            run.prediction.cancel()
            cancel = await bench.worker.next_control(Cancel)
            assert (cancel.id, cancel.run) == (predict.id, predict.run)
            bench.worker.send(RunCancelled(predict.slot, predict.id, predict.run))
            bench.worker.say(Idle(predict.slot, predict.id, predict.run))
            await run.over.wait()
            assert run.outcome == CUT


async def test_cancel_grace_kills_the_worker(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2), cancel_grace=4.0) as bench:
        deaf, _ = await bench.begin("deaf")
        other, _ = await bench.begin("other", slot=1)
        await trio.sleep(1)
        deaf.prediction.cancel()
        await bench.orchestrator.wait_ended()
        assert trio.current_time() == 5.0
        await deaf.over.wait()
        await other.over.wait()
        text = "Worker killed: a canceled prediction did not stop within 4 s"
        assert bench.heard[-3:] == [TextLost(text), outcome_of(text), outcome_of(text)]
        assert bench.orchestrator.cause == text


async def test_cancel_grace_ends_with_the_run(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(cancel_grace=4.0) as bench:
        run, predict = await bench.begin()
        run.prediction.cancel()
        await trio.sleep(3)
        bench.worker.finish(predict)
        await run.over.wait()
        await trio.sleep(10)
        assert bench.orchestrator.cause is None


# Files.


@pytest.mark.covers("worker:W67")
async def test_W67_files_taken_then_idle(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        bench.worker.send(a_file())
        bench.worker.finish_without_idle(predict)
        await trio.sleep(60)  # reading it may take its time
        assert run.files.announced == ["/tmp/x.png"]
        assert not bench.worker.slots[0].down.data
        run.files.taken.set()
        assert await bench.worker.next_request(FilesTaken) == FilesTaken(predict.slot, predict.id, predict.run)
        assert not run.over.is_set()
        await trio.sleep(4.9)
        bench.worker.say(Idle(predict.slot, predict.id, predict.run))
        await run.over.wait()
        assert (run.outcome, bench.orchestrator.pool.available) == (RETURNED, 1)


async def test_cancelled_while_files_are_taken_settles_all_the_same() -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        bench.worker.send(a_file())
        bench.worker.finish_without_idle(predict)
        await trio.testing.wait_all_tasks_blocked()
        run.prediction.cancel()
        await bench.worker.next_request(FilesTaken)
        bench.worker.say(Idle(predict.slot, predict.id, predict.run))
        await run.over.wait()
        assert run.outcome is None, "Cancelled came out"
        assert bench.orchestrator.pool.available == 1


@pytest.mark.covers("worker:W51")
async def test_W51_a_value_with_a_file_inside() -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        bench.worker.send(VALUE)
        bench.worker.send(a_file(place=1))
        bench.worker.send(a_file(1))
        bench.worker.finish_without_idle(predict)
        await trio.testing.wait_all_tasks_blocked()
        assert run.files.announced == ["", "/tmp/x.png", "/tmp/x.png"]
        run.files.taken.set()
        await bench.worker.next_request(FilesTaken)
        bench.worker.say(Idle(predict.slot, predict.id, predict.run))
        await run.over.wait()
        assert run.outcome == RETURNED


# What breaks one slot.

VALUE = OutputChunk(msgspec.Raw(b"[null]"), 0, 1)


@pytest.mark.covers("worker:W16")
@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([GARBAGE], "not a message of this channel"),
        ([b"\x7f\xff\xff\xff"], "over the limit"),
        ([Done(S0, P, 2, 0.0)], "Done names run 2 of slot 0, but run 1 of slot 0 is open"),
        ([RunFailed(S1, P, 1, "")], "RunFailed names run 1 of slot 1, but run 1 of slot 0 is open"),
        ([RunCancelled(S0, PredictionId("q"), 1)], "RunCancelled names run 1"),
        ([OutputChunk(msgspec.Raw(b"1"), 1)], "output 1 came where output 0 is due"),
        ([a_file(3)], "output 3 came where output 0 is due"),
        ([a_file(place=1)], "a file inside output 0, which has room for none"),
        ([VALUE, Done(S0, P, 1, 0.0)], "Done where a file inside output 0 is due"),
        ([VALUE, a_file(1)], "FileOutput where a file inside output 0 is due"),
        ([VALUE, a_file(1, place=1)], "FileOutput where a file inside output 0 is due"),
        ([VALUE, a_file(0, place=1), a_file(0, place=6)], "a file inside output 0, which has room for none"),
        ([ProtocolVersion(1)], "ProtocolVersion in the middle of a run"),
    ],
)  # fmt: skip
async def test_W16_a_bad_frame_costs_its_slot_only(frames: list[SlotResponse | bytes], text: str) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bad, _ = await bench.begin()
        bad.files.taken.set()
        good, predict = await bench.begin("good", slot=1)
        bench.worker.send(OutputChunk(msgspec.Raw(b"0"), 0), 1)
        for frame in frames:
            if isinstance(frame, bytes):
                bench.worker.slots[0].up.put(frame)
            else:
                bench.worker.send(frame)
        await bad.over.wait()
        assert bad.outcome is not None
        assert (bad.outcome.fact, bad.outcome.ours) == (Fact.RAISED, True)
        assert bad.outcome.error is not None
        assert bad.outcome.error.startswith("Worker broke the protocol: ")
        assert text in bad.outcome.error
        assert (await bench.worker.next_control(Cancel)).run == 1, "nobody wants the rest of it"
        bench.worker.send(Done(predict.slot, predict.id, predict.run, 0.0), 1)
        bench.worker.say(Idle(predict.slot, predict.id, predict.run))
        await good.over.wait()
        assert (good.outcome, good.prediction.output) == (RETURNED, 0)
        assert bench.orchestrator.pool.statistics().capacity == 1
        assert bench.orchestrator.cause is None


async def test_the_last_slot_takes_the_worker_with_it(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bench:
        run, _ = await bench.begin()
        bench.worker.slots[0].up.put(GARBAGE)
        await run.over.wait()
        lost, outcome = bench.heard[-2:]
        assert isinstance(lost, TextLost)
        assert lost.cause.startswith("Worker has no usable slot left: Worker broke the protocol: ")
        assert outcome == run.outcome, "and it was failed after TextLost was said"
        await bench.orchestrator.wait_ended()
        assert (bench.worker.status, trio.current_time()) == (-9, 0.0)


async def test_a_frame_after_the_end_leaves_the_outcome(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        run, predict = await bench.begin()
        bench.worker.send(Done(predict.slot, predict.id, predict.run, 0.0))
        bench.worker.send(LogLine(LogSource.STDOUT, "late"))
        await run.over.wait()
        assert (run.outcome, run.prediction.logs, trio.current_time()) == (RETURNED, "", 0.0)
        assert bench.orchestrator.pool.capacity == 1


async def test_a_frame_on_an_idle_slot_poisons_it() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bench.worker.send(LogLine(LogSource.STDOUT, "who?"))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.orchestrator.pool.statistics().available == 1


@pytest.mark.covers("worker:W17")
@pytest.mark.parametrize("half", [b"", HALF_FRAME])
async def test_W17_a_slot_that_closes_without_a_death(autojump_clock: trio.testing.MockClock, half: bytes) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        run, _ = await bench.begin()
        bench.worker.slots[0].up.put(half)
        bench.worker.slots[0].up.close()
        await run.over.wait()
        assert run.outcome == outcome_of("Worker closed the socket of slot 0")
        assert trio.current_time() == 1.0
        assert bench.orchestrator.pool.capacity == 1


async def test_a_slot_that_can_not_be_written(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bench.worker.slots[0].down.close()
        run = bench.start()
        await run.over.wait()
        assert run.outcome == outcome_of("Worker closed the socket of slot 0")
        assert bench.orchestrator.pool.capacity == 1


async def test_an_idle_slot_that_is_not_read(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bench.worker.slots[0].down.stalled = True
        run = bench.start()
        await run.over.wait()
        assert run.outcome == outcome_of("Worker does not read slot 0")
        assert trio.current_time() == 5.0


async def test_failed_on_control_fails_the_run_and_poisons() -> None:
    async with opened(FakeWorker(concurrency=3)) as bench:
        run, predict = await bench.begin()
        bench.worker.say(Failed("RuntimeError: lost it", predict.slot, predict.id, predict.run))
        await run.over.wait()
        assert run.outcome == outcome_of("RuntimeError: lost it")
        bench.worker.say(Failed("RuntimeError: idle", SlotId(1)))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.orchestrator.pool.statistics().capacity == 1
