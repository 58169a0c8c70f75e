"""Runs of trio models in a real worker: nurseries, streams, cancels, and what blocks or ends the loop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest
import trio

from cog_trio.bridge.protocol import (
    Described,
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Kind,
    Log,
    OutputChunk,
    Predict,
    PredictionId,
    RunCancelled,
    SlotId,
    SlotResponse,
)
from tests.worker.cancel.test_gate import PROMPT, cancel_when
from tests.worker.executors.test_sync_executor import write
from tests.worker.rig import open_worker

CODE: Final = """
    import inspect
    from typing import Any
    import cog
    @cog.trio
    async def Runner(code: str, x: Any = None) -> Any:
        space = {"x": x, "__name__": "model"}
        exec(compile(code, "model.py", "exec"), space)
        result = space["run"]()
        return await result if inspect.iscoroutine(result) else result
"""
WAIT: Final = "import trio\nasync def run():\n    print('go')\n    await trio.sleep(30)"
GROUP: Final = "" if sys.version_info >= (3, 11) else "from exceptiongroup import ExceptionGroup\n"
NURSERY: Final = """
import trio
async def part(name, seconds):
    try:
        print(name, "begins")
        if seconds: await trio.sleep(seconds)
        raise FAULT
    except trio.Cancelled:
        print(name, "cancelled")
        raise
async def run():
    async with trio.open_nursery() as nursery:
        for name, seconds in PARTS:
            nursery.start_soon(part, name, seconds)
"""


async def test_result_log_and_idle(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        described = next(message for message in parent.heard if isinstance(message, Described))
        assert (described.kind, described.concurrency) == (Kind.TRIO, 1)
        outcome = await parent.run({"code": "async def run():\n    print('hi')\n    return x", "x": [1, 2]})
        assert outcome.outputs == [1, 2]
        assert outcome.logs() == "hi\n"
        for x in range(200):
            assert (await parent.run({"code": "async def run(): return x", "x": x})).outputs == [x]
        assert await parent.leave() == 0


async def test_more_slots_than_one_message_brings_and_all_run_at_once(tmp_path: Path) -> None:
    """Given 250 slots, when all have a run that waits for the last, then all end."""
    source = """
        import cog, trio
        class Runner:
            def __init__(self): self.count = 0
            async def setup(self) -> None: self.all_there = trio.Event()
            @cog.concurrent(max=250)
            @cog.trio
            async def run(self, x: int) -> int:
                self.count += 1
                if self.count == 250: self.all_there.set()
                await self.all_there.wait()
                print("run", x)
                return x
    """
    async with open_worker(tmp_path, source) as parent:
        assert len(parent.lines) == 250
        predicts = [await parent.predict({"x": slot}, slot=slot) for slot in range(250)]
        for predict in predicts:
            assert f"run {predict.slot}\n" in (await parent.finish(predict)).logs()


async def test_one_of_three_children_fails_and_takes_the_others_along(tmp_path: Path) -> None:
    """The issue's line: the error is named, the other two were cancelled, the logs of all three are there."""
    parts = '[("a", 30), ("b", 0.05), ("c", 30)]'
    code = NURSERY.replace("FAULT", 'ValueError("b broke")').replace("PARTS", parts)
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": code})
        assert outcome.error == "ValueError: b broke"
        lines = outcome.logs().splitlines()
        assert {*lines[:3]} == {"a begins", "b begins", "c begins"}
        assert {*lines[3:5]} == {"a cancelled", "c cancelled"}
        assert 'raise ValueError("b broke")' in outcome.logs() or "ValueError: b broke" in outcome.logs()
        assert "cog_trio" not in outcome.logs()


