"""Rows of worker.md that hold for all three kinds of runner: the same code, the same end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from cog_trio.bridge.protocol import (
    MAX_ERROR,
    DroppedLogs,
    Healthcheck,
    HealthcheckResult,
    Log,
    OutputChunk,
    SlotResponse,
)
from tests.worker.cancel.test_gate import PROMPT, cancel_when
from tests.worker.executors import test_asyncio_executor, test_sync_executor, test_trio_executor
from tests.worker.rig import Outcome, open_worker

CODES: Final = {"sync": test_sync_executor.CODE, "async": test_asyncio_executor.CODE, "trio": test_trio_executor.CODE}

FAILURES: Final = {
    "raise ValueError('was cancelled: CancelledError, CancelationException')": "ValueError: was cancelled: "
    "CancelledError, CancelationException",  # W31
    "import asyncio; raise asyncio.CancelledError('x')": "CancelledError: x",
    "import cog; raise cog.CancelationException": "CancelationException",
    "raise GeneratorExit": "GeneratorExit",
    "def again(): return again()\n    return again()": "RecursionError: maximum recursion depth exceeded",
    "return bytearray(1 << 60)": "MemoryError",
    "import cog; cog.current_scope().record_metric('a', 'x' * 2**20)": "ValueError: metric 'a': 1048578 bytes are over "
    "the limit of 1048576",  # W19
    "return b'x'": "TypeError: a value of type bytes cannot be turned into JSON, at output",  # W52
    "from pathlib import Path; return Path('/none/x.txt')": "FileNotFoundError: output: '/none/x.txt' can't be read: "
    "No such file or directory",  # W48
}
VALUES: Final[dict[str, object]] = {
    "return {'n': 10**30, 's': set(), 'f': float('nan')}": {"n": 10**30, "s": [], "f": None},  # W52
    "import os\n    child = os.fork()\n    if not child: return 1\n"
    "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])": 1,
    "import signal, os\n    for n in (2, 15): os.kill(os.getpid(), n)\n    return 'lives'": "lives",  # W12
    "import sys\n    print(repr(sys.stdin.read()))\n    return 'read'": "read",  # W47
}


async def run_all(folder: Path, kind: str, codes: dict[str, str]) -> dict[str, Outcome]:
    """What each piece of code comes to, in one worker."""
    head = "def run():\n    " if kind == "sync" else "async def run():\n    "
    async with open_worker(folder, CODES[kind]) as parent:
        outcomes = {name: await parent.run({"code": head + code}) for name, code in codes.items()}
        assert (await parent.run({"code": head + "return 1"})).outputs == [1]
        assert await parent.leave() == 0
        return outcomes


@pytest.mark.covers("worker:W19", "worker:W31", "worker:W34", "worker:W38", "worker:W48", "worker:W52")
@pytest.mark.parametrize("kind", CODES)
async def test_W19_W31_W34_W38_W48_W52_the_same_failures(tmp_path: Path, kind: str) -> None:
    outcomes = await run_all(
        tmp_path, kind, {code: code for code in FAILURES} | {"long": "raise ValueError('x' * 2**20)"}
    )
    long = outcomes.pop("long")
    assert len(long.error) == MAX_ERROR
    for code, error in FAILURES.items():
        assert outcomes[code].error == error, code
        text = outcomes[code].logs()
        assert error.partition(":")[0] in text, code
        for ours in ("cog_trio", "_threads.py", "thread.py", "outcome"):  # frames of the way to the model's code
            assert ours not in text, code


@pytest.mark.covers("worker:W12", "worker:W45", "worker:W47", "worker:W52")
@pytest.mark.parametrize("kind", CODES)
async def test_W12_W45_W47_W52_the_same_values(tmp_path: Path, kind: str) -> None:
    for code, outcome in (await run_all(tmp_path, kind, {code: code for code in VALUES})).items():
        assert outcome.outputs == [VALUES[code]], (code, outcome)
        if "stdin" in code:
            assert outcome.logs() == "''\n"


PRINTS: Final = """
    import cog, LIB
    MARK
    class Runner(cog.BaseRunner):
        async def run(self, lines: int) -> str:
            for number in range(lines):
                print("x" * 1000, number)
            return "done"
