"""What a program calls that embeds the service, on a fake worker and a fake clock: predict and submit."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cog_trio import (
    AlreadyRunning,
    AtCapacity,
    InvalidInput,
    LogSource,
    NotReady,
    PredictionCanceled,
    PredictionFailed,
    PredictionLost,
    PredictionTimedOut,
    QueueTimedOut,
    ServiceEnded,
    Settings,
    SetupFailed,
    ShuttingDown,
    WorkerDied,
    local_path,
    open_service,
)
from cog_trio.bridge.protocol import (
    Failed,
    FileKind,
    FileOutput,
    FileOutputKind,
    Init,
    Input,
    Inputs,
    LogLine,
    OutputChunk,
    Predict,
    RunFailed,
)
from cog_trio.bridge.protocol import Log as SetupText
from cog_trio.service.python_api import STOP_LIMIT, encode_input
from cog_trio.service.service import PredictionService
from cog_trio.testing.fakes import FakeWorker, deaf, exit_9, garbage, open_fake_worker, proof_of, stall
from tests.service.test_service import DIED, Clock, finish_after, no_threads, serving, temporary_folder

__all__ = ["no_threads", "temporary_folder"]


async def fail(worker: FakeWorker, run: Predict) -> None:
    worker.send(LogLine(LogSource.STDERR, "Traceback\n"), run.slot)
    worker.send(OutputChunk(msgspec.Raw(b"1"), 0), run.slot)
    await trio.sleep(1)
    worker.send(RunFailed(proof_of(run), error="ValueError: boom"), run.slot)


async def slow_to_stop(worker: FakeWorker, run: Predict) -> None:
    """Needs three seconds when it is cancelled."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)


# predict and result.


async def test_a_prediction_that_succeeds_gives_its_result(autojump_clock: Clock) -> None:
    async with serving() as (service, _):
        prediction = await service.predict({"a": 1}, id="mine", context={"k": "v"})
        assert (prediction.id, prediction.result(), prediction.failure) == ("mine", {"a": 1}, None)
        assert prediction.completed_at is not None
        assert prediction.started_at is not None
        assert prediction.created_at <= prediction.started_at <= prediction.completed_at


@pytest.mark.covers("D51")
async def test_that_the_model_failed_is_an_outcome_and_its_result_raises(autojump_clock: Clock) -> None:
    async with serving(fail) as (service, _):
        prediction = await service.predict()
        assert prediction.status.value == "failed"
        with pytest.raises(PredictionFailed, match=r"^ValueError: boom$") as raised:
            prediction.result()
        assert raised.value.prediction is prediction
        assert (prediction.logs, prediction.output) == ("Traceback\n", 1)


async def test_that_somebody_cancelled_it_is_an_outcome_and_its_result_raises(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _), trio.open_nursery() as nursery:
        nursery.start_soon(cancel_after, service, 1.0)
        prediction = await service.predict(id="a")
        assert (prediction.status.value, trio.current_time()) == ("canceled", 1.0)
        with pytest.raises(PredictionCanceled, match="prediction a was canceled"):
            prediction.result()


async def cancel_after(service: PredictionService, seconds: float) -> None:
    await trio.sleep(seconds)
    assert service.cancel("a")


