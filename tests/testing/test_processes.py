"""What is left of a server is found by its mark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import trio

from cog_trio.testing import processes

pytestmark = pytest.mark.process

SLEEPS = "import time; time.sleep(60)"
LEAVES = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPS!r}], stdout=subprocess.DEVNULL, start_new_session=True)
print(child.pid)
"""


async def test_a_child_that_left_its_parent_and_its_session_is_found_and_killed() -> None:
    mark = uuid.uuid4().hex
    done = await trio.run_process(
        [sys.executable, "-c", LEAVES],
        env={**os.environ, processes.MARK: mark},
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
    )
    child = int(done.stdout)
    try:
        with trio.fail_after(20):
            while processes.marked(mark) != [child]:  # noqa: ASYNC110 (after its exec it shows none for a moment)
                await trio.sleep(0.01)
        assert processes.marked(mark[:-1]) == []
        with pytest.raises(AssertionError, match=f"process {child} .*time.sleep"):
            await processes.nothing_left(mark, 0.05)
    finally:
        processes.kill_marked(mark)
    with trio.fail_after(20):
        await processes.nothing_left(mark, 20)


def test_a_system_without_proc_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PROC", Path("/nowhere"))
    assert processes.marked("x") == []


async def test_what_a_killed_test_run_has_started_is_ended() -> None:
    """A CI job that is over its time: nothing of ours runs any more, and a server would run for ever."""
    program = """
import os, signal, subprocess
from cog_trio.testing.processes import ended_with_us
with ended_with_us(subprocess.Popen(["sleep", "60"]).pid):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with trio.fail_after(30):  # until nobody holds stdout any more, which is inherited
        run = await trio.run_process([sys.executable, "-c", program], capture_stdout=True, check=False)
    assert run.returncode == -signal.SIGKILL


def test_what_ends_well_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as held:
        with processes.ended_with_us(held.pid):
            pass
        assert held.poll() is None
        held.kill()
