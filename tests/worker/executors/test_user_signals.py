"""Signal handlers of the model's that raise, in the loop of an async model (spec/worker.md 19, W34).

Called at any moment, also again and again, they end runs and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from cog_trio.bridge.protocol import LogLevel, WorkerLog
from tests.worker.executors.test_asyncio_executor import CODE
from tests.worker.rig import open_worker

HANDLER = """
import asyncio, signal, time
def late(*_): raise TimeoutError("late")
"""
AGAIN_AND_AGAIN = f"""{HANDLER}
async def run():
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    %s
"""
ROUNDS = 12
RUNS = {
    "returns": "return 1",
    "raises": "raise ValueError('x' * 10)",
    "waits": "await asyncio.sleep(0.01)",
    "is deaf": """
    for _ in range(20):
        try:
            await asyncio.sleep(0.001)
        except TimeoutError:
            pass
""",
    "yields": """
    async def items():
        try:
            for number in range(100):
                yield number
        finally:
            await asyncio.sleep(0)
    return items()
""",
}
STRIKES = f"""{HANDLER}
import sys
signal.signal(signal.SIGALRM, late)
loop = asyncio.get_running_loop()
call_soon, hits = loop.call_soon, []
def strike(*args, **kwargs):
    if sys._getframe(1).f_code is asyncio.Handle._run.__code__:  # a step of a task has ended, and asyncio schedules
        hits.append(1)
        signal.raise_signal(signal.SIGALRM)
    return call_soon(*args, **kwargs)
async def helper():
    for _ in range(5): await asyncio.sleep(0)
    return 7
async def run():
    loop.call_soon = strike
    try:
        for _ in range(5): await asyncio.sleep(0)
        tasks = [asyncio.create_task(helper()) for _ in range(3)]
        return [hits != [], await asyncio.gather(*tasks)]
    finally:
        loop.call_soon = call_soon
"""


async def test_an_alarm_while_asyncio_takes_a_task_back_loses_no_step_of_it(tmp_path: Path) -> None:
    """Given a handler that raises in ``call_soon``, called by a task's step in C, the tasks go on to their ends."""
    async with open_worker(tmp_path, CODE) as parent:
        assert (await parent.run({"code": STRIKES})).outputs == [True, [7, 7, 7]]
        assert (await parent.hear(WorkerLog)).level is LogLevel.WARNING


@pytest.mark.covers("worker:W34")
async def test_W34_an_alarm_that_rings_again_and_again(tmp_path: Path) -> None:
    """Wherever it rings, each run has one end, and the worker goes on."""
    async with open_worker(tmp_path, CODE) as parent:
        for name, rest in list(RUNS.items()) * ROUNDS:
            outcome = await parent.run({"code": AGAIN_AND_AGAIN % rest})
            right = outcome.done or (outcome.error or "").startswith(("TimeoutError", "ValueError"))
            assert right, (name, outcome)
        await trio.sleep(0.05)  # nothing but the loop's own code runs
        for number in range(20):  # an alarm ends with the run that set it
            outcome = await parent.run({"code": "async def run(): return x", "x": number})
            assert outcome.outputs == [number], outcome.logs()


async def test_a_time_out_by_alarm_comes_right_after_a_print(tmp_path: Path) -> None:
    """Inside a print it waits for the end of that alone, not for the next step of the run."""
    code = f"""{HANDLER}
async def run():
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        print("x" * 100)
"""
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(10):
            assert (await parent.run({"code": code})).error == "TimeoutError: late"


async def test_a_time_out_by_alarm_that_rings_while_it_is_set_is_not_lost(tmp_path: Path) -> None:
    """The call that sets the timer is a frame of ours; on a busy machine also a longer one rings in there."""
    code = f"""{HANDLER}
async def run():
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 1e-6)
    time.sleep(5)
"""
    async with open_worker(tmp_path, CODE) as parent:
        for _ in range(30):
            assert (await parent.run({"code": code})).error == "TimeoutError: late"


async def test_an_alarm_of_the_models_own_outlives_runs(tmp_path: Path) -> None:
    source = """
        import signal, time
        from typing import Any
        rung = 0
        def ring(*_):
            global rung
            rung += 1
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        async def Runner() -> int:
            return rung
    """
    async with open_worker(tmp_path, source) as parent:
        before = (await parent.run({})).outputs[0]
        for _ in range(1_000):
            if (await parent.run({})).outputs[0] >= before + 10:
                return
        raise AssertionError("it does not ring any more")
