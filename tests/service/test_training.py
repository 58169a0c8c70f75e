"""Predictions and trainings in one service: which callable is called, and by which table its inputs are checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import Input, Inputs, Mode, Predict
from cog_trio.inputs.validation import InvalidInput
from cog_trio.service.service import PredictionService
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import ABSENT, AlreadyRunning, AtCapacity, NotOffered, NotReady
from cog_trio.testing.fakes import Behaviour, FakeWorker, echo, open_fake_worker, stall
from tests.service.test_service import no_threads, temporary_folder

__all__ = ["no_threads", "temporary_folder"]  # fixtures

Clock = trio.testing.MockClock
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.2",
    "paths": {},
    "components": {
        "schemas": {
            "Input": {"type": "object", "properties": {"a": {"type": "integer", "x-order": 0}}},
            "Output": {"type": "string"},
            "TrainingInput": {"type": "object", "properties": {"a": {"type": "string", "x-order": 0}}},
            "TrainingOutput": {"type": "array", "items": {}},
        }
    },
}


@asynccontextmanager
async def serving(
    model: str | None, train: str | None, behaviour: Behaviour = echo, **more: Any
) -> AsyncIterator[tuple[PredictionService, FakeWorker]]:
    from cog_trio import open_service

    async with open_fake_worker(behaviour, document=more.pop("document", DOCUMENT)) as worker:
        worker.inputs = None if model is None else Inputs("Input", (Input("a", "int"),))
        worker.train_inputs = None if train is None else Inputs("TrainingInput", (Input("a", "str"),))
        async with open_service(model, worker=worker, train=train, **more) as service:
            yield service, worker


async def test_each_is_checked_by_its_own_table_and_shaped_by_its_own_output(autojump_clock: Clock) -> None:
    async with serving("m.py", "t.py") as (service, _):
        await service.wait_started()
        with pytest.raises(InvalidInput):
            service.create(NewPrediction(input=b'{"a": "x"}'))
        with pytest.raises(InvalidInput):
            service.create(NewPrediction(input=b'{"a": 1}', mode=Mode.TRAIN))
        training = service.create(NewPrediction(input=b'{"a": "x"}', mode=Mode.TRAIN))
        await training.wait_finished()
        assert training.output == [{"a": "x"}]
        prediction = service.create(NewPrediction(input=b'{"a": 1}'))
        await prediction.wait_finished()
        assert prediction.output == {"a": 1}


async def test_predict_names_the_callable(autojump_clock: Clock) -> None:
    seen: list[Mode] = []

    async def note(worker: FakeWorker, run: Predict) -> None:
        seen.append(run.mode)
        await echo(worker, run)

    async with serving("m.py", "t.py", note) as (service, _):
        await service.wait_started()
        for mode in (Mode.TRAIN, Mode.PREDICT):
            await service.create(NewPrediction(mode=mode)).wait_finished()
    assert seen == [Mode.TRAIN, Mode.PREDICT]


@pytest.mark.covers("http:W26", "D18")
@pytest.mark.parametrize(
    ("model", "train", "modes"),
    [("m.py", None, {Mode.PREDICT}), (None, "t.py", {Mode.TRAIN}), ("m.py", "t.py", set(Mode))],
)
async def test_W26_what_is_served_is_known_from_the_start(
    autojump_clock: Clock, model: str | None, train: str | None, modes: set[Mode]
) -> None:
    async with serving(model, train) as (service, _):
        assert {mode for mode in Mode if service.absence(mode) is None} == modes
        for mode in Mode:
            with pytest.raises(NotReady if mode in modes else NotOffered) as refused:
                service.create(NewPrediction(id="a", mode=mode))
            assert refused.value.id == "a"
            assert mode in modes or refused.value.text == ABSENT[mode]
        await service.wait_started()


async def test_one_space_of_ids_and_one_set_of_slots(autojump_clock: Clock) -> None:
    async with serving("m.py", "t.py", stall) as (service, _):
        await service.wait_started()
        training = service.create(NewPrediction(id="a", mode=Mode.TRAIN))
        with pytest.raises(AlreadyRunning):
            service.create(NewPrediction(id="a"))
        with pytest.raises(AtCapacity):
            service.create(NewPrediction(id="b"))
        assert service.running("a") is training
        assert service.cancel("a")
        await training.wait_finished()
        assert service.get("a") is training


async def test_a_document_without_the_training_checks_the_predictions_all_the_same(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    schemas = {"Input": DOCUMENT["components"]["schemas"]["Input"]}
    async with serving("m.py", "t.py", document={**DOCUMENT, "components": {"schemas": schemas}}) as (service, _):
        await service.wait_started()
        training = service.create(NewPrediction(input=b'{"a": 1}', mode=Mode.TRAIN))
        await training.wait_finished()
        assert training.output == {"a": 1}
        with pytest.raises(InvalidInput):
            service.create(NewPrediction(input=b'{"a": "x"}'))
    assert "can't be compiled" in caplog.text
