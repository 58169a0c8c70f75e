"""A trio model's loop from setup to the end, in a real worker: its nursery, its trainings, and who may end it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from cog_trio.bridge.protocol import (
    Described,
    Failed,
    Fatal,
    Healthcheck,
    HealthcheckResult,
    Init,
    Kind,
    Mode,
    SlotResponse,
    WorkerLog,
)
from cog_trio.worker.model.load import load_models
from tests.worker.rig import open_worker

BATCHES: Final = """
    import atexit, cog, trio
    class Runner(cog.BaseRunner):
        async def setup(self, nursery: trio.Nursery) -> None:
            self.ask, asked = trio.open_memory_channel(16)
            nursery.start_soon(self.serve, asked)
            self.task = trio.lowlevel.current_task()
            await trio.to_thread.run_sync(print, "set up")
        async def serve(self, asked) -> None:
            try:
                async for x, answer in asked:
                    if x < 0: raise RuntimeError("no batches any more")
                    answer.send_nowait(2 * x)
            finally:
                print("the batches end")
        @cog.trio
        @cog.concurrent(max=4)
        async def run(self, x: int) -> int:
            send, receive = trio.open_memory_channel(1)
            try:
                await self.ask.send((x, send))
                return await receive.receive()
            finally:
                print("left")
                with trio.move_on_after(0.3 * (x < 0), shield=True): await trio.sleep(30)
    atexit.register(print, "goodbye")
"""
BOTH: Final[Any] = {"predict_ref": "predict.py", "train_ref": "predict.py"}


@pytest.mark.covers("D30")
async def test_D30_a_nursery_for_tasks_that_last_as_long_as_the_worker(tmp_path: Path) -> None:
    async with open_worker(tmp_path, BATCHES) as parent:
        described = next(message for message in parent.heard if isinstance(message, Described))
        assert (described.kind, described.concurrency) == (Kind.TRIO, 4)
        assert parent.service_log() == "set up\n"
        predicts = [await parent.predict({"x": slot}, slot=slot) for slot in range(4)]
        assert [(await parent.finish(predict)).outputs for predict in predicts] == [[0], [2], [4], [6]]
        assert await parent.leave() == 0
        assert parent.service_log() == "set up\nthe batches end\ngoodbye\n"
        assert not [message for message in parent.heard if isinstance(message, WorkerLog)]


async def test_a_task_of_that_nursery_that_fails_takes_the_worker_along(tmp_path: Path) -> None:
    """Runs that wait for it would wait for ever: they fail by its error, and the parent is told."""
    async with open_worker(tmp_path, BATCHES) as parent:
        predict = await parent.predict({"x": -1})
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "left", frames)
        late = await parent.run({"x": 1}, slot=1)
        outcome = await parent.finish(predict, frames)
        assert outcome.error == late.error == "RuntimeError: no batches any more (in a background task of the model)"
        assert outcome.logs() == "left\n"
        fatal = await parent.hear(Fatal)
        assert fatal.reason.endswith("ended by a task of the model: RuntimeError: no batches any more")
        (log,) = [message for message in parent.heard if isinstance(message, WorkerLog)]
        assert "in serve" in log.message
        assert await parent.wait_exit() == 0


async def test_a_system_task_that_fails_does_so_too(tmp_path: Path) -> None:
    source = """
        import cog, trio
        async def system(): raise ValueError("system")
        @cog.trio
        @cog.concurrent(max=2)
        async def Runner(go: bool = False) -> None:
            print("go")
            if go: trio.lowlevel.spawn_system_task(system)
            await trio.sleep(30)
    """
    async with open_worker(tmp_path, source) as parent:
        other = await parent.predict({}, slot=1)
        frames: list[SlotResponse] = []
        await parent.wait_log(other, "go", frames)
        lost = "the trio loop of the worker was ended by a task of the model"
        assert (await parent.run({"go": True})).error == lost
        assert (await parent.finish(other, frames)).error == lost
        assert (await parent.hear(Fatal)).reason == f"{lost}: ValueError: system"
        assert await parent.wait_exit() == 0


SETUPS: Final = {
    "async def setup(self): raise ValueError('no')": "ValueError: no",
    "async def setup(self):\n  async with trio.open_nursery() as n: n.start_soon(self.fail)": "ValueError: child",
    "async def setup(self, nursery):\n  nursery.start_soon(self.fail)\n  await trio.sleep(30)": "ValueError: child",
    "async def setup(self): raise SystemExit(3)": "SystemExit: 3",
    "def setup(self): trio.run(self.fail)": "ValueError: child",
    "async def setup(self):\n  trio.lowlevel.spawn_system_task(self.fail)\n  await trio.sleep(30)": "ValueError: child",
}


@pytest.mark.covers("worker:W6")
@pytest.mark.parametrize("setup", SETUPS)
async def test_W6_setups_that_fail(tmp_path: Path, setup: str) -> None:
    source = f"""
