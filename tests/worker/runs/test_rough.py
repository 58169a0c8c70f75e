"""User code that does its worst to a real worker: each run ends truthfully, and the next one finds nothing of it."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest
import trio

from cog_trio.bridge.protocol import Healthcheck, HealthcheckResult
from tests.worker.cancel.test_gate import PROMPT, cancel_when
from tests.worker.executors import test_asyncio_executor
from tests.worker.executors.test_sync_executor import CODE
from tests.worker.rig import Parent, open_worker

BOTH = pytest.mark.parametrize("model", [CODE, test_asyncio_executor.CODE], ids=["sync", "async"])
GROUPS = "" if sys.version_info >= (3, 11) else "from exceptiongroup import ExceptionGroup\n"
NEXT = {"code": "def run():\n    print('next')\n    return 7"}


async def runs_next(parent: Parent, after: str = "") -> None:
    """The worker runs the next prediction as if nothing had been."""
    outcome = await parent.run(NEXT)
    assert (outcome.outputs, outcome.logs()) == ([7], "next\n"), after


async def goes_on(parent: Parent) -> None:
    """And leaves as it should."""
    await runs_next(parent)
    assert await parent.leave() == 0


RAISED = ("ValueError('x')", "SystemExit(3)", "KeyboardInterrupt", "GeneratorExit", "type('B', (BaseException,), {})")


@pytest.mark.covers("worker:W38")
@BOTH
async def test_W38_an_exception_whose_text_raises(tmp_path: Path, model: str) -> None:
    async with open_worker(tmp_path, model) as parent:
        for raised in RAISED:
            code = f"class E(Exception):\n    def __str__(self): raise {raised}\ndef run(): raise E"
            assert (await parent.run({"code": code})).error == "E", raised
            await runs_next(parent, raised)
        await goes_on(parent)


FAILURES = {
    f"{GROUPS}def run():\n e = ValueError(1)\n for _ in range(3000): e = ExceptionGroup('g', [e])\n raise e": (
        "ValueError: 1"
    ),
    "def run():\n class B(BaseException): pass\n raise B('b')": "B: b",
    "def run(): raise ValueError('\\ud800')": "ValueError: \\ud800",
    "def run(): return run()": "RecursionError",
    "def run(n=0):\n print(n)\n run(n + 1)": "RecursionError",
}


@pytest.mark.covers("worker:W38")
@BOTH
async def test_W38_failures_of_odd_kinds(tmp_path: Path, model: str) -> None:
    async with open_worker(tmp_path, model) as parent:
        for code, error in FAILURES.items():
            assert error in (await parent.run({"code": code})).error, code
            await runs_next(parent, code)
        await goes_on(parent)


STREAMS = ("del sys.stdout", "sys.stdout = None", "sys.stdout = Odd()", "sys.__stdout__ = Odd()")


@pytest.mark.covers("worker:W46")
@BOTH
async def test_W46_streams_that_are_gone_or_bite(tmp_path: Path, model: str) -> None:
    code = """
import sys
class Odd:
    def __getattr__(self, name): raise KeyboardInterrupt
    def __eq__(self, other): raise SystemExit
    def write(self, text): raise SystemExit
    def flush(self): raise SystemExit
sys.were = getattr(sys, "were", (sys.stdout, sys.__stdout__))
sys.stdout, sys.__stdout__ = sys.were
def run():
    STREAM
    return 1
"""
    async with open_worker(tmp_path, model) as parent:
        for stream in STREAMS:
            assert (await parent.run({"code": code.replace("STREAM", stream)})).outputs == [1], stream
            assert (await parent.run(NEXT)).outputs == [7], stream


AT_THE_END = (
    "class E(Exception):\n def __str__(self):\n  print('go')\n  time.sleep(30)\ndef run(): raise E",
    "class S:\n def write(self, text): pass\n def flush(self):\n  print('go', file=out)\n  time.sleep(30)\n"
    "def run():\n global out\n out, sys.stdout = sys.stdout, S()\n return 1",
)


@pytest.mark.covers("worker:W26", "worker:W30")
@BOTH
async def test_W26_W30_code_of_the_models_that_runs_at_the_end_can_be_cancelled(tmp_path: Path, model: str) -> None:
    async with open_worker(tmp_path, model) as parent:
        for code in AT_THE_END:
            outcome, seconds = await cancel_when(parent, "import sys, time\n" + code)
            assert outcome.cancelled, code
            assert seconds < PROMPT, code
            await runs_next(parent, code)
        await goes_on(parent)


@pytest.mark.covers("worker:W28")
async def test_W28_a_hook_of_the_models_in_place_of_ours(tmp_path: Path) -> None:
    code = """
