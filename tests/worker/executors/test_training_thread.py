"""A sync training beside an async prediction, in a thread of a real worker: on an asyncio and on a trio loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from cog_trio.bridge.protocol import Described, Kind, Mode, Predict, SlotResponse
from tests.worker.rig import Parent, open_worker

MODEL: Final = """
    import asyncio, threading, time, trio
    import cog_trio.sdk as cog

    class Finalizer:
        def __del__(self):
            print("finalizer")
            while True:
                pass

    # Loops of their own: on Python 3.13 the jump back of a loop is in no try of the same function.
    def forever(step=None):
        while True:
            if step is not None:
                step()

    def ones():
        while True:
            yield 1

    class Runner:
        async def setup(self):
            self.thread = threading.get_ident()

        {mark}
        @cog.concurrent(max=4)
        async def run(self, seconds: float = 0.0) -> bool:
            print("running")
            await {sleep}(seconds)
            return self.thread == threading.get_ident()

        def train(self, how: str = "return") -> list:
            try:
                print(f"training {{how}}")
                cog.current_scope().record_metric("loss", 0.5)
                yield self.thread == threading.get_ident()
                if how == "compute":
                    forever()
                if how == "print":
                    forever(lambda: print(".", end=""))
                if how == "nap":
                    forever(lambda: time.sleep(0.01))
                if how == "yield":
                    yield from ones()
                if how == "fail":
                    raise ValueError("no convergence")
                if how == "fork":
                    import os
                    if not (child := os.fork()):
                        return
                    yield os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                if how == "loop":
                    asyncio.run(asyncio.sleep(0))
                if how == "finalizer":
                    Finalizer()
                    forever()
                if how in ("import", "import again"):
                    import slow_module
                    yield slow_module.whole
                    if how == "import":
                        forever()
            except cog.CancelationException:
                print("\\ncleaned up")
                raise
"""
LOOPS: Final = {
    "asyncio": MODEL.format(mark="", sleep="asyncio.sleep"),
    "trio": MODEL.format(mark="@cog.trio", sleep="trio.sleep"),
}
BOTH: Final[Any] = {"predict_ref": "predict.py", "train_ref": "predict.py"}


@pytest.fixture(params=LOOPS)
def source(request: pytest.FixtureRequest) -> str:
    return LOOPS[request.param]


async def begin(parent: Parent, how: str) -> tuple[Predict, list[SlotResponse]]:
    """Start a training, and wait until it runs."""
    frames: list[SlotResponse] = []
    predict = await parent.predict({"how": how}, mode=Mode.TRAIN)
    await parent.wait_log(predict, f"training {how}", frames)
    return predict, frames


@pytest.mark.covers("D18")
async def test_D18_a_training_runs_beside_predictions_and_is_cancelled(tmp_path: Path, source: str) -> None:
    async with open_worker(tmp_path, source, **BOTH) as parent:
        described = next(message for message in parent.heard if isinstance(message, Described))
        assert (described.kind is Kind.SYNC, described.concurrency, described.no_training) == (False, 4, None)
        whole = await parent.run({}, mode=Mode.TRAIN)
        assert (whole.outputs, whole.metrics) == ([False], [("loss", 0.5, "replace")])
        assert whole.logs() == "training return\n"
        assert (await parent.run({"how": "fail"}, mode=Mode.TRAIN)).error == "ValueError: no convergence"
        assert (await parent.run({"how": "loop"}, mode=Mode.TRAIN)).done
        assert (await parent.run({"how": "fork"}, mode=Mode.TRAIN)).outputs == [False, 1]
        for how in ("compute", "print", "nap", "yield") * 2:
            predict, frames = await begin(parent, how)
            assert (await parent.run({}, slot=1)).outputs == [True]
            await parent.cancel(predict)
            outcome = await parent.finish(predict, frames)
            assert outcome.cancelled
            assert outcome.logs().endswith("\ncleaned up\n")
        assert await parent.leave() == 0


async def test_a_cancel_in_a_finalizer_comes_again(tmp_path: Path, source: str) -> None:
    async with open_worker(tmp_path, source, **BOTH) as parent:
        predict, frames = await begin(parent, "finalizer")
        await parent.wait_log(predict, "\nfinalizer", frames)
        await parent.cancel(predict)
        outcome = await parent.finish(predict, frames)
        assert outcome.cancelled
        assert outcome.logs().endswith("\ncleaned up\n")


async def test_a_cancel_waits_for_an_import(tmp_path: Path, source: str) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import time\nprint('importing')\nfor _ in range(50):\n    time.sleep(0.01)\nwhole = True\n"
    )
    async with open_worker(tmp_path, source, **BOTH) as parent:
        predict, frames = await begin(parent, "import")
        await parent.wait_log(predict, "importing", frames)
        await parent.cancel(predict)
        outcome = await parent.finish(predict, frames)
        assert outcome.cancelled
        assert outcome.outputs in ([False], [False, True])
        assert (await parent.run({"how": "import again"}, mode=Mode.TRAIN)).outputs == [False, True]


async def test_trainings_take_turns(tmp_path: Path, source: str) -> None:
    async with open_worker(tmp_path, source, **BOTH) as parent:
        first, frames = await begin(parent, "nap")
        second = await parent.predict({}, mode=Mode.TRAIN, slot=1)
        third = await parent.predict({"how": "compute"}, mode=Mode.TRAIN, slot=2)
        await parent.cancel(third)
        ended = await parent.finish(third)  # it waited for its turn
        assert (ended.cancelled, ended.logs()) == (True, "")
        await parent.cancel(first)
        assert (await parent.finish(first, frames)).cancelled
        assert (await parent.finish(second)).outputs == [False]


async def test_a_cancel_that_is_faster_than_its_training(tmp_path: Path, source: str) -> None:
    async with open_worker(tmp_path, source, **BOTH) as parent:
        for _ in range(30):
            predict = await parent.predict({"how": "compute"}, mode=Mode.TRAIN)
            await parent.cancel(predict)
            assert (await parent.finish(predict)).cancelled
        assert (await parent.run({}, mode=Mode.TRAIN)).done


BACKGROUND: Final = """
    import time, trio
    import cog_trio.sdk as cog

    class Runner:
        async def setup(self, nursery):
            self.fail = trio.Event()
            nursery.start_soon(self.background)

        async def background(self):
            await self.fail.wait()
            raise ValueError("the engine is gone")

        @cog.trio
        @cog.concurrent(max=2)
        async def run(self) -> None:
            self.fail.set()

        def train(self, how: str) -> None:
            print("training", how)
            while True:
                time.sleep(0.01)
"""


async def test_a_fault_of_the_model_ends_its_training(tmp_path: Path) -> None:
    async with open_worker(tmp_path, BACKGROUND, **BOTH) as parent:
        predict, frames = await begin(parent, "nap")
        await parent.predict({}, slot=1)
        outcome = await parent.finish(predict, frames)
        assert "the engine is gone" in outcome.error
