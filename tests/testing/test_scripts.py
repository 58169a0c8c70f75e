"""A fake worker plays what a test wrote, on the test's clock."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio

from cog_trio import AtCapacity
from cog_trio.bridge.protocol import LogLine, LogSource, OutputChunk
from cog_trio.testing import Behaviour, FakeWorkers, OpenService, answer, fakes, scripted

LIST = {
    "openapi": "3.0.2",
    "paths": {},
    "components": {"schemas": {"Input": {"type": "object"}, "Output": {"type": "array", "items": {}}}},
}


async def play(fake_worker: FakeWorkers, open_service: OpenService, behaviour: Behaviour, **options: Any) -> Any:
    async with fake_worker(behaviour, **options) as worker, open_service(worker=worker) as service:
        return json.loads((await service.predict({"any": 1})).snapshot())


async def test_an_answer_takes_the_time_it_says(fake_worker: FakeWorkers, open_service: OpenService) -> None:
    state = await play(fake_worker, open_service, answer("done", logs="busy\n", seconds=3600))
    assert (state["status"], state["output"], state["logs"]) == ("succeeded", "done", "busy\n")
    assert trio.current_time() == 3600


async def test_several_outputs_are_a_list(fake_worker: FakeWorkers, open_service: OpenService) -> None:
    state = await play(fake_worker, open_service, answer(1, {"a": 2}, seconds=1), document=LIST)
    assert state["output"] == [1, {"a": 2}]
    assert trio.current_time() == 2


async def test_an_answer_may_be_an_error(fake_worker: FakeWorkers, open_service: OpenService) -> None:
    state = await play(fake_worker, open_service, answer(error="ValueError: no"))
    assert (state["status"], state["error"]) == ("failed", "ValueError: no")


async def test_frames_and_pauses(fake_worker: FakeWorkers, open_service: OpenService) -> None:
    steps = (LogLine(LogSource.STDERR, "a"), 60, OutputChunk(msgspec.Raw(b"1"), 0), 60.0)
    state = await play(fake_worker, open_service, scripted(*steps))
    assert (state["logs"], state["output"]) == ("a", 1)
    assert trio.current_time() == 120


async def test_the_default_gives_the_input_back(fake_worker: FakeWorkers, open_service: OpenService) -> None:
    assert (await play(fake_worker, open_service, fakes.echo))["output"] == {"any": 1}


async def test_a_full_service_and_a_cancel(fake_worker: FakeWorkers, open_service: OpenService) -> None:
    """Given one slot that is taken for an hour, when another prediction comes, then it is refused; leaving ends it."""
    async with fake_worker(answer("x", seconds=3600)) as worker, open_service(worker=worker) as service:
        with trio.move_on_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.predict, {})
                await trio.sleep(1)
                with pytest.raises(AtCapacity):
                    await service.predict({})
        assert trio.current_time() == 10
        assert service.health().status == "READY"