import sys, time
sys.unraisablehook = lambda lost: None
class D:
    def __del__(self):
        print("go")
        time.sleep(30)
def run():
    D()
    time.sleep(30)
"""
    async with open_worker(tmp_path, CODE) as parent:
        outcome, seconds = await cancel_when(parent, code)
        assert outcome.cancelled
        assert seconds < PROMPT


STARTS = (
    "await asyncio.gather(block())",
    "await asyncio.wait_for(block(), 60)",
    *(["await asyncio.create_task(outer())"] if sys.version_info >= (3, 11) else []),  # asyncio.TaskGroup came with it
)


@pytest.mark.covers("worker:W30")
async def test_W30_a_blocking_call_in_a_task_that_the_run_started(tmp_path: Path) -> None:
    code = """
import asyncio, time
async def block():
    print("go")
    time.sleep(30)
async def outer():
    async with asyncio.TaskGroup() as group:
        group.create_task(block())
        group.create_task(asyncio.sleep(30))
async def run():
    try:
        START
    finally:
        print("cleaned")
"""
    async with open_worker(tmp_path, test_asyncio_executor.CODE) as parent:
        for start in STARTS:
            outcome, seconds = await cancel_when(parent, code.replace("START", start))
            assert outcome.cancelled, start
            assert outcome.logs() == "go\ncleaned\n", start
            assert seconds < PROMPT, start
            await runs_next(parent, start)
        await goes_on(parent)


ALARM = """
import signal, time
def late(*_): raise TimeoutError("late")
def run():
    signal.signal(signal.SIGALRM, late)
    assert signal.getsignal(signal.SIGALRM) is late
    signal.setitimer(signal.ITIMER_REAL, {first}, 0.001)
    return {result}
"""


async def test_an_alarm_that_a_run_left_behind_never_rings_in_another(tmp_path: Path) -> None:
    async with open_worker(tmp_path, CODE) as parent:
        for first, result in product((0.000001, 0.0002, 0.001, 0.01) * 5, ("1", "iter([1])")):
            outcome = await parent.run({"code": ALARM.format(first=first, result=result)})
            # it may ring once more while the text of the first is made
            assert outcome.done or outcome.error in ("TimeoutError: late", "TimeoutError")
            assert (await parent.run({"code": "import time\ndef run(): time.sleep(0.02)"})).done
        await goes_on(parent)


async def test_an_alarm_that_rings_in_the_event_loop_ends_nothing(tmp_path: Path) -> None:
    async with open_worker(tmp_path, test_asyncio_executor.CODE) as parent:
        for first in (0.000001, 0.0002, 0.001, 0.01) * 5:
            outcome = await parent.run({"code": ALARM.format(first=first, result=1)})
            # it may ring once more while the text of the first is made
            assert outcome.done or outcome.error in ("TimeoutError: late", "TimeoutError")
            await trio.sleep(0.01)  # nothing but the loop's own code runs
        await goes_on(parent)


async def test_a_time_out_by_alarm_ends_a_generator_that_waits_for_its_reader(tmp_path: Path) -> None:
    code = """
import signal
def late(*_): raise TimeoutError("late")
def run():
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    while True:
        yield "x" * 100000
"""
    async with open_worker(tmp_path, CODE) as parent:
        predict = await parent.predict({"code": code})
        await trio.sleep(0.6)  # nobody reads: the run waits for room when the alarm rings
        assert (await parent.finish(predict)).error == "TimeoutError: late"


CHILD_ENDS = {"sys.exit()": 0, "sys.exit(5)": 5, "sys.exit('text')": 1, "1 / 0": 1, "return": 1, "del sys.stdout": 1}


@BOTH
async def test_a_forked_child_ends_as_a_program_would(tmp_path: Path, model: str) -> None:
    code = """
