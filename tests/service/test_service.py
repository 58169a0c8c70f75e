"""The service on a fake worker and a fake clock: creating, watching, ending, draining, losing the worker.

Threads do not know a fake clock, so what the service does in threads (compiling the validator, files) is done in
place here; ``tests/files/test_workspace.py`` has the threads.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import (
    Done,
    DroppedLogs,
    Failed,
    FileKind,
    FileOutput,
    FileOutputKind,
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Init,
    Input,
    Inputs,
    Log,
    LogLevel,
    LogLine,
    LogSource,
    Metric,
    MetricMode,
    OutputChunk,
    Predict,
    PredictionId,
    RunFailed,
    Spilled,
    WorkerLog,
)
from cog_trio.config.settings import Settings
from cog_trio.inputs.validation import InvalidInput
from cog_trio.orchestrator.spawn import spawn
from cog_trio.service.open_service import ServiceBroken, open_service
from cog_trio.service.service import PredictionService
from cog_trio.service.shutdown import STOP_GRACE
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.refusals import AlreadyRunning, AtCapacity, NotReady
from cog_trio.testing.fakes import FakeWorker, deaf, echo, exit_9, garbage, open_fake_worker, proof_of, stall

T = TypeVar("T")
Clock = trio.testing.MockClock
DIED = "Worker died: signal 9 (SIGKILL), possibly out of memory"
STARTING = "Setup has not finished yet. Wait until it has finished, or GET /health-check for status."
PLAIN = {"openapi": "3.0.2", "paths": {}, "components": {"schemas": {"Input": {"type": "object", "properties": {}}}}}


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_sync(function: Callable[..., T], *args: Any, **_: Any) -> T:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


Behaviour = Callable[[FakeWorker, Predict], Awaitable[None]]


@asynccontextmanager
async def serving(
    behaviour: Behaviour = echo, *, settings: Settings | None = None, slots: int = 1, **worker: Any
) -> AsyncIterator[tuple[PredictionService, FakeWorker]]:
    """A service that is ready, and its fake worker."""
    worker.setdefault("document", {**PLAIN, "components": {"schemas": {"Input": {"type": "object"}}}})
    async with open_fake_worker(behaviour, concurrency=slots, **worker) as fake:
        fake.inputs = None  # nothing is checked, unless a test says so
        async with open_service("m.py", worker=fake, settings=settings or Settings()) as service:
            await service.wait_started()
            yield service, fake


async def ended(service: PredictionService, input: Any = None, **options: Any) -> Prediction:
    """One prediction after its end, whatever it was."""
    prediction = await service.submit(input, **options)
    await prediction.wait_finished()
    return prediction


def shown(prediction: Prediction) -> dict[str, Any]:
    snapshot: dict[str, Any] = json.loads(prediction.snapshot())
    return snapshot


def folders(base: Path) -> list[str]:
    """What stands in the base folders of the services that live."""
    return [name for entry in base.glob("cog-trio-*") for name in os.listdir(entry)]


def exists(path: Path) -> bool:
    return os.path.lexists(path)


def read_spilled(path: str) -> Spilled:
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=Spilled)


def scripted(*frames: Any) -> Behaviour:
    """Sends these frames, made from the Predict, then Done and Idle."""

    async def behave(worker: FakeWorker, run: Predict) -> None:
        for index, frame in enumerate(frames):
            worker.send(frame(index) if callable(frame) else frame, run.slot)
        worker.finish(run)
        await trio.lowlevel.checkpoint()

    return behave


# Health and setup.


async def test_without_a_model_health_is_unknown(autojump_clock: Clock) -> None:
    async with open_service() as service:
        assert service.health().status == "UNKNOWN"
        assert (await service.wait_started()).setup is None
        with pytest.raises(NotReady, match=STARTING):
            service.create(NewPrediction())


async def test_open_service_yields_at_once_and_says_starting(autojump_clock: Clock) -> None:
    worker = FakeWorker()
    async with open_service("m.py", worker=worker) as service:
        assert service.health().status == "STARTING"
        with pytest.raises(NotReady, match=STARTING) as refused:
            service.create(NewPrediction(id="mine"))
        assert refused.value.id == "mine"
    assert worker.reaped


@pytest.mark.covers("http:W29")
async def test_W29_ready_setup_and_admission_are_published_in_one_step(autojump_clock: Clock) -> None:
    """Whenever a task may look, all of it is there or nothing of it."""
    async with open_fake_worker() as worker, open_service("m.py", worker=worker) as service:
        while True:
            health = service.health()
            assert health.setup is not None
            try:
                service.admit()
                admitted = True
            except NotReady:
                admitted = False
            assert (health.status, health.setup.status.value) in (
                [("READY", "succeeded")] if admitted else [("STARTING", "starting")]
            )
            if admitted:
                break
            await trio.lowlevel.checkpoint()
        assert service.schema is not None


async def test_the_document_and_setup_logs_are_there_during_setup(autojump_clock: Clock) -> None:
    worker = FakeWorker(document={"openapi": "3.0.2", "paths": {}, "x": 1})
    async with open_service("m.py", worker=worker) as service:
        init = await worker.next_control(Init)
        assert init.predict_ref == "m.py"
        assert not service.schema
        worker.describe()
        worker.say(Log(LogSource.STDOUT, "loading\n"))
        worker.say(WorkerLog("cog_trio.worker", LogLevel.INFO, "told"))
        await trio.testing.wait_all_tasks_blocked()
        assert json.loads(service.schema or b"{}")["x"] == 1
        health = service.health()
        assert health.versions["python"] == "3.11.0"
        assert health.setup is not None
        assert health.setup.logs == "[coglet::setup] loading\n[cog_trio.worker] told"


@pytest.mark.covers("http:W8")
async def test_W8_a_setup_that_fails_keeps_its_logs(autojump_clock: Clock) -> None:
    worker = FakeWorker()
    async with open_service("m.py", worker=worker) as service:
        await worker.next_control(Init)
        worker.say(Log(LogSource.STDERR, "Traceback (most recent call last):\nValueError: bad\n"))
        worker.say(Failed("ValueError: bad"))
        worker.exit(0)
        health = await service.wait_started()
        assert health.status == "SETUP_FAILED"
        assert health.setup is not None
        assert health.setup.logs == (
            "[coglet::setup] Traceback (most recent call last):\n[coglet::setup] ValueError: bad\n"
            "[coglet] Setup failed: ValueError: bad"
        )
        with pytest.raises(NotReady) as refused:
            service.create(NewPrediction())
        assert refused.value.text == "Setup has failed, predictions can't run: ValueError: bad"


@pytest.mark.covers("http:W7")
async def test_W7_a_worker_that_ends_in_setup_is_a_failed_setup(autojump_clock: Clock) -> None:
    worker = FakeWorker()
    async with open_service("m.py", worker=worker) as service:
        worker.exit(3)
        assert (await service.wait_started()).status == "SETUP_FAILED"
        assert service.health().cause == "Worker died: exit code 3"


@pytest.mark.covers("http:W10")
async def test_W10_a_setup_that_takes_too_long_is_killed(autojump_clock: Clock) -> None:
    worker = FakeWorker()
    async with open_service("m.py", worker=worker, settings=Settings(setup_timeout=7.0)) as service:
        start = trio.current_time()
        assert (await service.wait_started()).status == "SETUP_FAILED"
        assert trio.current_time() - start == 7.0
        assert service.health().cause == "Setup timed out after 7 s"
        assert worker.kills
        await service.wait_started()
        await trio.testing.wait_all_tasks_blocked()
        assert worker.reaped


@pytest.mark.process
async def test_a_worker_that_cant_be_spawned_is_a_failed_setup(autojump_clock: Clock, tmp_path: Path) -> None:
    async with open_service("m.py", cwd=str(tmp_path / "missing")) as service:
        health = await service.wait_started()
        assert health.status == "SETUP_FAILED"
        assert health.cause is not None
        assert health.cause.startswith("Worker could not be started: ")
        assert "missing" in health.cause


async def test_busy_is_computed_from_the_slots(autojump_clock: Clock) -> None:
    async with serving(stall, slots=2) as (service, _):
        statuses = [service.health().status]
        for _ in range(2):
            service.create(NewPrediction())
            statuses.append(service.health().status)
        assert statuses == ["READY", "READY", "BUSY"]


# The user's health check.


@asynccontextmanager
async def checking() -> AsyncIterator[tuple[PredictionService, FakeWorker]]:
    """A service whose worker has a health check that the test answers."""
    worker = FakeWorker(healthcheck=True)
    async with open_service("m.py", worker=worker) as service:
        await worker.set_up()
        await service.wait_started()
        yield service, worker


@pytest.mark.covers("http:W28")
async def test_W28_without_a_check_the_worker_is_not_asked(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, worker):
        service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        assert (await service.check_health()).status == "BUSY"
        assert trio.current_time() == start
        assert not worker.wire.down.data


async def test_those_who_ask_at_once_share_one_check(autojump_clock: Clock) -> None:
    async with checking() as (service, worker):
        seen: list[Any] = []

        async def ask() -> None:
            seen.append(await service.check_health())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            check = await worker.next_control(Healthcheck)
            await trio.testing.wait_all_tasks_blocked()
            assert not worker.wire.down.data, "one question for all"
            worker.say(HealthcheckResult(check.id, HealthcheckStatus.UNHEALTHY, "Healthcheck failed: no"))
        assert {(health.status, health.user_healthcheck_error) for health in seen} == {
            ("UNHEALTHY", "Healthcheck failed: no")
        }
        assert service.health().status == "READY", "nothing is stored"
        service.create(NewPrediction())


async def test_one_who_leaves_does_not_take_the_check_along(autojump_clock: Clock) -> None:
    async with checking() as (service, worker), trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            await service.check_health()
        seen: list[str] = []

        async def ask() -> None:
            seen.append((await service.check_health()).status)

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        check = await worker.next_control(Healthcheck)
        worker.say(HealthcheckResult(check.id, HealthcheckStatus.HEALTHY))
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["READY"]


async def test_a_check_that_is_never_answered_ends(autojump_clock: Clock) -> None:
    async with checking() as (service, _):
        start = trio.current_time()
        health = await service.check_health()
        assert (health.status, health.user_healthcheck_error) == ("UNHEALTHY", "healthcheck timed out")
        assert trio.current_time() - start == 10.0
        await service.check_health()
        assert trio.current_time() - start == 10.0, "the next one is told at once"


async def test_a_worker_that_dies_in_a_check_is_defunct(autojump_clock: Clock) -> None:
    async with checking() as (service, worker), trio.open_nursery() as nursery:
        seen: list[str] = []

        async def ask() -> None:
            seen.append((await service.check_health()).status)

        nursery.start_soon(ask)
        await worker.next_control(Healthcheck)
        worker.exit(-9)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["DEFUNCT"]


# A prediction.


@pytest.mark.covers("http:W42")
async def test_a_prediction_end_to_end(autojump_clock: Clock) -> None:
    async with serving() as (service, _):
        prediction = await service.predict({"a": 1}, id="mine", context={"k": "v"})
        snapshot = json.loads(prediction.snapshot(with_input=True))
        assert (snapshot["id"], snapshot["status"], snapshot["output"]) == ("mine", "succeeded", {"a": 1})
        assert snapshot["input"] == {"a": 1}
        assert list(snapshot["metrics"]) == ["predict_time"]
        assert {"created_at", "started_at", "completed_at"} <= set(snapshot)
        assert prediction.output == {"a": 1}


async def test_create_has_no_checkpoint_and_all_steps_are_there(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        with trio.testing.assert_no_checkpoints():
            prediction = service.create(NewPrediction(id="a"))
            assert service.health().status == "BUSY"
            assert service.running("a") is service.get("a") is prediction
            assert service.cancel("a")


async def test_everything_the_worker_says_arrives(autojump_clock: Clock) -> None:
    behaviour = scripted(
        LogLine(LogSource.STDOUT, "one\n"),
        OutputChunk(msgspec.Raw(b"1"), 0),
        Metric("m.n", msgspec.Raw(b"2"), MetricMode.INCREMENT),
        OutputChunk(msgspec.Raw(b"2"), 1),
        LogLine(LogSource.STDERR, "two"),
    )
    async with serving(behaviour) as (service, _):
        snapshot = shown(await ended(service))
        assert (snapshot["logs"], snapshot["output"], snapshot["metrics"]["m"]) == ("one\ntwo", [1, 2], {"n": 2})


async def test_a_failure_of_the_model(autojump_clock: Clock) -> None:
    async def fail(worker: FakeWorker, run: Predict) -> None:
        worker.send(RunFailed(proof_of(run), error="ValueError: boom"))
        await trio.lowlevel.checkpoint()

    async with serving(fail) as (service, _):
        prediction = await ended(service)
        assert (prediction.status.value, prediction.error) == ("failed", "ValueError: boom")
        assert service.health().status == "READY"


async def test_predict_time_is_exact(autojump_clock: Clock) -> None:
    async def three_seconds(worker: FakeWorker, run: Predict) -> None:
        await trio.sleep(3)
        worker.finish(run, b"1")

    async with serving(three_seconds) as (service, _):
        prediction = await ended(service)
        await trio.sleep(5)
        assert prediction.predict_time == 3.0
        assert prediction.metrics == {"predict_time": 3.0}


@pytest.mark.covers("http:W1")
@pytest.mark.exhaustive
async def test_W1_back_to_back_never_meets_a_busy_slot(autojump_clock: Clock) -> None:
    async with serving() as (service, _):
        for number in range(1000):
            assert (await service.predict({"n": number})).output == {"n": number}
            assert service.health().status == "READY"


@pytest.mark.covers("http:W2")
async def test_W2_simultaneous_creates_use_every_slot(autojump_clock: Clock) -> None:
    async with serving(stall, slots=3) as (service, _):
        outcomes = []
        for _ in range(20):
            try:
                outcomes.append(service.create(NewPrediction()).status.value)
            except AtCapacity as refused:
                outcomes.append(refused.text)
        assert outcomes == ["processing"] * 3 + ["At capacity - all prediction slots busy"] * 17


@pytest.mark.covers("http:W3")
async def test_W3_an_id_that_runs_is_refused_and_the_first_untouched(autojump_clock: Clock) -> None:
    async with serving(stall, slots=2) as (service, _):
        first = service.create(NewPrediction(id="a"))
        with pytest.raises(AlreadyRunning) as refused:
            service.create(NewPrediction(id="a"))
        assert (refused.value.text, refused.value.id) == ("A prediction with this id is already running", "a")
        assert service.running("a") is first
        assert not first.cancel_requested


@pytest.mark.covers("http:W3")
async def test_W3_simultaneous_creates_of_one_id_start_one(autojump_clock: Clock) -> None:
    async with serving(slots=2) as (service, _):
        outcomes: list[str] = []

        async def create() -> None:
            try:
                outcomes.append((await service.predict(id="a")).status.value)
            except AlreadyRunning:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(create)
        assert sorted(outcomes) == ["refused"] * 9 + ["succeeded"]


async def test_an_id_that_is_taken_comes_before_capacity(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        service.create(NewPrediction(id="a"))
        with pytest.raises(AlreadyRunning):
            service.create(NewPrediction(id="a"))
        with pytest.raises(AtCapacity) as refused:
            service.create(NewPrediction(id="b"))
        assert refused.value.id == "b"
        with pytest.raises(AtCapacity) as refused:
            service.create(NewPrediction())
        assert refused.value.id is None, "only an id that the client gave is told"


async def test_generated_ids_differ(autojump_clock: Clock) -> None:
    async with serving(slots=50) as (service, _):
        ids = {service.create(NewPrediction()).id for _ in range(50)}
        assert len(ids) == 50
        assert all(id.startswith("pred_") for id in ids)


VALIDATED = {
    "openapi": "3.0.2",
    "paths": {},
    "components": {
        "schemas": {
            "Input": {
                "title": "Input",
                "type": "object",
                "properties": {
                    "n": {"title": "N", "type": "integer", "x-order": 0},
                    "key": {"title": "Key", "type": "string", "format": "password", "writeOnly": True, "x-order": 1},
                },
                "required": ["n"],
            },
            "Output": {"title": "Output", "type": "array", "items": {"type": "integer"}},
        }
    },
}


@asynccontextmanager
async def validating(behaviour: Behaviour = echo) -> AsyncIterator[PredictionService]:
    async with open_fake_worker(behaviour, document=VALIDATED) as worker:
        worker.inputs = Inputs(
            "Input", (Input("n", "int", required=True), Input("key", "secret", inject_null=True, nullable=True))
        )
        async with open_service("m.py", worker=worker) as service:
            await service.wait_started()
            yield service


@pytest.mark.covers("D7")
async def test_D7_503_before_422_before_409(autojump_clock: Clock) -> None:
    async with validating(stall) as service:
        service.create(NewPrediction(id="a", input=b'{"n": 1}'))
        with pytest.raises(InvalidInput) as invalid:
            service.create(NewPrediction(id="a", input=b'{"n": "x"}'))
        assert invalid.value.faults[0]["loc"] == ["body", "input", "n"]
        service.shutdown()
        with pytest.raises(NotReady):
            service.create(NewPrediction(id="a", input=b'{"n": "x"}'))


@pytest.mark.covers("D8", "D42")
async def test_D8_D42_unknown_inputs_are_dropped_with_a_warning_and_secrets_masked(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with validating() as service:
        prediction = await service.predict({"n": 1, "key": "hidden", "other": "x"})
        assert prediction.output == [{"n": 1, "key": "hidden"}], "the model sees it; and Output is an array"
        assert b"hidden" not in (prediction.input or b"")
        assert "other" in caplog.text
        assert "hidden" not in caplog.text


@pytest.mark.covers("D8")
async def test_D8_the_warning_names_the_prediction_and_is_short(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with validating() as service:
        await service.predict({"n": 1, **{f"{number}{'x' * 1000}": 1 for number in range(1000)}}, id="mine")
    (record,) = [record for record in caplog.records if "were dropped" in record.message]
    assert vars(record)["id"] == "mine"
    assert record.message.endswith(" and 980 more")
    assert len(record.message) < 2500


async def test_a_document_that_cant_be_compiled_means_no_validation(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_fake_worker(document={}) as worker, open_service("m.py", worker=worker) as service:
        assert (await service.wait_started()).status == "READY"
        assert (await service.predict({"x": 1})).output == {"x": 1}
        assert "can't be compiled" in caplog.text


async def test_an_absent_input_is_an_empty_one(autojump_clock: Clock) -> None:
    async with serving() as (service, _):
        prediction = service.create(NewPrediction())
        await prediction.wait_finished()
        assert prediction.output == {}


# Cancelling and watching.


async def test_cancel_is_sync_and_repeatable(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        prediction = service.create(NewPrediction(id="a"))
        await trio.testing.wait_all_tasks_blocked()
        assert [service.cancel("a") for _ in range(3)] == [True] * 3
        assert prediction.status.value == "processing", "only when the work has stopped"
        await prediction.wait_finished()
        assert (prediction.status.value, service.health().status) == ("canceled", "READY")
        assert not service.cancel("a")
        assert not service.cancel("unknown")


@pytest.mark.covers("http:W48")
async def test_W48_cancelled_in_the_step_that_creates_it(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        for _ in range(200):
            prediction = service.create(NewPrediction(id="a"))
            service.cancel("a")
            await prediction.wait_finished()
            assert prediction.status.value == "canceled"
            assert service.health().status == "READY"


@pytest.mark.covers("http:W48")
async def test_W48_cancelled_between_turn_and_start(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large input is on its way to the disk: its slot is held, and nothing was written."""

    async def slow(*_: object) -> str:
        service.cancel("a")
        await trio.lowlevel.cancel_shielded_checkpoint()
        return "path"

    async with serving(stall) as (service, worker):
        monkeypatch.setattr("cog_trio.service.prediction_tasks.needs_spill", lambda *_: True)
        monkeypatch.setattr("cog_trio.service.prediction_tasks.spill", slow)
        prediction = service.create(NewPrediction(id="a"))
        await prediction.wait_finished()
        assert (prediction.status.value, service.health().status) == ("canceled", "READY")
        assert prediction.started is None
        assert not worker.slots[0].down.data, "nothing reached the worker"


