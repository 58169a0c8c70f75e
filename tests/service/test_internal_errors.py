"""One unforeseen exception in each task of a service: that thing fails, the service is READY, the next run succeeds.

``POINTS`` is the table of places where an exception is injected, once; each is in a task that serves one thing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import FileKind, FileOutput, FileOutputKind, Inputs, Predict
from cog_trio.config.settings import Settings
from cog_trio.files import output_files, workspace
from cog_trio.net import http_client
from cog_trio.orchestrator import worker_handle
from cog_trio.orchestrator.health_checks import HealthChecks
from cog_trio.orchestrator.run import Run
from cog_trio.orchestrator.slot import Slot
from cog_trio.service import webhook_sender
from cog_trio.service.open_service import open_service
from cog_trio.service.prediction_queue import PredictionQueue
from cog_trio.service.reload import Reload
from cog_trio.service.service import PredictionService
from cog_trio.service.watchers import Watchers
from cog_trio.service.webhook_sender import Webhooks, WebhookSender
from cog_trio.state.internal_errors import INTERNAL_ERROR, Where, counts
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.testing.fakes import FakeWorker, echo, open_fake_worker
from tests.orchestrator.test_respawn import Spawner
from tests.service.test_service import Clock, no_threads, temporary_folder

__all__ = ["no_threads", "temporary_folder"]

INPUT: Final = {"type": "object", "properties": {"n": {}, "file": {}, "long": {}}}
URL: Final = "http://receiver.example/hook"


def deep() -> None:
    deep()


def out_of_memory() -> None:
    raise MemoryError


def bug() -> None:
    raise LookupError("a bug")


FAULTS: Final = (bug, deep, out_of_memory)


class Fault:
    """Stands in for a function: raises at its first call, then it is the function."""

    def __init__(self, fault: Callable[[], None], real: Callable[..., Any]) -> None:
        self.fault = fault
        self.real = real
        self.raised = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not self.raised:
            self.raised += 1
            self.fault()
        return self.real(*args, **options)

    def __get__(self, owner: Any, kind: type[Any]) -> Any:
        return lambda *args, **options: self(owner, *args, **options)


@dataclass
class Stage:
    """What an act has to do with."""

    service: PredictionService
    worker: FakeWorker
    webhooks: list[str]  # statuses that the receiver has been told
    folder: Path


async def webhook(stage: Stage) -> None:
    prediction = stage.service.create(NewPrediction(webhook=URL))
    await prediction.wait_finished()
    await trio.sleep(100)
    assert prediction.status.value == "succeeded"
    assert stage.service.statistics().webhooks == 0


async def webhook_is_given_up(stage: Stage) -> None:
    await webhook(stage)
    assert stage.service.statistics().webhooks_failed == 1


async def webhook_is_retried(stage: Stage) -> None:
    await webhook(stage)
    assert stage.webhooks[-1] == "succeeded"
    assert stage.service.statistics().webhooks_failed == 0


async def file_fails_its_prediction(stage: Stage) -> None:
    prediction = stage.service.create(NewPrediction(input=b'{"file": true}'))
    await prediction.wait_finished()
    assert (prediction.status.value, prediction.error) == ("failed", INTERNAL_ERROR)


async def check_fails(stage: Stage) -> None:
    shown = await stage.service.check_health()
    assert shown.user_healthcheck_error == INTERNAL_ERROR
    assert (await stage.service.check_health()).user_healthcheck_error is None


async def abandoned_run_ends(stage: Stage) -> None:
    prediction = stage.service.create(NewPrediction(input=b'{"long": true}', streamed=True))
    with stage.service.follow(prediction):
        await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(1)
    assert prediction.terminal


async def reload_goes_on(stage: Stage) -> None:
    stage.service.reload("changed")
    await stage.service.wait_ready()


async def nothing(stage: Stage) -> None:
    await trio.testing.wait_all_tasks_blocked()


async def ready_file_comes_back(stage: Stage) -> None:
    """The fault was in the first change of the file."""
    await trio.testing.wait_all_tasks_blocked()
    assert (stage.folder / "ready").exists()


async def run_fails(stage: Stage) -> None:
    prediction = stage.service.create(NewPrediction())
    await prediction.wait_finished()
    assert (prediction.status.value, prediction.error) == ("failed", INTERNAL_ERROR)


async def waiting_run_fails(stage: Stage) -> None:
    running = [stage.service.create(NewPrediction(input=b'{"long": true}')) for _ in range(2)]
    waiting = stage.service.create(NewPrediction())
    await waiting.wait_finished()
    assert (waiting.status.value, waiting.error) == ("failed", INTERNAL_ERROR)
    for prediction in running:
        prediction.cancel()
        await prediction.wait_finished()


POINTS: Final[tuple[tuple[str, Where, Any, str, Callable[[Stage], Awaitable[None]]], ...]] = (
    ("message of a slot", Where.SLOT, Run, "apply", run_fails),
    ("start of a run", Where.RUN, Slot, "start", run_fails),
    ("wait for a slot", Where.RUN, PredictionQueue, "wait", waiting_run_fails),
    ("files of a run", Where.RUN, output_files.OutputFiles, "settled", file_fails_its_prediction),
    ("updates", Where.WEBHOOK, WebhookSender, "send_updates", webhook_is_given_up),
    ("delivery", Where.WEBHOOK, WebhookSender, "insist", webhook_is_given_up),
    ("wait before a retry", Where.WEBHOOK, WebhookSender, "_request", webhook_is_retried),
    ("client", Where.WEBHOOK, Webhooks, "_lend_client", webhook_is_retried),
    ("data URL", Where.OUTPUT_FILE, output_files, "load_data_url", file_fails_its_prediction),
    ("all files", Where.OUTPUT_FILE, output_files.OutputFiles, "_take_all", file_fails_its_prediction),
    ("check", Where.HEALTH_CHECK, HealthChecks, "ask", check_fails),
    ("grace of a stream", Where.WATCHER, Watchers, "_wait_for_return", abandoned_run_ends),
    ("drain of a reload", Where.RELOAD, Reload, "_drain", reload_goes_on),
    ("schema", Where.SCHEMA, worker_handle, "_model_callable", nothing),
    ("predecessors", Where.FILES, workspace, "sweep", nothing),
    ("ready file", Where.FILES, workspace, "_unlink", ready_file_comes_back),
)


@asynccontextmanager
async def on_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    told: list[str] = []

    async def receive(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        told.append(json.loads(request.content)["status"])
        return httpx.Response(200)

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
        async with http_client.open_client(**{**options, "transport": httpx.MockTransport(receive)}) as real:
            yield real

    async def behave(worker: FakeWorker, run: Predict) -> None:
        assert isinstance(run.input, msgspec.Raw)
        if b"long" in bytes(run.input):
            await trio.sleep_forever()
        if b"file" not in bytes(run.input):
            await echo(worker, run)
            return
        (folder / "out.txt").write_text("content")
        worker.send(FileOutput(str(folder / "out.txt"), FileKind(FileOutputKind.FILE), 0), run.slot)
        worker.finish(run)

    monkeypatch.setattr(webhook_sender, "open_client", opened)
    settings = Settings(stream_grace=0.5, webhook_grace=1.0, ready_file=str(folder / "ready"), queue=1)
    async with (
        open_fake_worker(behave, healthcheck=True, concurrency=2) as worker,
        open_fake_worker(behave, healthcheck=True, concurrency=2) as second,
    ):
        for fake in (worker, second):
            fake.inputs = Inputs("Input")
            fake.document = {"openapi": "3.0.2", "components": {"schemas": {"Input": INPUT}}}
        monkeypatch.setattr(worker_handle, "spawn", Spawner([second]))
        async with open_service("m.py", worker=worker, settings=settings) as service:
            await service.wait_ready()
            yield Stage(service, worker, told, folder)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("where", "owner", "name", "act"), [row[1:] for row in POINTS], ids=[row[0] for row in POINTS])
async def test_an_internal_error_costs_one_thing(
    where: Where,
    owner: Any,
    name: str,
    act: Callable[[Stage], Awaitable[None]],
    fault: Callable[[], None],
    tmp_path: Path,
    autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Fault(fault, getattr(owner, name))
    monkeypatch.setattr(owner, name, broken)
    before = counts.copy()
    async with on_stage(tmp_path, monkeypatch) as stage:
        await act(stage)
        assert broken.raised == 1
        assert stage.service.health().status == "READY"
        following: Prediction = await stage.service.predict({"n": 1})
        assert following.output == {"n": 1}
    assert counts - before == {where: 1}
    (record,) = [record for record in caplog.records if record.name == "cog_trio.internal"]
    assert record.exc_info is not None
