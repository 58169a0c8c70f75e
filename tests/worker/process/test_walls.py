"""A fault of ours in what serves one thing costs that thing alone: injected into each such place, for each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from cog_trio.bridge.protocol import Healthcheck, HealthcheckResult, LogLevel, RunFailed, WorkerLog
from cog_trio.worker.runs.slots import INTERNAL_ERROR
from tests.worker.rig import Parent, open_worker

KINDS: Final = {"sync": "def", "async": "async def", "trio": "async def"}
FAULTS: Final = ("ZeroDivisionError", "RecursionError", "MemoryError")
SOURCE: Final = """
    import cog, sys
    from typing import Optional
    from cog_trio.worker.executors import sync_executor, user_signals
    from cog_trio.worker.logs import run_log
    from cog_trio.worker.model import healthcheck
    from cog_trio.worker.runs import prepare_inputs, slot_reader, slots

    def breaks(place, name, times=1):
        before = getattr(place, name)
        left = [times]
        def broken(*args, **kwargs):
            if not left[0]: return before(*args, **kwargs)
            left[0] -= 1
            raise FAULT("injected")
        setattr(place, name, broken)

    INJECT

    class Runner(cog.BaseRunner):
        def healthcheck(self) -> bool:
            return True
        MARK
        DEF run(self, file: Optional[cog.Path] = None) -> int:
            print("ran")
            return 1
"""
PLACES: Final = {
    "decoding": "breaks(slot_reader, 'load_inputs')",
    "fetching": "breaks(prepare_inputs, 'fetch_all')",
    "beginning": "breaks(slots.Job, 'open')",
    "the end": "breaks(slots, 'Done')",
}


def source(kind: str, inject: str, fault: str) -> str:
    mark = "@cog.trio" if kind == "trio" else ""
    text = SOURCE.replace("INJECT", inject).replace("FAULT", fault)
    return text.replace("MARK", mark).replace("DEF", KINDS[kind])


async def hear_fault(parent: Parent, fault: str) -> None:
    """The log names it, with its traceback."""
    log = await parent.hear(WorkerLog, lambda log: log.level is LogLevel.ERROR)
    assert f"{fault}: injected" in log.message
    assert "Traceback" in log.message


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_fault_around_a_run_fails_that_run_alone(tmp_path: Path, kind: str, place: str) -> None:
    for fault in FAULTS:
        async with open_worker(tmp_path, source(kind, PLACES[place], fault)) as parent:
            outcome = await parent.run({"file": "data:,x"} if place == "fetching" else {})
            assert isinstance(outcome.terminal, RunFailed), fault
            assert outcome.error == INTERNAL_ERROR
            await hear_fault(parent, fault)
            assert (await parent.run({"file": "data:,x"})).outputs == [1]
            assert await parent.leave() == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fault_of_the_health_check_is_its_answer(tmp_path: Path, kind: str) -> None:
    for fault in FAULTS:
        inject = "breaks(healthcheck.HealthCheck, '_ask')"
        async with open_worker(tmp_path, source(kind, inject, fault)) as parent:
            for error in (INTERNAL_ERROR, None):
                await parent.tell(Healthcheck("h"))
                assert (await parent.hear(HealthcheckResult)).error == error
                assert (await parent.run()).outputs == [1]
            assert any(isinstance(message, WorkerLog) for message in parent.heard)
            assert await parent.leave() == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fault_of_a_late_text_costs_nothing(tmp_path: Path, kind: str) -> None:
    for fault in FAULTS:
        inject = "breaks(run_log.RunLog, 'send_late')"
        text = source(kind, inject, fault).replace('print("ran")', "for n in range(5000): print(n)")
        async with open_worker(tmp_path, text) as parent:
            for _ in range(2):
                outcome = await parent.run()
                assert outcome.outputs == [1]
                assert outcome.logs().splitlines() == [str(n) for n in range(5000)]
            assert await parent.leave() == 0


NO_THREADS: Final = """
    import threading, _thread
    real = _thread.start_new_thread
    def refuse(*args, **kwargs):
        raise RuntimeError("can't start new thread")
    import trio._core._thread_cache as cache
    threading._start_new_thread = refuse
    if hasattr(threading, "_start_joinable_thread"): threading._start_joinable_thread = refuse
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_where_no_thread_can_be_started_large_inputs_are_decoded(tmp_path: Path, kind: str) -> None:
    """And what needs a thread fails for itself."""
    async with open_worker(tmp_path, source(kind, NO_THREADS, "OSError")) as parent:
        spill = tmp_path / "spill.json"
        spill.write_text('{"input": {"file": null}, "context": {"x": "' + "x" * 100_000 + '"}}')
        assert (await parent.run(input_file=str(spill))).outputs == [1]
        assert (await parent.run({"file": None, "more": "x" * 100_000})).outputs == [1]
        await parent.tell(Healthcheck("h"))
        assert "can't start new thread" in ((await parent.hear(HealthcheckResult)).error or "")
        assert (await parent.run({"file": "data:," + "x" * 100_000})).error == INTERNAL_ERROR
        assert (await parent.run({"file": "data:,x"})).outputs == [1]
        assert await parent.leave() == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_proxy_that_no_client_can_be_made_for(tmp_path: Path, kind: str) -> None:
    env = {"ALL_PROXY": "socks5://127.0.0.1:1"}
    async with open_worker(tmp_path, source(kind, "", "OSError"), env=env) as parent:
        for _ in range(2):
            error = (await parent.run({"file": "http://example.org/x"})).error
            assert error.startswith("Input validation error: file: the HTTP client can't be set up: ")
            assert "socksio" in error
        assert (await parent.run({"file": "data:,x"})).outputs == [1]
        assert await parent.leave() == 0