@pytest.mark.covers("worker:W25")
@pytest.mark.parametrize("checkpoints", range(1, 12))
async def test_W25_a_cancel_at_any_step_ends_canceled_or_came_too_late(autojump_clock: Clock, checkpoints: int) -> None:
    async with serving() as (service, _):
        prediction = service.create(NewPrediction(id="a"))
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        cancelled = service.cancel("a")
        await prediction.wait_finished()
        assert prediction.status.value == ("canceled" if cancelled else "succeeded")
        assert (await service.predict()).status.value == "succeeded"


async def test_canceled_wins_over_a_model_that_swallows_it(autojump_clock: Clock) -> None:
    returned = trio.Event()

    async def survive(worker: FakeWorker, run: Predict) -> None:
        with trio.CancelScope(shield=True):
            await returned.wait()
        worker.finish(run, b'"survived"')

    async with serving(survive) as (service, _):
        prediction = service.create(NewPrediction(id="a"))
        await trio.testing.wait_all_tasks_blocked()
        service.cancel("a")
        await trio.testing.wait_all_tasks_blocked()
        returned.set()
        await prediction.wait_finished()
        assert (shown(prediction)["status"], shown(prediction)["output"]) == ("canceled", "survived")


@pytest.mark.covers("worker:W33", "D47")
async def test_W33_code_that_does_not_stop_keeps_its_slot(autojump_clock: Clock) -> None:
    async with serving(deaf) as (service, _):
        prediction = service.create(NewPrediction(id="a"))
        await trio.sleep(1)
        service.cancel("a")
        await trio.sleep(3600)
        assert (prediction.status.value, service.health().status) == ("processing", "BUSY")