"""


@pytest.mark.parametrize(("mark", "lib"), [("", "asyncio"), ("@cog.trio", "trio")])
async def test_a_run_that_prints_to_a_slow_reader_stops_no_other_run(tmp_path: Path, mark: str, lib: str) -> None:
    """Given two slots, one of which is not read, then runs on the other go on, and what was cut is counted."""
    async with open_worker(tmp_path, PRINTS.replace("MARK", mark).replace("LIB", lib), max_concurrency=2) as parent:
        loud = await parent.predict({"lines": 20_000})
        dropped = await parent.hear(DroppedLogs)
        assert dropped.interval_millis > 0
        for _ in range(3):
            assert (await parent.run({"lines": 1}, slot=1)).outputs == ["done"]
        outcome = await parent.finish(loud)
        assert outcome.outputs == ["done"]
        text = outcome.logs()
        assert await parent.leave() == 0
        assert text.count("LOGS TRUNCATED AT 4 MiB") == 1
        lines = sum(message.count for message in parent.heard if isinstance(message, DroppedLogs))
        assert text.count("x" * 1000) + lines in (20_000, 20_001)  # the line that was cut may count twice


IN_CONTEXT: Final = """
    import contextvars, cog
    var = contextvars.ContextVar("var", default="unset")
    MARK
    class Runner(cog.BaseRunner):
        def setup(self) -> None:
            var.set("set up")
        KIND run(self, x: int) -> str:
            before = var.get()
            var.set("of a run")
            return before
"""


@pytest.mark.parametrize("kind", CODES)
async def test_a_context_variable_that_setup_has_set_is_seen_in_each_run(tmp_path: Path, kind: str) -> None:
    mark, word = ("@cog.trio" if kind == "trio" else ""), ("def" if kind == "sync" else "async def")
    async with open_worker(tmp_path, IN_CONTEXT.replace("MARK", mark).replace("KIND", word)) as parent:
        for x in range(2):
            assert (await parent.run({"x": x})).outputs == ["set up"]


BLOCKS: Final = """
    import asyncio, cog, time, trio
    import cog_trio.worker.model.healthcheck
    cog_trio.worker.model.healthcheck.LIMIT = 0.3
    MARK
    class Runner(cog.BaseRunner):
        blocks = True
        async def healthcheck(self) -> bool:
            if self.blocks:
                self.blocks = False
                print("blocks", flush=True)
                time.sleep(60)
            return True
        async def run(self) -> None:
            print("go")
            await LIB.sleep(60)