async def test_there_is_no_result_before_the_end(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        prediction = await service.submit()
        with pytest.raises(trio.WouldBlock):
            prediction.result()
        assert prediction.failure is None


@pytest.mark.covers("D51")
async def test_a_crash_is_a_named_error_with_what_came_before_it(autojump_clock: Clock) -> None:
    async def die(worker: FakeWorker, run: Predict) -> None:
        worker.send(LogLine(LogSource.STDOUT, "so far\n"), run.slot)
        worker.send(OutputChunk(msgspec.Raw(b'"half"'), 0), run.slot)
        await trio.sleep(1)
        await exit_9(worker, run)

    async with serving(die) as (service, _):
        with pytest.raises(WorkerDied) as raised:
            await service.predict(id="a")
        assert str(raised.value) == DIED
        lost = raised.value.prediction
        assert (lost.id, lost.logs, lost.output, lost.status.value) == ("a", "so far\n", "half", "failed")
        with pytest.raises(WorkerDied):
            lost.result()
        with pytest.raises(NotReady, match="The worker is gone"):
            await service.predict()


async def test_a_slot_that_is_lost_is_the_workers_doing(autojump_clock: Clock) -> None:
    async with serving(garbage, slots=2) as (service, _):
        with pytest.raises(WorkerDied, match="Worker broke the protocol"):
            await service.predict()


@pytest.mark.covers("D51")
async def test_the_time_limit_is_a_named_error(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(predict_timeout=3.0)) as (service, _):
        with pytest.raises(PredictionTimedOut, match="timed out after 3 s"):
            await service.predict()
        assert trio.current_time() == 3.0


async def test_an_input_that_cant_be_handed_over_is_a_named_error(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cog_trio.service.prediction_tasks.spill", full)
    async with serving() as (service, _):
        with pytest.raises(PredictionLost, match="No space left on device"):
            await service.predict({"x": "y" * 7_000_000})


async def test_capacity_and_ids_are_named_errors(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        await service.submit(id="a")
        with pytest.raises(AtCapacity):
            await service.predict()
        with pytest.raises(AlreadyRunning):
            await service.submit(id="a")


async def test_a_wait_in_the_queue_that_ends_for_nothing_is_a_named_error(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(queue=1, queue_timeout=5.0)) as (service, _):
        await service.submit()
        with pytest.raises(QueueTimedOut):
            await service.predict()
        assert trio.current_time() == 5.0


async def test_an_invalid_input_says_what_is_wrong(autojump_clock: Clock) -> None:
    document = {
        "openapi": "3.0.2",
        "paths": {},
        "components": {"schemas": {"Input": {"type": "object", "properties": {"n": {"type": "integer"}}}}},
    }
    worker = FakeWorker(document=document)
    worker.inputs = Inputs("Input", (Input("n", "int", required=True),))
    async with open_service("m.py", worker=worker) as service, trio.open_nursery() as nursery:
        nursery.start_soon(worker.set_up)
        await service.wait_ready()
        for wrong, text in (({"n": "one"}, 'n: "one" is not of type "integer"'), ({}, "n: Field required")):
            with pytest.raises(InvalidInput) as raised:
                await service.predict(wrong)
            assert str(raised.value) == text
            assert raised.value.faults[0]["loc"] == ["body", "input", "n"]


# Shutdown and setup.


@pytest.mark.covers("D51")
async def test_shutdown_is_a_named_error_before_and_while_it_runs(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(drain_grace=2.0)) as (service, _), trio.open_nursery() as nursery:

        async def shut_down() -> None:
            await trio.sleep(1)
            service.shutdown()
            with pytest.raises(ShuttingDown):
                await service.submit()

        nursery.start_soon(shut_down)
        with pytest.raises(ServiceEnded) as raised:
            await service.predict()
        assert (raised.value.prediction.status.value, trio.current_time()) == ("canceled", 3.0)


async def test_one_that_was_cancelled_before_the_shutdown_is_canceled(autojump_clock: Clock) -> None:
    async with serving(slow_to_stop, settings=Settings(drain_grace=1.0)) as (service, _):
        prediction = await service.submit(id="a")
        await trio.sleep(1)
        service.cancel("a")
        service.shutdown()
        await prediction.wait_finished()
        assert isinstance(prediction.failure, PredictionCanceled)


async def test_shutdown_empties_the_queue_by_name(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(queue=1, drain_grace=0.0)) as (service, _):
        await service.submit()
        waiting = await service.submit()
        service.shutdown()
        await waiting.wait_finished()
        assert isinstance(waiting.failure, ShuttingDown)


async def test_a_setup_that_fails_is_a_named_error_with_its_logs(autojump_clock: Clock) -> None:
    worker = FakeWorker()

    async def break_down() -> None:
        await worker.next_control(Init)
        worker.say(SetupText(LogSource.STDOUT, "loading\n"))
        worker.say(Failed("ValueError: no weights"))
        worker.exit(1)

    async with open_service("m.py", worker=worker) as service, trio.open_nursery() as nursery:
        nursery.start_soon(break_down)
        for attempt in (service.wait_ready, service.predict):
            with pytest.raises(SetupFailed, match="ValueError: no weights") as raised:
                await attempt()
            assert "[coglet::setup] loading" in raised.value.logs


async def test_setup_that_goes_on_is_waited_for_and_the_shutdown_ends_that(autojump_clock: Clock) -> None:
    worker = FakeWorker()
    async with open_service("m.py", worker=worker) as service, trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(ShuttingDown):
                await service.wait_ready()

        nursery.start_soon(wait)
        await trio.sleep(5)
        assert len(nursery.child_tasks) == 1
        service.shutdown()


async def test_without_a_model_there_is_nothing_to_wait_for(autojump_clock: Clock) -> None:
    async with open_service() as service:
        with pytest.raises(NotReady):
            await service.wait_ready()


# The caller's scope.


async def test_a_deadline_of_the_caller_waits_until_the_model_has_stopped(autojump_clock: Clock) -> None:
    """So the slot is free for whoever comes next in the same task."""
    async with serving(slow_to_stop) as (service, _):
        with trio.move_on_after(1) as scope:
            await service.predict(id="a")
        assert (scope.cancelled_caught, trio.current_time()) == (True, 4.0)
        prediction = service.get("a")
        assert prediction is not None
        assert prediction.status.value == "canceled"
        assert service.statistics().idle == 1


async def test_a_model_that_does_not_stop_holds_its_caller_for_a_bounded_time(autojump_clock: Clock) -> None:
    async with serving(deaf) as (service, worker):
        with trio.move_on_after(1):
            await service.predict()
        assert trio.current_time() == 1 + STOP_LIMIT
        with pytest.raises(AtCapacity):
            await service.submit()
        worker.exit(-9)


async def test_one_that_waits_in_the_queue_leaves_it_at_once(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(queue=1)) as (service, _):
        await service.submit()
        with trio.move_on_after(1):
            await service.predict()
        assert (trio.current_time(), service.statistics().queued) == (1.0, 0)


async def test_submit_is_tied_to_nobody(autojump_clock: Clock) -> None:
    async with serving(finish_after_two) as (service, _):
        with trio.move_on_after(1):
            prediction = await service.submit(id="a")
            await prediction.wait_finished()
        assert service.get("a") is prediction
        await prediction.wait_finished()
        assert (prediction.result(), trio.current_time()) == (1, 2.0)
        assert not service.cancel("a")


async def finish_after_two(worker: FakeWorker, run: Predict) -> None:
    await finish_after(2.0, worker, run)


# Inputs.


async def test_a_path_among_the_inputs_is_a_local_file(tmp_path: Path, autojump_clock: Clock) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    url = "data:text/plain;base64," + base64.b64encode(b"hello").decode()
    async with serving() as (service, _):
        file = tmp_path / "a.txt"
        prediction = await service.predict({"one": file, "many": [file, trio.Path(file)], "n": 1})
        assert prediction.result() == {"one": url, "many": [url, url], "n": 1}


async def test_inputs_without_a_form_in_json_are_refused_before_anything_starts(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    (file := tmp_path / "a.txt").touch()
    async with serving() as (service, _):
        with pytest.raises(TypeError, match="type object has no form in JSON"):
            await service.predict({"x": object()})
        with pytest.raises(TypeError, match="type object has no form in JSON"):
            await service.predict({"x": file, "y": [object()]})
        with pytest.raises(FileNotFoundError, match="missing"):
            await service.predict({"x": tmp_path / "missing"})
        with pytest.raises(OSError, match="not a regular file"):
            await service.predict({"x": tmp_path})
        assert service.statistics().created == 0


async def test_an_output_file_stays_in_the_folder_of_the_caller(tmp_path: Path, autojump_clock: Clock) -> None:
    """Two of the same name do not meet; what the runtime copied is moved, what is the model's own stays with it."""
    (own := tmp_path / "own file.txt").write_bytes(b"own")

    async def put_out(worker: FakeWorker, run: Predict) -> None:
        (made := Path(run.output_dir) / "made.txt").parent.mkdir()
        made.write_bytes(b"made")
        for index, path in enumerate((own, made)):
            worker.send(FileOutput(str(path), FileKind(FileOutputKind.FILE), index), run.slot)
        worker.finish(run)
        await trio.lowlevel.checkpoint()

    async with open_fake_worker(put_out) as worker:
        worker.inputs = None
        async with open_service("m.py", worker=worker, output_folder=tmp_path / "kept") as service:
            await service.wait_ready()
            urls = [url for _ in range(2) for url in (await service.predict()).result()]
    paths = [local_path(url) for url in urls]
    assert [path.read_bytes() for path in paths] == [b"own", b"made", b"own", b"made"]
    assert [path.name for path in paths] == ["own file.txt", "made.txt"] * 2
    assert len({path.parent for path in paths}) == 2
    assert own.read_bytes() == b"own"


@pytest.mark.parametrize("url", ["data:text/plain;base64,eA==", "https://host/a", "file://host/a", "/a"])
def test_local_path_takes_file_urls_alone(url: str) -> None:
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    with pytest.raises(ValueError, match="not a file: URL"):
        local_path(url)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"id": ""}, ValueError, "the id must be 1 to 256 bytes"),
        ({"id": "a\n"}, ValueError, "the id must be 1 to 256 bytes"),
        ({"context": {"a": 1}}, TypeError, "the context must hold texts alone"),
        ({"webhook": "ftp://host"}, ValueError, "the webhook must be an absolute http or https URL"),
    ],
)
async def test_what_goes_beside_an_input_is_checked(
    autojump_clock: Clock, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """A mistake of the program must not reach the worker, which would take it for a broken protocol."""
    async with serving() as (service, _):
        with pytest.raises(error, match=text):
            await service.submit(**options)
        assert service.statistics().created == 0


async def test_no_input_is_an_empty_one() -> None:
    assert await encode_input(None) == b"{}" == await encode_input({})


async def test_an_input_of_a_subclass_of_str_is_its_text(tmp_path: Path) -> None:
    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "wrong"

    (tmp_path / "a.txt").write_text("a")
    assert await encode_input({Text("a"): [Text("b")]}) == b'{"a":["b"]}'
    assert b'"a":"b"' in await encode_input({Text("a"): Text("b"), "path": tmp_path / "a.txt"})