@pytest.mark.covers("D28")
async def test_D28_with_a_grace_the_worker_is_killed(autojump_clock: Clock) -> None:
    async with serving(deaf, settings=Settings(cancel_grace=4.0)) as (service, worker):
        prediction = service.create(NewPrediction(id="a"))
        await trio.sleep(1)
        service.cancel("a")
        await prediction.wait_finished()
        assert prediction.predict_time == 5.0
        assert (prediction.status.value, service.health().status) == ("failed", "DEFUNCT")
        assert prediction.error == "Worker killed: a canceled prediction did not stop within 4 s"
        assert worker.kills


@pytest.mark.covers("D4")
async def test_D4_the_last_watcher_of_a_watched_prediction_cancels(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        prediction = service.create(NewPrediction(id="a", watched=True))
        with service.watch(prediction):
            with service.watch(prediction):
                await trio.sleep(1)
            assert not prediction.cancel_requested, "one is left"
        await prediction.wait_finished()
        assert prediction.status.value == "canceled"


@pytest.mark.covers("D4")
async def test_D4_an_async_prediction_is_never_cancelled_by_leaving(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        prediction = service.create(NewPrediction(id="a"))
        with service.watch(prediction):
            await trio.sleep(1)
        assert not prediction.cancel_requested


@pytest.mark.covers("D4")
async def test_D4_a_joined_prediction_outlives_its_creator(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        prediction = service.create(NewPrediction(id="a", watched=True))
        with trio.CancelScope() as creator, service.watch(prediction):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(prediction.wait_finished)
                joined = service.watch(prediction)
                joined.__enter__()
                creator.cancel()
                nursery.cancel_scope.cancel()
        assert not prediction.cancel_requested
        joined.__exit__(None, None, None)
        assert prediction.cancel_requested


async def test_watchers_that_leave_after_the_end_change_nothing(autojump_clock: Clock) -> None:
    async with serving() as (service, _):
        prediction = service.create(NewPrediction(watched=True))
        with service.watch(prediction):
            await prediction.wait_finished()
        assert not prediction.cancel_requested
        assert prediction.status.value == "succeeded"


async def test_cancelling_the_caller_of_predict_cancels_it(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        with trio.move_on_after(2) as scope:
            await service.predict(id="a")
        assert scope.cancelled_caught
        prediction = service.get("a")
        assert prediction is not None
        assert (prediction.status.value, prediction.predict_time) == ("canceled", 2.0)


# Finished ones.


@pytest.mark.covers("D6")
async def test_D6_finished_predictions_are_found_for_a_while(autojump_clock: Clock) -> None:
    async with serving(settings=Settings(retain_age=60.0)) as (service, _):
        prediction = await service.predict(id="a")
        assert service.get("a") is prediction
        assert service.running("a") is None
        await trio.sleep(59)
        assert service.get("a") is prediction
        await trio.sleep(1)
        assert service.get("a") is None


@pytest.mark.covers("http:W24", "D6")
async def test_D6_a_finished_id_runs_anew(autojump_clock: Clock) -> None:
    async with serving() as (service, _):
        first = await service.predict({"n": 1}, id="a")
        second = await service.predict({"n": 2}, id="a")
        assert service.get("a") is second is not first


# The worker goes.


@pytest.mark.covers("http:W6")
@pytest.mark.parametrize("behaviour", [exit_9])
async def test_W6_a_crash_fails_what_runs_and_health_is_defunct_first(
    autojump_clock: Clock, behaviour: Behaviour
) -> None:
    async with serving(behaviour, slots=2) as (service, worker):
        first, second = service.create(NewPrediction(id="a")), service.create(NewPrediction(id="b"))
        seen: list[tuple[str, str | None, str]] = []

        async def wait(prediction: Prediction) -> None:
            await prediction.wait_finished()
            seen.append((prediction.status.value, prediction.error, service.health().status))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, first)
            nursery.start_soon(wait, second)
        assert seen == [("failed", DIED, "DEFUNCT")] * 2
        with pytest.raises(NotReady) as refused:
            service.create(NewPrediction(id="c"))
        assert refused.value.text == f"The worker is gone, predictions can't run: {DIED}"
        assert service.get("a") is first, "the service lives"
        assert worker.reaped
    assert worker.reaped


@pytest.mark.covers("worker:W3")
async def test_W3_what_came_before_the_crash_is_kept(autojump_clock: Clock) -> None:
    async def talk_and_die(worker: FakeWorker, run: Predict) -> None:
        worker.send(LogLine(LogSource.STDOUT, "last words"), run.slot)
        worker.send(OutputChunk(msgspec.Raw(b"1"), 0), run.slot)
        worker.exit(-9)
        await trio.sleep_forever()

    async with serving(talk_and_die) as (service, _):
        snapshot = shown(await ended(service))
        assert (snapshot["logs"], snapshot["output"], snapshot["error"]) == ("last words", 1, DIED)


async def test_a_worker_that_dies_while_it_cancels_leaves_a_failure(autojump_clock: Clock) -> None:
    async with serving(deaf) as (service, worker):
        prediction = service.create(NewPrediction(id="a"))
        await trio.sleep(1)
        service.cancel("a")
        await trio.sleep(1)
        worker.exit(-9)
        await prediction.wait_finished()
        assert (prediction.status.value, prediction.error) == ("failed", DIED)


@pytest.mark.covers("http:W6")
async def test_a_crash_while_idle_is_defunct_at_once(autojump_clock: Clock) -> None:
    async with serving() as (service, worker):
        worker.exit(1)
        await trio.testing.wait_all_tasks_blocked()
        assert (service.health().status, service.health().cause) == ("DEFUNCT", "Worker died: exit code 1")


async def closes_its_slot(worker: FakeWorker, run: Predict) -> None:
    worker.slots[run.slot].up.close()
    await deaf(worker, run)


@pytest.mark.covers("worker:W16")
@pytest.mark.parametrize("behaviour", [garbage, closes_its_slot])
async def test_W16_a_slot_that_breaks_the_protocol_is_lost_and_the_other_lives(
    autojump_clock: Clock, behaviour: Behaviour
) -> None:
    async def first_breaks(worker: FakeWorker, run: Predict) -> None:
        await (behaviour if run.run == 1 else echo)(worker, run)

    async with serving(first_breaks, slots=2) as (service, _):
        broken = await ended(service, {"n": 1})
        assert broken.terminal
        assert service.health().status == "READY"
        for number in range(5):
            assert (await service.predict({"n": number})).status.value == "succeeded"
        service.create(NewPrediction())
        with pytest.raises(AtCapacity):
            service.create(NewPrediction())


@pytest.mark.covers("http:W6", "worker:W16")
async def test_W16_when_the_last_slot_is_lost_the_service_is_defunct(autojump_clock: Clock) -> None:
    async with serving(garbage) as (service, worker):
        prediction = await ended(service)
        assert prediction.status.value == "failed"
        assert service.health().status == "DEFUNCT"
        await trio.sleep(60)
        assert worker.reaped


# Shutdown.


async def finish_after(seconds: float, worker: FakeWorker, run: Predict) -> None:
    await trio.sleep(seconds)
    worker.finish(run, b"1")


@pytest.mark.covers("http:W13")
async def test_W13_in_flight_work_gets_the_grace(autojump_clock: Clock) -> None:
    async def slow(worker: FakeWorker, run: Predict) -> None:
        await finish_after(20, worker, run)

    async with serving(slow) as (service, worker):
        prediction = service.create(NewPrediction(id="a"))
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        service.shutdown()
        assert (service.health().status, service.health().draining) == ("BUSY", True)
        with pytest.raises(NotReady, match="Server is shutting down"):
            service.create(NewPrediction())
        assert service.running("a") is prediction, "joins and polls go on"
        await service.wait_stopped()
        assert (prediction.status.value, trio.current_time() - start) == ("succeeded", 20)
        assert worker.reaped
        assert worker.status == 0
        assert service.get("a") is prediction


@pytest.mark.covers("http:W14")
async def test_W14_what_does_not_finish_is_cancelled(autojump_clock: Clock) -> None:
    async with serving(stall, settings=Settings(drain_grace=8.0)) as (service, worker):
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        service.shutdown()
        await service.wait_stopped()
        assert (prediction.status.value, trio.current_time() - start, worker.status) == ("canceled", 8.0, 0)


@pytest.mark.covers("http:W14")
async def test_W14_what_does_not_stop_is_killed(autojump_clock: Clock) -> None:
    async with serving(deaf, settings=Settings(drain_grace=8.0)) as (service, worker):
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        service.shutdown()
        await service.wait_stopped()
        assert prediction.terminal
        assert 8.0 + STOP_GRACE <= trio.current_time() - start <= 8.0 + STOP_GRACE + 10.0
        assert worker.reaped


async def test_a_second_shutdown_ends_the_grace_at_once(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        service.shutdown()
        await trio.sleep(2)
        service.shutdown()
        await service.wait_stopped()
        assert (prediction.status.value, trio.current_time() - start) == ("canceled", 2)


async def test_two_shutdowns_at_once_leave_no_grace(autojump_clock: Clock) -> None:
    async with serving(stall) as (service, _):
        service.create(NewPrediction())
        start = trio.current_time()
        service.shutdown()
        service.shutdown()
        await service.wait_stopped()
        assert trio.current_time() == start


async def test_more_shutdowns_kill_a_worker_that_does_not_stop(autojump_clock: Clock) -> None:
    async with serving(deaf) as (service, worker):
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        for _ in range(4):
            service.shutdown()
            await trio.testing.wait_all_tasks_blocked()
        await service.wait_stopped()
        assert trio.current_time() == start
        assert worker.kills
        assert prediction.terminal


async def test_an_idle_service_stops_at_once(autojump_clock: Clock) -> None:
    async with serving() as (service, worker):
        start = trio.current_time()
        service.shutdown()
        await service.wait_shutdown()
        await service.wait_stopped()
        assert trio.current_time() == start
        assert worker.status == 0
        assert service.health().status == "READY"


async def test_shutdown_during_setup_kills_the_worker(autojump_clock: Clock) -> None:
    worker = FakeWorker()
    async with open_service("m.py", worker=worker) as service:
        start = trio.current_time()
        service.shutdown()
        await service.wait_stopped()
        assert worker.reaped
        assert trio.current_time() == start


async def test_shutdown_after_a_crash_is_immediate(autojump_clock: Clock) -> None:
    async with serving() as (service, worker):
        worker.exit(-9)
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        service.shutdown()
        await service.wait_stopped()
        assert trio.current_time() == start


async def test_leaving_the_block_drains(autojump_clock: Clock) -> None:
    async def slow(worker: FakeWorker, run: Predict) -> None:
        await finish_after(3, worker, run)

    async with open_fake_worker(slow) as worker:
        async with open_service("m.py", worker=worker) as service:
            await service.wait_started()
            prediction = service.create(NewPrediction())
        assert (prediction.status.value, worker.status) == ("succeeded", 0)
        service.shutdown()
        with pytest.raises(NotReady):
            service.create(NewPrediction())


async def test_an_outer_cancellation_cancels_predictions_and_ends_the_worker(autojump_clock: Clock) -> None:
    async with open_fake_worker(stall) as worker:
        with trio.move_on_after(4) as scope:
            async with open_service("m.py", worker=worker) as service:
                await service.wait_started()
                prediction = service.create(NewPrediction())
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert prediction.status.value == "canceled"
        assert worker.status == 0, "it was asked to leave, not killed"


async def test_b21_what_the_block_raises_comes_out_bare(autojump_clock: Clock) -> None:
    async with open_fake_worker(stall) as worker:
        predictions: list[Prediction] = []

        async def block() -> None:
            async with open_service("m.py", worker=worker) as service:
                await service.wait_started()
                predictions.append(service.create(NewPrediction()))
                raise KeyError("mine")

        with pytest.raises(KeyError) as raised:
            await block()
        assert raised.value.args == ("mine",)
        assert predictions[0].status.value == "canceled"


async def test_b21_a_fault_of_ours_is_one_named_error(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with open_fake_worker() as worker:

        async def block() -> None:
            async with open_service("m.py", worker=worker) as service:
                await service.wait_started()
                monkeypatch.setattr(PredictionService, "_tell_health", broken)
                worker.exit(1)
                await trio.sleep_forever()

        with pytest.raises(ServiceBroken) as raised:
            await block()
        assert isinstance(raised.value.__cause__, BaseException)
        assert "ZeroDivisionError" in str(raised.value)
        assert worker.reaped


@pytest.mark.process
async def test_a_spawned_worker_is_never_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """D46: here the temporary folder can't be made, so the worker is never adopted."""
    process = spawn(command=("/bin/sh", "-c", "sleep 1000"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))

    async def block() -> None:
        async with open_service("m.py", worker=process):
            raise AssertionError("never reached")

    with pytest.raises(ServiceBroken, match="there is no temporary folder"):
        await block()
    assert process.popen.returncode == -9


async def test_a_killed_worker_that_does_not_go_is_defunct_and_the_service_lives(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process hangs in the kernel, and never reports an end."""
    async with serving(deaf, settings=Settings(cancel_grace=1.0)) as (service, worker):
        monkeypatch.setattr(worker, "kill", lambda: None)
        prediction = service.create(NewPrediction())
        await trio.testing.wait_all_tasks_blocked()
        prediction.cancel()
        await prediction.wait_finished()
        await trio.testing.wait_all_tasks_blocked()
        status, abandoned, seconds = service.health().status, worker.abandoned, trio.current_time()
        worker.exit(-9)  # for the fake's own tasks
        assert (status, abandoned) == ("DEFUNCT", True)
        assert prediction.error == "Worker killed: a canceled prediction did not stop within 1 s"
        assert seconds <= 1.0 + 5.0
        with pytest.raises(NotReady):
            service.create(NewPrediction())


async def test_an_outer_cancellation_does_not_hide_what_the_block_raises(autojump_clock: Clock) -> None:
    async def block() -> None:
        async with open_fake_worker() as worker, open_service("m.py", worker=worker):
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("mine")

    with pytest.RaisesGroup(KeyError), trio.move_on_after(1):  # the group is the fake worker's nursery's
        await block()


# Files.


def output_file(path: Path, index: int = 0, kind: FileOutputKind = FileOutputKind.FILE) -> FileOutput:
    return FileOutput(str(path), FileKind(kind), index)


def puts_out(path: Path) -> Behaviour:
    async def behave(worker: FakeWorker, run: Predict) -> None:
        worker.send(output_file(path), run.slot)
        worker.send(Done(proof_of(run), folder=True), run.slot)
        await trio.lowlevel.checkpoint()

    return behave


@pytest.mark.covers("worker:W67")
async def test_W67_idle_comes_after_files_taken(autojump_clock: Clock, tmp_path: Path) -> None:
    """The fake worker says Idle only when it gets FilesTaken; without that the slot would be poisoned."""
    (tmp_path / "a.txt").write_bytes(b"x")
    async with serving(puts_out(tmp_path / "a.txt")) as (service, _):
        for _ in range(3):
            assert (await service.predict()).output == "data:text/plain;base64,eA=="
        assert service.health().status == "READY"


@pytest.mark.covers("worker:W48")
async def test_W48_an_output_file_that_is_missing_fails_the_prediction(autojump_clock: Clock, tmp_path: Path) -> None:
    async with serving(puts_out(tmp_path / "gone.png")) as (service, _):
        prediction = await ended(service)
        assert prediction.status.value == "failed"
        assert prediction.error == f"FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/gone.png'"
        assert service.health().status == "READY"


@pytest.mark.covers("http:W4", "worker:W22", "lesson:35")
async def test_W22_the_runs_folder_is_removed_on_every_outcome(autojump_clock: Clock, tmp_path: Path) -> None:
    async def makes_a_folder(worker: FakeWorker, run: Predict) -> None:
        os.mkdir(run.output_dir)
        await (stall if run.id == "cancel" else exit_9 if run.id == "die" else echo)(worker, run)

    async with serving(makes_a_folder) as (service, _):
        await service.predict()
        await trio.testing.wait_all_tasks_blocked()  # the end of a run does not wait for its folder
        assert folders(tmp_path) == []
        prediction = service.create(NewPrediction(id="cancel"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(folders(tmp_path)) == 1
        service.cancel("cancel")
        await prediction.wait_finished()
        await trio.testing.wait_all_tasks_blocked()  # the end of a run does not wait for its folder
        assert folders(tmp_path) == []
        await ended(service, id="die")
        await trio.testing.wait_all_tasks_blocked()  # the end of a run does not wait for its folder
        assert folders(tmp_path) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.covers("D26")
async def test_D26_a_large_input_travels_as_a_file(autojump_clock: Clock, tmp_path: Path) -> None:
    async def read(worker: FakeWorker, run: Predict) -> None:
        assert isinstance(run.input_file, str)
        spilled = read_spilled(run.input_file)
        size = len(bytes(spilled.input))
        worker.finish(run, msgspec.json.encode([size, spilled.context, os.path.dirname(run.input_file)]))
        await trio.lowlevel.checkpoint()

    async with serving(read) as (service, _):
        text = json.dumps({"x": "y" * (7 * 2**20)}).encode()
        prediction = service.create(NewPrediction(id="../../x", input=text, context={"k": "v"}))
        await prediction.wait_finished()
        size, context, folder = prediction.output
        assert (size, context) == (len(text), {"k": "v"})
        assert "../x" not in folder
        await trio.testing.wait_all_tasks_blocked()  # the end of a run does not wait for its folder
        assert folders(tmp_path) == []


async def test_a_large_input_that_cant_be_spilled_fails_and_gives_the_permit_back(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> str:
        await trio.lowlevel.checkpoint()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cog_trio.service.prediction_tasks.spill", full)
    async with serving() as (service, _):
        prediction = service.create(NewPrediction(input=json.dumps("y" * (7 * 2**20)).encode()))
        await prediction.wait_finished()
        assert prediction.error == "OSError: [Errno 28] No space left on device"
        assert (await service.predict()).status.value == "succeeded"


@pytest.mark.covers("http:W5")
async def test_W5_a_cancel_while_spilling_gives_the_permit_back(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object) -> str:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("cog_trio.service.prediction_tasks.spill", slow)
    async with serving() as (service, _):
        prediction = service.create(NewPrediction(id="a", input=json.dumps("y" * (7 * 2**20)).encode()))
        await trio.sleep(1)
        service.cancel("a")
        await prediction.wait_finished()
        assert (prediction.status.value, prediction.predict_time) == ("canceled", 1.0)
        assert (await service.predict()).status.value == "succeeded"


@pytest.mark.covers("http:W30")
async def test_W30_the_readiness_file(autojump_clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "ready"
    settings = Settings(ready_file=str(path))
    async with serving(settings=settings) as (service, worker):
        await trio.testing.wait_all_tasks_blocked()
        assert exists(path)
        worker.exit(1)
        await trio.testing.wait_all_tasks_blocked()
        assert service.health().status == "DEFUNCT"
        assert not exists(path)
    async with serving(settings=settings) as (service, _):
        await trio.testing.wait_all_tasks_blocked()
        assert exists(path)
        service.shutdown()
        await trio.testing.wait_all_tasks_blocked()
        assert not exists(path)


# Logs.


async def test_text_after_setup_goes_to_the_user_log_with_its_id(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as (service, worker):
        before = service.health().setup
        worker.say(Log(LogSource.STDOUT, "late\nlines\n", PredictionId("p1")))
        worker.say(Log(LogSource.STDERR, "nobody's"))
        worker.say(WorkerLog("cog_trio.worker", LogLevel.WARNING, "told"))
        worker.say(DroppedLogs(3, 5000))
        await trio.testing.wait_all_tasks_blocked()
        told = [(record.getMessage(), getattr(record, "id", None)) for record in caplog.records]
        for line in [("late", "p1"), ("lines", "p1"), ("nobody's", None), ("told", None)]:
            assert line in told
        assert "dropped 3 log lines within 5000 ms" in caplog.text
        assert service.statistics().worker_lines_dropped == 3
        assert service.health().setup == before


@pytest.mark.covers("D25")
async def test_D25_a_prediction_over_the_log_limit_says_so(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(scripted(LogLine(LogSource.STDOUT, "x" * 50)), settings=Settings(log_limit=10)) as (service, _):
        prediction = await service.predict(id="a")
        assert prediction.logs == "x" * 10 + "\n[**** LOGS TRUNCATED AT 10 BYTES ****]\n"
        assert "1 log lines (40 bytes) were dropped: over the limit of 10 bytes" in caplog.text
        assert service.statistics().lines_over_limit == 1
