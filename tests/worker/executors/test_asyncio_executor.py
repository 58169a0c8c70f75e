"""Runs of async models in a real worker: overlap, streams, cancels, and what blocks or ends the loop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from cog_trio.bridge.protocol import (
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Log,
    OutputChunk,
    Predict,
    PredictionId,
    RunCancelled,
    SlotId,
    SlotResponse,
    WorkerLog,
)
from tests.worker.cancel.test_gate import PROMPT, cancel_when
from tests.worker.executors.test_sync_executor import write
from tests.worker.rig import open_worker

CODE = """
    import asyncio
    from typing import Any
    async def Runner(code: str, x: Any = None) -> Any:
        space = {"x": x, "__name__": "model"}
        exec(compile(code, "model.py", "exec"), space)
        result = space["run"]()
        return await result if asyncio.iscoroutine(result) else result
"""
WAIT = "import asyncio\nasync def run():\n    print('go')\n    await asyncio.sleep(30)"


async def test_result_log_and_idle(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        outcome = await parent.run({"code": "async def run():\n    print('hi')\n    return x", "x": [1, 2]})
        assert outcome.outputs == [1, 2]
        assert outcome.logs() == "hi\n"
        for x in range(200):
            assert (await parent.run({"code": "async def run(): return x", "x": x})).outputs == [x]


async def test_a_run_that_waits_by_a_nested_loop_is_cancelled(tmp_path: Path) -> None:
    """nest_asyncio: ``run_until_complete`` and ``asyncio.run`` in a coroutine run the loop from within a task."""
    code = """
import asyncio, nest_asyncio
nest_asyncio.apply()
async def inner():
    print("go")
    try: await asyncio.sleep(30)
    finally: print("inner cleaned")
async def run():
    try: CALL
    finally:
        await asyncio.sleep(0.01)
        print("cleaned")
"""
    async with open_worker(tmp_path, CODE) as parent:
        for call in ("asyncio.get_running_loop().run_until_complete(inner())", "asyncio.run(inner())"):
            outcome, seconds = await cancel_when(parent, code.replace("CALL", call))
            assert outcome.cancelled
            assert outcome.logs() == "go\ninner cleaned\ncleaned\n"
            assert seconds < PROMPT
            assert (await parent.run({"code": "async def run(): return 1"})).outputs == [1]


async def test_more_slots_than_one_message_brings_and_all_run_at_once(tmp_path: Path) -> None:
    """Given 250 slots, when all have a run that waits for the last, then all end."""
    source = """
        import asyncio
        count, all_there = 0, asyncio.Event()
        async def Runner(x: int) -> int:
            global count
            count += 1
            if count == 250: all_there.set()
            await all_there.wait()
            print("run", x)
            return x
    """
    async with open_worker(tmp_path, source, max_concurrency=250) as parent:
        assert len(parent.lines) == 250
        predicts = [await parent.predict({"x": slot}, slot=slot) for slot in range(250)]
        for predict in predicts:
            assert f"run {predict.slot}\n" in (await parent.finish(predict)).logs()


@pytest.mark.covers("worker:W36")
async def test_W36_async_generator_streams_each_item_as_it_is_yielded(tmp_path: Path) -> None:
    code = """
import asyncio
async def run():
    try:
        yield 1
        await asyncio.to_thread(lambda: open(x).read())
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


RESULTS: tuple[tuple[str, list[object]], ...] = (
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
)


