"""A service in a thread of its own, asked by plain code and by asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Final

import pytest
import trio

import cog_trio
from cog_trio.portal import ServicePortal, start_service

pytestmark = pytest.mark.process

MODEL: Final = """
import time
from collections.abc import Iterator
from cog import BaseRunner

class Runner(BaseRunner):
    def run(self, words: list[str] = ["a", "b"], wait: float = 0.0, fail: bool = False) -> Iterator[str]:
        for word in words:
            yield word
        time.sleep(wait)
        if fail:
            raise ValueError("boom")
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "predict.py").write_text(MODEL)
    return str(tmp_path / "predict.py")


def _service_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cog_trio service"]


def test_plain_code_runs_streams_cancels_and_leaves_nothing(model: str) -> None:
    with start_service(model) as service:
        service.wait_ready(timeout=60)
        assert service.predict({"words": ["x"]}).result() == ["x"]
        with pytest.raises(cog_trio.PredictionFailed, match="boom"):
            service.predict({"fail": True}).result()
        with pytest.raises(cog_trio.InvalidInput):
            service.predict({"wait": "long"})
        with pytest.raises(TimeoutError, match=r"within 0\.2 s, and was cancelled"):
            service.predict({"wait": 100.0}, id="t", timeout=0.2)
        cancelled = service.get("t")
        assert cancelled is not None
        assert cancelled.status.value == "canceled"
        outputs = [event.value for event in service.stream({"words": ["x", "y"]}) if isinstance(event, cog_trio.Output)]
        assert outputs == ["x", "y"]
        events = service.stream({"words": ["x"], "wait": 100.0}, id="left")
        assert any(isinstance(event, cog_trio.Output) for event in events)
        events.close()
        left = service.get("left")
        assert left is not None
        assert left.status.value == "canceled"
        submitted = service.submit({"wait": 100.0}, id="s")
        assert service.cancel("s")
        assert not service.cancel("nobody")
        assert submitted.id == "s"
        assert service.health().status in ("READY", "BUSY")
    assert _service_threads() == []
    with pytest.raises(RuntimeError, match="its block was left"):
        service.predict({})


def test_asyncio_runs_side_by_side_and_a_cancelled_await_cancels(model: str) -> None:
    async def main() -> None:
        with start_service(model, settings=cog_trio.Settings(queue=4)) as service:
            await service.asyncio.wait_ready(60)
            done = await asyncio.gather(*(service.asyncio.predict({"words": [str(n)]}) for n in range(3)))
            assert [prediction.result() for prediction in done] == [["0"], ["1"], ["2"]]
            task = asyncio.create_task(service.asyncio.predict({"wait": 100.0}, id="a"))
            await asyncio.wait_for(_until(service, "a", "processing"), 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(_until(service, "a", "canceled"), 30)
            events = [event async for event in service.asyncio.stream({"words": ["x"]})]
            assert isinstance(events[-1], cog_trio.Completed)

    asyncio.run(main())
    assert _service_threads() == []


async def _until(service: ServicePortal, id: str, *statuses: str) -> None:
    while (found := await service.asyncio.get(id)) is None or found.status.value not in statuses:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_an_error_of_the_block_passes_through_and_cuts_what_runs(model: str) -> None:
    def leave(service: ServicePortal) -> None:
        service.wait_ready(60)
        service.submit({"wait": 100.0})
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), start_service(model) as service:
        leave(service)
    assert _service_threads() == []


def test_a_model_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(cog_trio.BadModel, match="no file or folder"), start_service(tmp_path / "nothing.py"):
        pass
    assert _service_threads() == []


def test_open_service_under_asyncio_says_what_to_do(model: str) -> None:
    async def main() -> None:
        async with cog_trio.open_service(model):
            pass

    with pytest.raises(RuntimeError, match=r"cog_trio\.portal\.start_service"):
        asyncio.run(main())


def test_who_is_too_early_is_told_to_wait(model: str) -> None:
    with start_service(model) as service, pytest.raises(cog_trio.NotReady, match=r"await service\.wait_ready\(\)"):
        service.predict({})


def test_an_error_of_any_kind_ends_its_call_alone(model: str) -> None:
    async def fails(error: BaseException) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    with start_service(model) as service:
        for error in (trio.TooSlowError(), RecursionError(), SystemExit(3), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                service._calls.begin(fails, error).result(30)
        service.wait_ready(60)
        assert service.predict({"words": ["x"]}).result() == ["x"]


def test_who_waits_when_the_block_is_left_is_told(model: str) -> None:
    told: list[BaseException] = []

    def wait(service: ServicePortal) -> None:
        try:
            service.predict({"wait": 100.0}, id="w")
        except RuntimeError as error:
            told.append(error)

    with start_service(model, settings=cog_trio.Settings(drain_grace=0)) as service:
        service.wait_ready(60)
        waiting = threading.Thread(target=wait, args=[service])
        waiting.start()
        while service.get("w") is None:
            time.sleep(0.01)
    waiting.join(30)
    assert not waiting.is_alive()
    assert [str(error) for error in told] == ["the service is closed: its block was left"]
