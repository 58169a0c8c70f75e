"""Large inputs: checked in a thread, then created in one step, by whatever model there is by then."""

from __future__ import annotations

from typing import Any

import pytest

from cog_trio.bridge.protocol import Mode
from cog_trio.inputs.validation import Checked, InvalidInput, MalformedInput, check_input
from cog_trio.orchestrator.worker_handle import ModelCallable
from cog_trio.service import service as module
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import NotReady
from cog_trio.testing.fakes import stall
from tests.service.test_service import validating


async def test_what_is_checked_is_created_without_another_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async with validating(stall) as service:
        checked = await service.check_input(NewPrediction(b'{"n":1,"other":2,"key":"hidden"}'))
        assert checked == Checked(b'{"n":1,"key":"hidden"}', b'{"n":1,"key":"**********"}', ["other"])
        monkeypatch.setattr("cog_trio.orchestrator.worker_handle.check_input", None)
        assert service.create(NewPrediction(id="a"), checked).input == checked.echo
        service.cancel("a")  # else the end waits for it, as long as a drain may take


async def test_a_refusal_is_counted_once_and_comes_after_not_ready() -> None:
    async with validating(stall) as service:
        for input, kind in ((b'{"n":"x"}', InvalidInput), (b'{"n":1e999}', MalformedInput)):
            with pytest.raises(kind):
                await service.check_input(NewPrediction(input))
        assert service.statistics().refused == 2
        service.shutdown()
        with pytest.raises(NotReady):
            await service.check_input(NewPrediction(b'{"n":"x"}'))


async def test_a_model_that_was_reloaded_meanwhile_checks_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with validating(stall) as service:
        validators = []

        def noted(input: bytes, validator: Any) -> Checked:
            validators.append(validator)
            (worker,) = service._worker_pool._workers
            worker.model_callables[Mode.PREDICT] = ModelCallable(None)
            return check_input(input, validator)

        monkeypatch.setattr(module, "check_input", noted)
        assert (await service.check_input(NewPrediction(b'{"n":1,"other":2}'))).dropped == []
        assert [validator is None for validator in validators] == [False, True]