@pytest.mark.covers("worker:W37")
async def test_W37_results_of_all_forms(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        for code, outputs in RESULTS:
            assert (await parent.run({"code": code})).outputs == outputs, code


BODIES = (
    "await asyncio.sleep(30)",
    "await asyncio.Event().wait()",
    "time.sleep(30)",  # W30: the loop is blocked
    "[None for _ in iter(int, 1)]",
    "await asyncio.create_subprocess_exec('sleep', '30')\n        await asyncio.sleep(30)",
)


@pytest.mark.covers("worker:W29", "worker:W30")
async def test_W29_W30_cancel_waits_for_the_cleanup(tmp_path: Path) -> None:
    code = """
import asyncio, time
async def run():
    try:
        print("go")
        BODY
    finally:
        await asyncio.sleep(0.05)
        print("cleaned")
"""
    async with open_worker(tmp_path, CODE) as parent:
        for body in BODIES:
            predict = await parent.predict({"code": code.replace("BODY", body)})
            frames: list[SlotResponse] = []
            await parent.wait_log(predict, "go", frames)
            begin = trio.current_time()
            for _ in range(3):  # W27
                await parent.cancel(predict)
            outcome = await parent.finish(predict, frames)
            assert outcome.cancelled, body
            assert outcome.logs() == "go\ncleaned\n", body
            assert trio.current_time() - begin < PROMPT, body
            assert (await parent.run({"code": "async def run(): return 1"})).outputs == [1], body


@pytest.mark.covers("worker:W29")
async def test_W29_a_cancel_waits_for_the_file_that_is_being_copied(tmp_path: Path) -> None:
    """The copy is made in a thread. It must not go on behind the end of the run, whose folder is removed then."""
    gate = tmp_path / "gate"
    code = """
import os, time
class Slow:
    def read(self, size=-1):
        print("reading")
        while not os.path.exists(x):
            time.sleep(0.01)
        print("read")
        return b""
async def run():
    yield Slow()
"""
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code, "x": str(gate)})
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "reading", frames)
        await parent.cancel(predict)
        with trio.move_on_after(0.3) as early:
            await parent.finish(predict, frames)
        assert early.cancelled_caught, "it has ended while its thread goes on"
        gate.touch()
        outcome = await parent.finish(predict, frames)
        assert outcome.cancelled
        assert outcome.logs().endswith("read\n")


@pytest.mark.covers("worker:W29")
async def test_W29_swallowed_cancel_counts_when_the_task_ends(tmp_path: Path) -> None:
    code = """
import asyncio
async def run():
    try:
        print("go")
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        print("swallowed")
    return 1
"""
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code})
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "go", frames)
        await parent.cancel(predict)
        outcome = await parent.finish(predict, frames)
        assert outcome.cancelled
        assert outcome.logs() == "go\nswallowed\n"


async def test_between_yields_a_cancel_is_thrown_into_the_generator(tmp_path: Path) -> None:
    code = """
import asyncio
async def run():
    try:
        print("go")
        while True: yield 0
    except asyncio.CancelledError:
        print("thrown")
        raise
"""
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code})
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "go", frames)
        await parent.cancel(predict)
        outcome = await parent.finish(predict, frames)
        assert outcome.cancelled
        assert outcome.logs() == "go\nthrown\n"


async def test_self_cancelled_task_is_a_failure(tmp_path: Path) -> None:
    code = "import asyncio\nasync def run():\n    asyncio.current_task().cancel()\n    await asyncio.sleep(1)"
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run({"code": code})).error == "CancelledError"


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
    block = "import time\nasync def run():\n    print('go')\n    time.sleep(1)\n    return 'whole'"
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        waiting = await parent.predict({"code": WAIT}, slot=0)
        frames: list[SlotResponse] = []
        await parent.wait_log(waiting, "go", frames)
        blocking = await parent.predict({"code": block}, slot=1)
        await parent.wait_log(blocking, "go", [])
        await parent.cancel(waiting)
        assert (await parent.finish(blocking)).outputs == ["whole"]
        assert isinstance(await parent.lines[0].hear(RunCancelled), RunCancelled)