import os, sys
def run():
    child = os.fork()
    if not child:
        END
        return None
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    async with open_worker(tmp_path, model) as parent:
        for end, status in CHILD_ENDS.items():
            outcome = await parent.run({"code": code.replace("END", end)})
            assert outcome.outputs == [status], end
            assert ("ZeroDivisionError" in outcome.logs()) is (end == "1 / 0"), end
            await runs_next(parent, end)
        await goes_on(parent)


@pytest.mark.parametrize("place", ["import", "def", "async def"])
async def test_a_child_forked_in_setup_does_not_go_on_as_a_worker(tmp_path: Path, place: str) -> None:
    fork = "child = os.fork()\n{0}if child: print('status', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    setup = "pass" if place == "import" else fork.format(" " * 8)
    source = f"""
import os
from typing import Any
{fork.format("") if place == "import" else ""}
class Runner:
    {"def" if place == "import" else place} setup(self) -> None:
        {setup}
    def run(self) -> int:
        return 1
"""
    async with open_worker(tmp_path, source) as parent:
        assert parent.service_log() == "status 1\n"
        assert (await parent.run()).outputs == [1]


async def test_a_sync_setup_may_close_the_event_loop_that_it_finds(tmp_path: Path) -> None:
    source = """
import asyncio
class Runner:
    def setup(self) -> None:
        loop = asyncio.get_event_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    async def run(self) -> int:
        await asyncio.sleep(0)
        return 1
    async def healthcheck(self) -> bool:
        await asyncio.sleep(0)
        return True
"""
    async with open_worker(tmp_path, source) as parent:
        assert (await parent.run()).outputs == [1]
        await parent.tell(Healthcheck("h"))
        assert (await parent.hear(HealthcheckResult)).error is None
        assert await parent.leave() == 0


@pytest.mark.covers("worker:W34")
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_W34_a_health_check_that_raises_anything_is_answered_and_asked_again(tmp_path: Path, kind: str) -> None:
    source = f"""
import asyncio
class Odd(BaseException):
    def __str__(self): raise KeyboardInterrupt
class Runner:
    async def run(self, number: int) -> int:
        self.raised = (GeneratorExit, Odd, asyncio.CancelledError, SystemExit)[number]
        return number
    {kind} healthcheck(self) -> bool:
        raise self.raised
"""
    async with open_worker(tmp_path, source) as parent:
        for number, raised in enumerate(("GeneratorExit", "Odd", "CancelledError", "SystemExit")):
            assert (await parent.run({"number": number})).outputs == [number]
            for again in ("", "again"):
                await parent.tell(Healthcheck(f"{raised}{again}"))
                told = await parent.hear(HealthcheckResult)
                assert (told.id, told.error) == (f"{raised}{again}", f"Healthcheck failed: {raised}")
        assert (await parent.run({"number": 0})).outputs == [0]


@BOTH
async def test_what_a_failed_run_held_goes_with_it(tmp_path: Path, model: str) -> None:
    code = """
class Held:
    def __del__(self): print("gone")
def run():
    held = Held()
    raise ValueError
"""
    async with open_worker(tmp_path, model) as parent:
        outcome = await parent.run({"code": code})
        assert outcome.logs().endswith("gone\n")
        await goes_on(parent)


async def test_files_beside_the_model_never_stand_in_for_what_the_worker_imports(tmp_path: Path) -> None:
    for name in ("queue", "types", "signal", "select", "token", "trio", "json", "logging"):
        (tmp_path / f"{name}.py").write_text("print('not the one')\nraise ImportError")
    async with open_worker(tmp_path, "import sys\ndef Runner() -> list[str]:\n    return sys.path[:1]") as parent:
        assert (await parent.run()).outputs == [str(tmp_path)]
        assert parent.service_log() == ""


@pytest.mark.parametrize(
    "variable",
    [
        *("PYTHONWARNINGS=error", "PYTHONVERBOSE=2", "PYTHONUNBUFFERED=1", "PYTHONOPTIMIZE=2", "PYTHONSAFEPATH=1"),
        *("PYTHONDEVMODE=1", "PYTHONPROFILEIMPORTTIME=1", "PYTHONINSPECT=1", "PYTHONIOENCODING=ascii"),
    ],
)
async def test_interpreters_of_all_settings(tmp_path: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    async with open_worker(tmp_path, test_asyncio_executor.CODE, env={name: value}) as parent:
        assert (await parent.run({"code": "def run(): return 'ü'"})).outputs == ["ü"]
        assert await parent.leave() == 0