GROUPS: Final = [
    ("KeyError(name)", '[("a", 0), ("b", 0)]', ("ExceptionGroup: ", "KeyError: 'a'", "KeyError: 'b'")),
    ("SystemExit(3)", '[("a", 0), ("b", 30)]', ("SystemExit: 3",)),
    ("KeyboardInterrupt", '[("a", 0), ("b", 30)]', ("KeyboardInterrupt",)),
    ("ExceptionGroup('in', [ExceptionGroup('it', [OSError(1)])])", '[("a", 0)]', ("OSError: 1",)),
]


@pytest.mark.covers("worker:W38", "D14")
async def test_W38_D14_the_leaves_of_a_group_are_named(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        for fault, parts, error in GROUPS:
            code = GROUP + NURSERY.replace("FAULT", fault).replace("PARTS", parts)
            told = (await parent.run({"code": code})).error
            assert told.startswith(error[0])
            assert all(each in told for each in error)
            assert len(error) > 1 or told == error[0]
        deep = "def run():\n e = OSError(1)\n for _ in range(3000): e = ExceptionGroup('g', [e])\n raise e"
        assert (await parent.run({"code": GROUP + deep})).error == "OSError: 1"
        assert (await parent.run({"code": "async def run(): return 1"})).outputs == [1]


@pytest.mark.covers("worker:W34")
async def test_W34_failures_are_of_one_run(tmp_path: Path) -> None:
    errors = {
        "with trio.fail_after(0.01): await trio.sleep(30)": "TooSlowError",
        "raise SystemExit(3)": "SystemExit: 3",
        "raise KeyboardInterrupt": "KeyboardInterrupt",
        "import asyncio; await asyncio.sleep(1)": "RuntimeError: no running event loop",
        "trio.run(trio.sleep, 1)": "RuntimeError: Attempted to call run() from inside a run()",
    }
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        other = await parent.predict({"code": WAIT}, slot=1)
        for code, error in errors.items():
            assert (await parent.run({"code": f"import trio\nasync def run():\n    {code}"})).error == error
        await parent.cancel(other)
        assert (await parent.finish(other)).cancelled


@pytest.mark.covers("worker:W66")
async def test_timeouts_inside_of_a_run_are_its_own(tmp_path: Path) -> None:
    code = """
import trio
async def run():
    with trio.move_on_after(0.01) as scope: await trio.sleep(30)
    return scope.cancelled_caught
"""
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run({"code": code})).outputs == [True]


@pytest.mark.covers("worker:W36")
async def test_W36_async_generator_streams_each_item_as_it_is_yielded(tmp_path: Path) -> None:
    code = """
import trio
async def run():
    try:
        yield 1
        await trio.to_thread.run_sync(lambda: open(x).read())
        yield 2
        raise ValueError("boom")
    finally:
        print("closed")
"""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code, "x": str(fifo)})
        assert bytes((await parent.lines[0].hear(OutputChunk)).output) == b"1"
        await write(fifo)
        outcome = await parent.finish(predict)
        assert outcome.outputs == [2]
        assert outcome.error == "ValueError: boom"
        assert outcome.logs().startswith("closed\n")
        assert "cog_trio" not in outcome.logs()


FORMS: Final[list[tuple[str, list[object]]]] = [
    ("async def run(): return (n for n in range(3))", [0, 1, 2]),
    ("async def run(): return [1, 2]", [1, 2]),
    ("async def run(): return None", []),
    ("async def run():\n    for n in range(3): yield n", [0, 1, 2]),
    (
        "class Run:\n"
        "    n = 0\n"
        "    async def __anext__(self):\n"
        "        if self.n == 2: raise StopAsyncIteration\n"
        "        self.n += 1\n"
        "        return self.n\n"
        "def run(): return Run()",
        [1, 2],
    ),
    (  # a generator that yields inside of a nursery and of a timeout
        "import trio\n"
        "async def run():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        send, receive = trio.open_memory_channel(0)\n"
        "        async def make():\n"
        "            async with send:\n"
        "                for n in range(3): await send.send(n)\n"
        "        nursery.start_soon(make)\n"
        "        with trio.move_on_after(30):\n"
        "            async for n in receive: yield n",
        [0, 1, 2],
    ),
    (  # a timeout of its own ends it between two items, and it goes on behind it
        "import trio\n"
        "async def run():\n"
        "    with trio.move_on_after(0.05):\n"
        "        while True: yield 'x'\n"
        "    yield 'end'",
        ["x", "end"],
    ),
]


