"""A sync prediction beside an async training, and what both need in one worker, in a real worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import trio

from cog_trio.bridge.protocol import (
    Described,
    Failed,
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Kind,
    Mode,
    SlotResponse,
)
from tests.worker.rig import Parent, open_worker

MIXED = """
    import asyncio, atexit, sys, time

    class Runner:
        async def setup(self):
            self.loop = asyncio.get_running_loop()

        def run(self, seconds: float = 0.0) -> str:
            print("running")
            time.sleep(seconds)
            async def inner():
                return "no loop before"
            return asyncio.run(inner())

        async def healthcheck(self) -> bool:
            await asyncio.sleep(0)
            return True

        async def train(self, seconds: float = 0.0, how: str = "wait") -> str:
            print("training")
            try:
                if how == "block":
                    time.sleep(seconds)
                elif how == "exit":
                    sys.exit(3)
                else:
                    await asyncio.sleep(seconds)
            finally:
                await asyncio.sleep(0)
                print("cleaned up")
            return f"loop of setup: {self.loop is asyncio.get_running_loop()}"

    atexit.register(print, "goodbye")
"""
BOTH: Final[Any] = {"predict_ref": "predict.py", "train_ref": "predict.py"}


async def train(parent: Parent, **input: object) -> list[object]:
    return (await parent.run(input, mode=Mode.TRAIN)).outputs


async def test_each_kind_runs_in_its_own_way(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MIXED, **BOTH) as parent:
        described = next(message for message in parent.heard if isinstance(message, Described))
        assert (described.kind, described.concurrency) == (Kind.SYNC, 1)
        assert described.inputs is not None
        assert described.train_inputs is not None
        assert [field.name for field in described.train_inputs.fields] == ["seconds", "how"]
        for _ in range(2):
            assert (await parent.run()).outputs == ["no loop before"]
            assert await train(parent) == ["loop of setup: True"]
        await parent.tell(Healthcheck("h"))
        assert (await parent.hear(HealthcheckResult)).status is HealthcheckStatus.HEALTHY
        assert await parent.leave() == 0
        assert "goodbye" in parent.service_log()


@pytest.mark.parametrize(
    ("mode", "input", "said"),
    [
        (Mode.PREDICT, {"seconds": 30}, "running\n"),
        (Mode.TRAIN, {"seconds": 30}, "training\ncleaned up\n"),
        (Mode.TRAIN, {"seconds": 30, "how": "block"}, "training\ncleaned up\n"),
    ],
)
async def test_each_kind_is_cancelled_in_its_own_way(
    tmp_path: Path, mode: Mode, input: dict[str, object], said: str
) -> None:
    async with open_worker(tmp_path, MIXED, **BOTH) as parent:
        for _ in range(2):
            predict = await parent.predict(input, mode=mode)
            frames: list[SlotResponse] = []
            await parent.wait_log(predict, said.partition("\n")[0], frames)
            begin = trio.current_time()
            await parent.cancel(predict)
            outcome = await parent.finish(predict, frames)
            assert outcome.cancelled
            assert outcome.logs() == said
            assert trio.current_time() - begin < 10
            assert await train(parent) == ["loop of setup: True"]
            assert (await parent.run()).done


async def test_a_cancel_that_is_faster_than_its_run(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MIXED, **BOTH) as parent:
        for mode in (Mode.TRAIN, Mode.PREDICT) * 20:
            predict = await parent.predict({"seconds": 30}, mode=mode)
            await parent.cancel(predict)
            assert (await parent.finish(predict)).cancelled


async def test_an_exit_in_a_training_is_its_failure(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MIXED, **BOTH) as parent:
        assert (await parent.run({"how": "exit"}, mode=Mode.TRAIN)).error == "SystemExit: 3"
        assert (await parent.run()).done


async def test_a_callable_that_there_is_not_breaks_the_slot(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MIXED) as parent:
        described = next(message for message in parent.heard if isinstance(message, Described))
        assert described.train_inputs is None
        await parent.predict(mode=Mode.TRAIN)
        assert "Predict to train" in (await parent.hear(Failed)).error