import cog, trio
@cog.trio
class Runner:
 {setup}
 async def fail(self): raise ValueError("child")
 async def run(self) -> int: return 1
"""
    async with open_worker(tmp_path, source, ready=False) as parent:
        await parent.tell(Init("predict.py"))
        assert (await parent.hear(Failed)).error == SETUPS[setup]
        assert SETUPS[setup] in parent.service_log()
        assert await parent.wait_exit() == 0


async def test_a_plain_setup_may_run_a_loop_of_its_own_and_a_fork_in_an_async_one_ends(tmp_path: Path) -> None:
    source = """
        import cog, os, trio
        from typing import Any
        @cog.trio
        class Runner:
            def setup(self, weights: str = None) -> None:
                self.weights = weights
                trio.run(trio.sleep, 0)
            async def run(self, fork: bool = False) -> Any:
                if fork:
                    async with trio.open_nursery() as nursery:
                        if not (child := os.fork()): raise SystemExit(5)
                    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                return self.weights
    """
    async with open_worker(tmp_path, source, env={"COG_WEIGHTS": "w"}) as parent:
        assert (await parent.run()).outputs == ["w"]
        assert (await parent.run({"fork": True})).outputs == [5]
        assert (await parent.run()).outputs == ["w"]
        assert await parent.leave() == 0


async def test_a_training_shares_the_loop_and_both_are_cancelled_by_their_scopes(tmp_path: Path) -> None:
    source = """
        import cog, trio
        @cog.trio
        class Runner:
            async def setup(self) -> None: self.lock = trio.Lock()
            async def run(self, seconds: float = 0.0) -> str: return await self.work("run", seconds)
            async def train(self, seconds: float = 0.0) -> str: return await self.work("train", seconds)
            async def work(self, name, seconds):
                try:
                    print(name)
                    async with self.lock: await trio.sleep(seconds)
                    return name
                finally:
                    with trio.move_on_after(1, shield=True): await trio.sleep(0)
                    print("cleaned")
    """
    async with open_worker(tmp_path, source, **BOTH) as parent:
        for mode, name in ((Mode.PREDICT, "run"), (Mode.TRAIN, "train")):
            assert (await parent.run(mode=mode)).outputs == [name]
            predict = await parent.predict({"seconds": 30}, mode=mode)
            frames: list[SlotResponse] = []
            await parent.wait_log(predict, name, frames)
            await parent.cancel(predict)
            outcome = await parent.finish(predict, frames)
            assert outcome.cancelled
            assert outcome.logs() == f"{name}\ncleaned\n"
        assert await parent.leave() == 0


async def test_os_exit_ends_the_process(tmp_path: Path) -> None:
    source = "import cog, os\n@cog.trio\nasync def Runner() -> None: os._exit(9)\n"
    async with open_worker(tmp_path, source) as parent:
        await parent.predict()
        assert await parent.wait_exit() == 9


@pytest.mark.covers("worker:W27")
async def test_W27_a_health_check_that_hangs_or_blocks_stands_in_nobodys_way(tmp_path: Path) -> None:
    """Given a run that blocks the loop, when health is asked, then the answer comes with the loop, and shutdown while a
    check hangs is prompt."""
    source = """
        import cog, time, trio
        @cog.trio
        class Runner:
            hang = False
            async def healthcheck(self) -> bool:
                if self.hang: await trio.sleep(30)
                return True
            async def run(self, seconds: float = 0.0, hang: bool = False) -> int:
                time.sleep(seconds)
                self.hang = hang
                return 1
    """
    async with open_worker(tmp_path, source) as parent:
        blocking = await parent.predict({"seconds": 0.5, "hang": True})
        await parent.tell(Healthcheck("a"))
        assert (await parent.finish(blocking)).done
        await parent.tell(Healthcheck("b"))
        assert (await parent.run({"hang": True})).outputs == [1]
        assert await parent.leave() == 0
        assert {message.id for message in parent.heard if isinstance(message, HealthcheckResult)} <= {"a", "b"}


CLASS: Final = "class Runner:\n  {} setup(self, {}): ...\n  async def run(self) -> int: ..."
WRONG: Final = {
    "@cog.trio\ndef Runner() -> int: ...": "@cog.trio needs an async def function or an async generator; Runner() is",
    "cog.trio(3)": "@cog.trio goes on an async def function or on a class",
    "@cog.trio\nclass Runner:\n    def run(self) -> int: ...": "run() is marked @cog.trio, so it must be async def",
    CLASS.format("async def", "nursery"): "weights: nursery (nursery is given to models that are marked @cog.trio)",
    "@cog.trio\n" + CLASS.format("def", "nursery"): "setup(nursery) must be async def: there is no nursery where no",
    "@cog.trio\n" + CLASS.format("async def", "other"): "required parameters besides weights: other",
}


@pytest.mark.parametrize("source", WRONG)
def test_wrong_uses_are_told(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong_use.py").write_text(f"import cog_trio.sdk as cog\n{source}\n")
    with pytest.raises(TypeError) as caught:
        load_models("wrong_use.py", None)
    assert WRONG[source] in str(caught.value)


@pytest.mark.covers("D18")
@pytest.mark.parametrize(
    ("run", "train", "text"),
    [
        ("@cog.trio\nasync def", "async def", "so train() must be async def and marked too"),
        ("async def", "@cog.trio\nasync def", "so run() must be async def and marked too"),
        ("def", "@cog.trio\nasync def", "so run() must be async def and marked too"),
    ],
)
def test_D18_one_loop_for_run_and_train(
    tmp_path: Path, run: str, train: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = f"import cog_trio.sdk as cog\n{run} run() -> int: ...\n{train} train() -> int: ...\n"
    (tmp_path / "one_loop.py").write_text(source)
    with pytest.warns(UserWarning, match=re.escape(text)):
        models = load_models("one_loop.py:run", "one_loop.py:train")
    assert models.train is None
    assert models.predict is not None
    assert text in str(models.no_training)


@pytest.mark.covers("D18")
@pytest.mark.parametrize(
    ("run", "train", "kinds"),
    [
        ("@cog.trio\nasync def", "@cog.trio()\nasync def", {Kind.TRIO}),
        ("@cog.trio\nasync def", "def", {Kind.TRIO, Kind.SYNC}),
        ("async def", "def", {Kind.ASYNC, Kind.SYNC}),
        ("def", "async def", {Kind.ASYNC, Kind.SYNC}),
    ],
)
def test_D18_run_and_train_that_one_worker_serves(
    tmp_path: Path, run: str, train: str, kinds: set[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = f"import cog_trio.sdk as cog\n{run} run() -> int: ...\n{train} train() -> int: ...\n"
    (tmp_path / "one_worker.py").write_text(source)
    models = load_models("one_worker.py:run", "one_worker.py:train")
    assert (models.kinds, models.no_training) == (kinds, None)


@pytest.mark.parametrize(
    "source",
    [
        "@cog.trio\nasync def Runner() -> int: ...",
        "@cog.trio\nasync def Runner() -> AsyncIterator[int]: yield 1",
        "@cog.trio\nclass Runner:\n    async def run(self) -> int: ...",
        "@cog.trio\nclass Base:\n    async def run(self) -> int: ...\nclass Runner(Base): ...",
        "@cog.trio\nclass Base: ...\nclass Runner(Base):\n    async def run(self) -> int: ...",
        "class Runner:\n    @cog.streaming\n    @cog.trio\n    async def run(self) -> AsyncIterator[int]: yield 1",
        "class Runner:\n    @cog.concurrent(max=2)\n    @cog.trio()\n    async def run(self) -> int: ...",
        "def wrap(f):\n  @functools.wraps(f)\n  async def wrapper(*a, **k): return await f(*a, **k)\n  return wrapper\n"
        "class Runner:\n    @wrap\n    @cog.trio\n    async def run(self) -> int: ...",
        "class Call:\n    @cog.trio\n    async def __call__(self) -> int: ...\nRunner = Call()",
        "@cog.trio\nasync def run() -> int: ...\nRunner = functools.partial(run)",
    ],
)
def test_the_mark_is_found(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head = "from __future__ import annotations\nimport functools\nfrom collections.abc import AsyncIterator\n"
    (tmp_path / "marked.py").write_text(f"{head}import cog_trio.sdk as cog\n{source}\n")
    assert load_models("marked.py:Runner", None).kinds == {Kind.TRIO}


async def test_a_worker_without_a_trio_model_does_not_load_its_runner(tmp_path: Path) -> None:
    source = "import sys\nasync def Runner() -> list[str]:\n    return [n for n in sys.modules if 'worker.trio' in n]\n"
    async with open_worker(tmp_path, source) as parent:
        assert (await parent.run()).outputs == []