@pytest.mark.covers("D19")
async def test_D19_cancel_before_predict(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        run = parent.next_run()
        await parent.cancel(Predict(SlotId(0), PredictionId(f"id{run}"), run, ""))
        await parent.tell(Healthcheck("after"))
        await parent.hear(HealthcheckResult)  # the channels are read in no order: now the cancel has been
        assert (await parent.finish(await parent.predict({"code": WAIT}, run=run))).cancelled


@pytest.mark.covers("worker:W25")
async def test_W25_two_hundred_cancels_at_once(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        with trio.fail_after(30):
            for _ in range(200):
                predict = await parent.predict({"code": WAIT})
                await parent.cancel(predict)
                assert (await parent.finish(predict)).cancelled


async def test_user_code_that_cancels_every_task_ends_no_slot(tmp_path: Path) -> None:
    code = """
import asyncio
async def run():
    for task in asyncio.all_tasks(): task.cancel()
    await asyncio.sleep(1)
"""
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        other = await parent.predict({"code": WAIT}, slot=1)
        assert (await parent.run({"code": code})).error == "CancelledError"
        await parent.cancel(other)
        assert not (await parent.finish(other)).done
        assert (await parent.run({"code": "async def run(): return 1"})).outputs == [1]


@pytest.mark.covers("worker:W34")
@pytest.mark.parametrize("how", ["raise SystemExit(3)", "import sys; sys.exit(3)", "raise KeyboardInterrupt"])
async def test_W34_exit_fails_the_run_alone(tmp_path: Path, how: str) -> None:
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        other = await parent.predict({"code": "import asyncio\nasync def run():\n    await asyncio.sleep(0.2)"}, slot=1)
        error = (await parent.run({"code": f"async def run(): {how}"})).error
        assert error in ("SystemExit: 3", "KeyboardInterrupt")
        assert (await parent.finish(other)).done


@pytest.mark.covers("worker:W34")
async def test_W34_stray_task_that_exits_ends_nothing(tmp_path: Path) -> None:
    code = """
import asyncio, sys
async def stray(): sys.exit(3)
async def run():
    asyncio.create_task(stray())
    await asyncio.sleep(0.1)
    return 1
"""
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run({"code": code})).outputs == [1]
        if not [message for message in parent.heard if isinstance(message, WorkerLog)]:
            await parent.hear(WorkerLog)
        (log,) = [message for message in parent.heard if isinstance(message, WorkerLog)]
        assert "SystemExit: 3" in log.message
        assert (await parent.run({"code": "async def run(): return 2"})).outputs == [2]


@pytest.mark.covers("worker:W40", "worker:W42")
async def test_W40_W42_text_of_tasks_threads_and_executors(tmp_path: Path) -> None:
    code = """
import asyncio, threading
async def part(): print(x, "task", end=" ")
async def run():
    await asyncio.create_task(part())
    await asyncio.to_thread(print, x, "thread", end=" ")
    await asyncio.get_running_loop().run_in_executor(None, lambda: print(x, "pool", end=" "))
    thread = threading.Thread(target=print, args=(x, "plain"))
    thread.start(); thread.join()
"""
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        predicts = [await parent.predict({"code": code, "x": slot}, slot=slot) for slot in (0, 1)]
        for predict in predicts:
            name = predict.slot
            outcome = await parent.finish(predict)
            assert outcome.logs() == f"{name} task {name} thread {name} pool {name} plain\n"


async def test_setup_shares_the_loop_and_late_tasks_write_to_the_service_log(tmp_path: Path) -> None:
    source = """
        import asyncio
        from cog import BaseRunner
        class Runner(BaseRunner):
            async def setup(self) -> None:
                self.loop = asyncio.get_running_loop()
                self.go = asyncio.Event()
                asyncio.create_task(self.late())
            async def late(self) -> None:
                await self.go.wait()
                print("late")
            async def run(self) -> bool:
                self.go.set()
                await asyncio.sleep(0)
                return asyncio.get_running_loop() is self.loop
    """
    async with open_worker(tmp_path, source, max_concurrency=2) as parent:
        outcome = await parent.run()
        assert outcome.outputs == [True]
        assert outcome.logs() == ""
        if "late" not in parent.service_log():
            assert (await parent.hear(Log)).data == "late\n"


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


CHECK = """
    import asyncio, time
    from cog import BaseRunner
    class Runner(BaseRunner):
        async def healthcheck(self) -> object:
            print("checking")
            HOW
        async def run(self, x: int = 0) -> int:
            await asyncio.sleep(x)
            return x
"""


@pytest.mark.covers("D32", "worker:W63")
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("return True", None),
        ("return None", None),
        ("return False", "Healthcheck failed: user-defined healthcheck returned False"),
        ("return 0", "Healthcheck failed: user-defined healthcheck returned 0"),
        ("raise RuntimeError('hc exploded')", "Healthcheck failed: RuntimeError: hc exploded"),
        ("raise asyncio.TimeoutError", "Healthcheck failed: TimeoutError"),  # W66
        ("raise SystemExit(1)", "Healthcheck failed: SystemExit: 1"),
    ],
)
async def test_D32_health_check_on_the_loop(tmp_path: Path, how: str, error: str | None) -> None:
    async with open_worker(tmp_path, CHECK.replace("HOW", how)) as parent:
        predict = await parent.predict({"x": 30})
        for id in ("hc_1", "hc_2"):
            await parent.tell(Healthcheck(id))
            result = await parent.hear(HealthcheckResult)
            assert result.id == id
            assert result.error == error
            assert result.status is (HealthcheckStatus.HEALTHY if error is None else HealthcheckStatus.UNHEALTHY)
        await parent.cancel(predict)
        assert (await parent.finish(predict)).logs() == ""  # its text is not the run's
        assert "checking" in parent.service_log()