@pytest.mark.covers("worker:W37")
async def test_W37_results_of_all_forms(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        for code, outputs in FORMS:
            outcome = await parent.run({"code": code})
            assert outcome.done
            assert sorted(set(outcome.outputs), key=outcome.outputs.index) == outputs
            assert outcome.logs() == ""  # no warning of a generator that was left open


async def test_a_child_that_fails_while_its_generator_is_suspended(tmp_path: Path) -> None:
    code = """
import trio
async def fail():
    await trio.sleep(0.05)
    raise ValueError("child")
async def run():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        while True: yield 0
"""
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run({"code": code})).error == "ValueError: child"


BODIES: Final = [
    "await trio.sleep(30)",
    "await trio.Event().wait()",
    "time.sleep(30)",  # W30: the loop is blocked
    "[None for _ in iter(int, 1)]",
    "await trio.run_process(['sleep', '30'])",
    "await nested(trio.sleep, 30)",
    "await nested(block)",
    "threading.Lock().acquire() and threading.Event().wait()",
]
STUCK: Final = """
import threading, time, trio
async def block(): time.sleep(30)
async def nested(function, *args):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 30)
        nursery.start_soon(function, *args)
async def run():
    try:
        print("go")
        BODY
    except trio.Cancelled:
        print("cancelled")
        raise
    finally:
        with trio.move_on_after(5, shield=True): await trio.sleep(0.05)
        print("cleaned")
"""