"""


@pytest.mark.covers("worker:W32")
@pytest.mark.parametrize(("mark", "lib"), [("", "asyncio"), ("@cog.trio", "trio")])
async def test_W32_a_check_that_blocks_the_loop_is_interrupted_at_its_limit(
    tmp_path: Path, mark: str, lib: str
) -> None:
    async with open_worker(tmp_path, BLOCKS.replace("MARK", mark).replace("LIB", lib)) as parent:
        predict = await parent.predict()
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "go", frames)
        await parent.tell(Healthcheck("first"))
        while "blocks" not in parent.service_log():
            await parent.hear(Log)
        await parent.cancel(predict)
        assert (await parent.finish(predict, frames)).cancelled
        assert "timed out" in ((await parent.hear(HealthcheckResult)).error or "")
        await parent.tell(Healthcheck("second"))
        assert (await parent.hear(HealthcheckResult)).error is None
        assert await parent.leave() == 0


IMPORTED = """
import time
print("go")
end = time.monotonic() + 0.6
while time.monotonic() < end: WORK
VALUE = 7
"""


@pytest.mark.parametrize("work", ["pass", "time.sleep(0.01)", "print('busy')"])
@pytest.mark.parametrize("kind", CODES)
async def test_a_cancel_waits_for_an_import_to_end(tmp_path: Path, kind: str, work: str) -> None:
    """Given a run that imports a module for the first time, a cancel meanwhile must not leave the module half made."""
    (tmp_path / "slow_part.py").write_text(IMPORTED.replace("WORK", work))
    (tmp_path / "whole.py").write_text("import slow_part\nfrom slow_part import VALUE\n")
    head = "def run():" if kind == "sync" else "async def run():"
    code = f"import time\n{head}\n    import whole\n    while True: time.sleep(0.01)\n"
    async with open_worker(tmp_path, CODES[kind]) as parent:
        outcome, seconds = await cancel_when(parent, code)
        assert outcome.cancelled
        assert seconds < PROMPT
        again = f"{head}\n    import whole, slow_part\n    return [whole.VALUE, slow_part.VALUE]"
        assert (await parent.run({"code": again})).outputs == [7, 7]


SLEEPS: Final = {
    "sync": "import time\nsleep = time.sleep",
    "async": "from asyncio import sleep",
    "trio": "from trio import sleep",
}
CANCELS: Final = {
    "its clean-up is waited for": (
        "try:\n        print('go')\n        SLEEP(60)\n    finally:\n        SLEEP(0.01)\n        print('clean')",
        "clean",
    ),
    "one that is swallowed": (
        "try:\n        print('go')\n        SLEEP(60)\n    except BaseException:\n        print('kept')\n    return 1",
        "kept",
    ),
    "a failing clean-up": (
        "try:\n        print('go')\n        SLEEP(60)\n    finally:\n        print('bad')\n        raise ValueError",
        "bad",
    ),
    "in the middle of a computation": ("print('go')\n    while True: n = [m for m in range(1000)]", ""),
}


@pytest.mark.parametrize("kind", CODES)
async def test_the_same_cancels(tmp_path: Path, kind: str) -> None:
    """Three times each: only the first counts, and the next run is not hit."""
    head = f"{SLEEPS[kind]}\n{'' if kind == 'sync' else 'async '}def run():\n    "
    async with open_worker(tmp_path, CODES[kind]) as parent:
        for name, (body, text) in CANCELS.items():
            if kind == "trio":  # whoever cleans up in trio has to shield it
                body = body.replace("SLEEP(0.01)", "pass")
            code = head + body.replace("SLEEP", "sleep" if kind == "sync" else "await sleep")
            predict = await parent.predict({"code": code})
            frames: list[SlotResponse] = []
            await parent.wait_log(predict, "go", frames)
            for _ in range(3):
                await parent.cancel(predict)
            outcome = await parent.finish(predict, frames)
            assert outcome.cancelled, name
            assert outcome.logs().split()[1:] == text.split(), name
            assert (await parent.run({"code": head + "return 1"})).outputs == [1], name
        assert await parent.leave() == 0


CRASH: Final = """
    import cog, os
    from typing import Any
    MARK
    DEF Runner(x: str) -> Any:
        print("begun")
        for n in range(3): yield n
        with open(x) as fifo: fifo.read()
        yield "late"
        os._exit(3)
"""


@pytest.mark.parametrize("kind", CODES)
async def test_a_crash_costs_nothing_of_what_was_put_out_a_moment_before(tmp_path: Path, kind: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    mark, start = ("@cog.trio" if kind == "trio" else ""), ("def" if kind == "sync" else "async def")
    async with open_worker(tmp_path, CRASH.replace("MARK", mark).replace("DEF", start)) as parent:
        predict = await parent.predict({"x": str(fifo)})
        frames: list[SlotResponse] = []
        await parent.wait_log(predict, "begun", frames)
        line = parent.lines[0]
        while True:
            frames += line.waiting  # some may have come with the text
            line.waiting.clear()
            if sum(isinstance(frame, OutputChunk) + getattr(frame, "count", 0) for frame in frames) == 3:
                break
            await line.read()
        await test_sync_executor.write(fifo)
        assert await parent.wait_exit() == 3
