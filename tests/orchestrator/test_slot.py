"""Runs on a scripted worker and a fake clock: each order, cancels, files, what breaks a slot; exact times."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.codec import FrameTooLarge
from cog_trio.bridge.protocol import (
    MAX_FRAME,
    Cancel,
    Done,
    Failed,
    Fetching,
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
from cog_trio.orchestrator.control_channel import WorkerGone
from cog_trio.orchestrator.permits import SlotState
from cog_trio.state.status import Fact, Outcome
from cog_trio.testing.fakes import GARBAGE, HALF_FRAME, FakeWorker, proof_of
from tests.bench import CUT, RETURNED, Flight, a_file, opened, outcome_of

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
        worker.send(Done(proof_of(predict), predict_time=0.5, is_stream=True))
        await run.over.wait()
        assert run.outcome == Outcome(Fact.RETURNED, is_stream=True)
        assert (run.prediction.output, run.prediction.logs) == (["a", "b"], "hello\n")
        assert run.prediction.fetched == (5, 10)
        assert run.prediction.metrics == {"m": 3}
        assert not run.prediction.terminal, "the terminal step is the service's"
        assert bench.pool.available == 1


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
async def test_a_predict_that_is_too_large_leaves_the_slot_held() -> None:
    async with opened() as bench:
        slot = bench.take()
        with pytest.raises(FrameTooLarge):
            slot.start(Flight(bench, bench.new_prediction(), b'"' + b"x" * MAX_FRAME + b'"').run)
        assert slot.state is SlotState.TAKEN
        slot.release()
        run, predict = await bench.begin()
        bench.worker.finish(predict)
        await run.over.wait()
        assert run.outcome == RETURNED


# Cancelling.


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
        bench.worker.send(RunCancelled(proof_of(predict)))
        await run.over.wait()
        assert (run.outcome, run.prediction.logs) == (CUT, "cleaning up\n")
        assert (trio.current_time(), bench.pool.available) == (1000.0, 1)
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
        bench.worker.send(RunCancelled(proof_of(predict)))
        await run.over.wait()
        assert run.outcome == CUT
        assert bench.pool.available == 1


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
        bench.worker.send(RunCancelled(proof_of(predict)))
        await run.over.wait()
        assert (run.outcome, bench.pool.available) == (CUT, 1)


async def test_200_immediate_cancels() -> None:
    async with opened() as bench:
        for number in range(200):
            run, predict = await bench.begin(f"p{number}")
            run.prediction.cancel()
            cancel = await bench.worker.next_control(Cancel)
            assert (cancel.id, cancel.run) == (predict.id, predict.run)
            bench.worker.send(RunCancelled(proof_of(predict)))
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
        assert bench.heard[-3:] == [WorkerGone(text), outcome_of(text), outcome_of(text)]
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
async def test_a_run_with_files_holds_its_slot_until_they_are_read(autojump_clock: trio.testing.MockClock) -> None:
    """The model may overwrite in its next run what it has returned."""
    async with opened() as bench:
        run, predict = await bench.begin()
        bench.worker.send(a_file())
        bench.worker.finish(predict)
        await run.over.wait()
        await trio.sleep(60)
        assert run.files.announced == ["/tmp/x.png"]
        assert (run.outcome, bench.pool.available) == (RETURNED, 0)
        run.release()
        assert bench.pool.available == 1


async def test_a_slot_that_is_lost_while_files_are_read_leaves_the_outcome() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        run, predict = await bench.begin()
        bench.worker.send(a_file())
        bench.worker.finish(predict)
        await run.over.wait()
        bench.worker.slots[0].up.put(GARBAGE)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.outcomes == [RETURNED]
        run.release()
        assert (bench.orchestrator.capacity, bench.pool.available) == (1, 1)


@pytest.mark.covers("worker:W51")
async def test_W51_a_value_with_a_file_inside() -> None:
    async with opened() as bench:
        run, predict = await bench.begin()
        bench.worker.send(VALUE)
        bench.worker.send(a_file(place=1))
        bench.worker.send(a_file(1))
        bench.worker.finish(predict)
        await run.over.wait()
        assert run.files.announced == ["", "/tmp/x.png", "/tmp/x.png"]
        assert run.outcome == RETURNED


# What breaks one slot.

VALUE = OutputChunk(msgspec.Raw(b"[null]"), 0, 1)


@pytest.mark.covers("worker:W16", "worker:W18")
@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([GARBAGE], "not a message of this channel"),
        ([b"\x7f\xff\xff\xff"], "over the limit"),
        ([Done(Idle(S0, P, 2))], "Idle names run 2 of slot 0, but run 1 of slot 0 is open"),
        ([RunFailed(Idle(S1, P, 1))], "Idle names run 1 of slot 1, but run 1 of slot 0 is open"),
        ([RunCancelled(Idle(S0, PredictionId("q"), 1))], "Idle names run 1"),
        ([OutputChunk(msgspec.Raw(b"1"), 1)], "output 1 came where output 0 is due"),
        ([a_file(3)], "output 3 came where output 0 is due"),
        ([a_file(place=1)], "a file inside output 0, which has room for none"),
        ([VALUE, Done(Idle(S0, P, 1))], "Done where a file inside output 0 is due"),
        ([VALUE, a_file(1)], "FileOutput where a file inside output 0 is due"),
        ([VALUE, a_file(1, place=1)], "FileOutput where a file inside output 0 is due"),
        ([VALUE, a_file(0, place=1), a_file(0, place=6)], "a file inside output 0, which has room for none"),
        ([ProtocolVersion(1)], "ProtocolVersion in the middle of a run"),
    ],
)  # fmt: skip
async def test_W16_a_bad_frame_costs_its_slot_only(frames: list[SlotResponse | bytes], text: str) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bad, _ = await bench.begin()
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
        bench.worker.send(Done(proof_of(predict)), 1)
        await good.over.wait()
        assert (good.outcome, good.prediction.output) == (RETURNED, 0)
        assert bench.orchestrator.capacity == 1
        assert bench.orchestrator.cause is None


async def test_the_last_slot_takes_the_worker_with_it(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bench:
        run, _ = await bench.begin()
        bench.worker.slots[0].up.put(GARBAGE)
        await run.over.wait()
        lost, outcome = bench.heard[-2:]
        assert isinstance(lost, WorkerGone)
        assert lost.cause.startswith("Worker has no usable slot left: Worker broke the protocol: ")
        assert outcome == run.outcome, "and it was failed after WorkerGone was said"
        await bench.orchestrator.wait_ended()
        assert (bench.worker.status, trio.current_time()) == (-9, 0.0)


async def test_a_frame_after_the_end_leaves_the_outcome(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        run, predict = await bench.begin()
        bench.worker.send(Done(proof_of(predict)))
        bench.worker.send(LogLine(LogSource.STDOUT, "late"))
        await run.over.wait()
        assert (run.outcome, run.prediction.logs, trio.current_time()) == (RETURNED, "", 0.0)
        assert bench.orchestrator.capacity == 1


async def test_a_frame_on_an_idle_slot_poisons_it() -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bench.worker.send(LogLine(LogSource.STDOUT, "who?"))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.pool.available == 1


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
        assert bench.orchestrator.capacity == 1


async def test_a_slot_that_can_not_be_written(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(FakeWorker(concurrency=2)) as bench:
        bench.worker.slots[0].down.close()
        run = bench.start()
        await run.over.wait()
        assert run.outcome == outcome_of("Worker closed the socket of slot 0")
        assert bench.orchestrator.capacity == 1


async def test_failed_on_control_fails_the_run_and_poisons() -> None:
    async with opened(FakeWorker(concurrency=3)) as bench:
        run, predict = await bench.begin()
        bench.worker.say(Failed("RuntimeError: lost it", predict.slot, predict.id, predict.run))
        await run.over.wait()
        assert run.outcome == outcome_of("RuntimeError: lost it")
        bench.worker.say(Failed("RuntimeError: idle", SlotId(1)))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.orchestrator.capacity == 1
