"""Signal handlers of the model's that raise, in the loop of an async model (spec/worker.md 19, W34).

Called at any moment, also again and again, they end runs and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from cog_trio.bridge.protocol import SlotResponse
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
# Python 3.10 looks for signals between all instructions, not at calls and jumps alone. There some place is left, found
# by one of 1,500 such runs on a machine with ten times more to do than it can; see docs/design/proofs.md.
ROUNDS = 12 if sys.version_info >= (3, 11) else 2
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
FAST = f"""{HANDLER}
async def run():
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, %s)
    async def items():
        while True:
            yield 1
    return items()
"""


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


async def test_a_time_out_by_alarm_comes_wherever_it_rings(tmp_path: Path) -> None:
    """Between two items no user code is on the stack: the run gets it with the next one."""
    async with open_worker(tmp_path, CODE) as parent:
        for number in range(40):
            outcome = await parent.run({"code": FAST % (0.001 + number * 0.00037)})
            assert outcome.error == "TimeoutError: late"


async def test_a_time_out_by_alarm_hits_the_run_that_set_it(tmp_path: Path) -> None:
    """Given two runs, one with an alarm that is not at work when it rings, then the other one never notices."""
    setter = f"""{HANDLER}
async def run():
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    print("set")
    async def items():
        for number in range(1000):
            await asyncio.sleep(0.01)
            yield number
    return items()
"""
    blocker = """
import time
async def run():
    time.sleep(0.2)
    return 7
"""
    async with open_worker(tmp_path, CODE, max_concurrency=2) as parent:
        frames: list[SlotResponse] = []
        predict = await parent.predict({"code": setter})
        await parent.wait_log(predict, "set", frames)
        assert (await parent.run({"code": blocker}, slot=1)).outputs == [7]
        assert (await parent.finish(predict, frames)).error == "TimeoutError: late"


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