@pytest.mark.covers("worker:W29", "worker:W30")
async def test_W29_W30_cancel_waits_for_the_cleanup(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        for body in BODIES:
            predict = await parent.predict({"code": STUCK.replace("BODY", body)})
            frames: list[SlotResponse] = []
            await parent.wait_log(predict, "go", frames)
            begin = trio.current_time()
            for _ in range(3):  # W27
                await parent.cancel(predict)
            outcome = await parent.finish(predict, frames)
            assert outcome.cancelled
            said = outcome.logs().splitlines()
            assert (said[0], said[-1]) == ("go", "cleaned")
            assert said[1:-1] == ["cancelled"] or "nested" in body or "run_process" in body  # in a group
            assert trio.current_time() - begin < PROMPT
        assert (await parent.run({"code": "async def run(): return 1"})).outputs == [1]


async def test_a_child_that_has_not_begun_when_the_cancel_comes_is_interrupted(tmp_path: Path) -> None:
    """It makes its first step all the same, and blocks the loop; also where the loop is slow to look for such ones."""
    code = """
import time, trio
from cog_trio.worker.executors.trio_executor import _TrioRun
tasks = vars(_TrioRun)["tasks"].fget
def slowly(run):
    time.sleep(0.05)
    return tasks(run)
_TrioRun.tasks = property(slowly)
async def block(): time.sleep(30)
async def run():
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(block)
            print("go")
            time.sleep(0.05)  # the cancel comes meanwhile
    finally:
        _TrioRun.tasks = property(tasks)
"""
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(12):  # which is first, the cancel or the child, is a matter of luck
            outcome, seconds = await cancel_when(parent, code)
            assert outcome.cancelled
            assert seconds < PROMPT


@pytest.mark.covers("worker:W28")
async def test_W28_a_blocking_call_that_is_shielded_is_left_alone(tmp_path: Path) -> None:
    code = """
import time, trio
async def run():
    with trio.CancelScope(shield=True):
        print("go")
        time.sleep(0.4)
        print("whole")
    await trio.sleep(30)
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, _ = await cancel_when(parent, code)
        assert outcome.cancelled
        assert outcome.logs() == "go\nwhole\n"


@pytest.mark.covers("worker:W27")
async def test_W27_a_blocking_cleanup_is_not_struck_again(tmp_path: Path) -> None:
    code = """
import time, trio
async def run():
    try:
        print("go")
        time.sleep(30)
    finally:
        time.sleep(0.4)
        print("cleaned")
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, _ = await cancel_when(parent, code)
        assert outcome.cancelled
        assert outcome.logs() == "go\ncleaned\n"


@pytest.mark.covers("worker:W29")
async def test_W29_swallowed_cancel_counts_when_the_task_ends(tmp_path: Path) -> None:
    code = """
import trio
async def run():
    try:
        print("go")
        await trio.sleep(30)
    except trio.Cancelled:
        print("swallowed")
    return 1
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, _ = await cancel_when(parent, code)
        assert outcome.cancelled
        assert outcome.logs() == "go\nswallowed\n"


async def test_between_yields_a_cancel_is_thrown_into_the_generator(tmp_path: Path) -> None:
    code = """
import trio
async def run():
    print("go")
    for _ in range(2):
        try:
            while True: yield 0
        except trio.Cancelled:
            print("thrown")
            raise
"""
    async with open_worker(tmp_path, CODE) as parent:
        for swallow in (False, True):  # what it yields after that is not taken
            outcome, _ = await cancel_when(parent, code.replace("raise", "pass") if swallow else code)
            assert outcome.cancelled
            assert outcome.logs() == "go\nthrown\n"


async def test_field_lesson_4_cancel_hits_one_of_many(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE, max_concurrency=3) as parent:
        predicts = [await parent.predict({"code": WAIT}, slot=slot) for slot in range(3)]
        for predict in predicts:
            await parent.wait_log(predict, "go", [])
        await parent.cancel(predicts[1])
        assert (await parent.finish(predicts[1])).cancelled
        await parent.tell(Healthcheck("h"))  # whatever else was hit would have ended by its answer
        await parent.hear(HealthcheckResult)
        for predict in (predicts[0], predicts[2]):
            assert not parent.lines[predict.slot].waiting
            await parent.cancel(predict)
            assert (await parent.finish(predict)).cancelled


async def test_cancel_of_a_waiting_run_while_another_blocks_the_loop(tmp_path: Path) -> None:
    block = "import time\nasync def run():\n    print('go')\n    time.sleep(0.5)\n    return 'whole'"
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        waiting = await parent.predict({"code": WAIT}, slot=0)
        await parent.wait_log(waiting, "go", [])
        blocking = await parent.predict({"code": block}, slot=1)
        await parent.wait_log(blocking, "go", [])
        await parent.cancel(waiting)
        assert (await parent.finish(blocking)).outputs == ["whole"]
        assert isinstance(await parent.lines[0].hear(RunCancelled), RunCancelled)


@pytest.mark.covers("worker:W25", "D19")
async def test_D19_W25_cancels_before_and_right_after_predict(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        run = parent.next_run()
        await parent.cancel(Predict(SlotId(0), PredictionId(f"id{run}"), run, ""))
        await parent.tell(Healthcheck("after"))
        await parent.hear(HealthcheckResult)  # the channels are read in no order: now the cancel has been
        assert (await parent.finish(await parent.predict({"code": WAIT}, run=run))).cancelled
        with trio.fail_after(30):
            for _ in range(200):
                predict = await parent.predict({"code": WAIT})
                await parent.cancel(predict)
                assert (await parent.finish(predict)).cancelled


@pytest.mark.covers("worker:W40", "worker:W42")
async def test_W40_W42_text_metrics_and_context_of_children_and_threads(tmp_path: Path) -> None:
    code = """
import cog, subprocess, threading, trio
async def part():
    print(x, "task", end=" ")
    cog.current_scope().record_metric("tasks", 1, "incr")
async def back(): print(x, "back", cog.current_scope().context["who"], end=" ")
def in_thread():
    print(x, "thread", end=" ")
    trio.from_thread.run(back)
    trio.from_thread.run_sync(print, x, "sync")
    cog.current_scope().record_metric("threads", 1)
async def run():
    async with trio.open_nursery() as nursery: nursery.start_soon(part)
    await trio.to_thread.run_sync(in_thread)
"""
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        predicts = [
            await parent.predict({"code": code, "x": slot}, slot=slot, context={"who": f"w{slot}"}) for slot in (0, 1)
        ]
        for predict in predicts:
            name = predict.slot
            outcome = await parent.finish(predict)
            assert outcome.logs() == f"{name} task {name} thread {name} back w{name} {name} sync\n"
            assert outcome.metrics == [("tasks", 1, "increment"), ("threads", 1, "replace")]


@pytest.mark.covers("worker:W43")
async def test_W43_text_of_a_child_process_is_the_runs(tmp_path: Path) -> None:
    code = "import trio\nasync def run(): await trio.run_process(['echo', 'from the child'])"
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run({"code": code})).logs() == "from the child\n"


async def test_back_pressure_holds_the_generator_not_the_loop(tmp_path: Path) -> None:
    """Given a stream that nobody reads, when it is full, then other runs go on and a cancel ends it."""
    code = "import sys\nasync def run():\n    for sys.made in range(10**9): yield 'x' * 10_000"
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        flood = await parent.predict({"code": code}, slot=0)
        for x in range(20):
            assert (await parent.run({"code": "async def run(): return x", "x": x}, slot=1)).outputs == [x]
        (made,) = (await parent.run({"code": "import sys\nasync def run(): return sys.made"}, slot=1)).outputs
        assert 0 < made * 10_000 < 8 * 2**20
        await parent.cancel(flood)
        assert (await parent.finish(flood)).cancelled


async def test_signal_receivers_of_the_models(tmp_path: Path) -> None:
    code = """
import os, signal, time, trio
async def run():
    with trio.open_signal_receiver(signal.SIGUSR1) as receiver:
        os.kill(os.getpid(), signal.SIGUSR1)
        await receiver.__anext__()
        print("go")
        await trio.sleep(30)
"""
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(2):
            outcome, seconds = await cancel_when(parent, code)
            assert outcome.cancelled
            assert seconds < PROMPT


CHECK: Final = """
    import time, trio, cog
    @cog.trio
    class Runner(cog.BaseRunner):
        async def healthcheck(self) -> object:
            print("checking")
            space = {"trio": trio}
            exec("async def check():\\n    " + self.how, space)
            return await space["check"]()
        async def run(self, how: str) -> None:
            self.how = how
            print("go")
            await trio.sleep(30)
"""
CHECKS: Final = {
    "return trio.lowlevel.current_task() is not None": None,
    "return None": None,
    "return False": "Healthcheck failed: user-defined healthcheck returned False",
    "raise RuntimeError('hc exploded')": "Healthcheck failed: RuntimeError: hc exploded",
    "with trio.fail_after(0): await trio.sleep(1)": "Healthcheck failed: TooSlowError",  # W66
    "raise SystemExit(1)": "Healthcheck failed: SystemExit: 1",
}


@pytest.mark.covers("D32", "worker:W63")
async def test_D32_health_check_on_the_loop(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CHECK) as parent:
        for how, error in CHECKS.items():
            predict = await parent.predict({"how": how})
            await parent.wait_log(predict, "go", [])
            for id in ("hc_1", "hc_2"):
                await parent.tell(Healthcheck(id))
                result = await parent.hear(HealthcheckResult)
                assert result.id == id
                assert result.error == error
                assert result.status is (HealthcheckStatus.HEALTHY if error is None else HealthcheckStatus.UNHEALTHY)
            await parent.cancel(predict)
            assert (await parent.finish(predict)).logs() == ""  # its text is not the run's
        if "checking" not in parent.service_log():
            await parent.hear(Log)
