"""What a trivial run costs the worker, by counts: they are the same on a busy machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.worker.rig import LIMIT, open_worker

RUNS: Final = 50
COUNTED: Final = """
    import sys
    count = [0]
    def profile(frame, event, arg):
        if event in ("call", "c_call"): count[0] += 1
    def Runner(n: int) -> int:
        if n == 0: sys.setprofile(profile)
        if n == RUNS:
            sys.setprofile(None)
            return count[0]
        return n
"""
SOURCES: Final = {
    "sync": "def Runner(n: int) -> int:\n    return n",
    "async": "async def Runner(n: int) -> int:\n    return n",
    "trio": "import cog\n@cog.trio\nasync def Runner(n: int) -> int:\n    return n",
}
CALLS: Final = 190  # of Python and C functions on the main thread
SYSTEM_CALLS: Final = {  # poll, read, write, and two looks at the pipes
    "sync": {"poll": 1, "read": 1, "write": 1, "epoll_wait": 2},
    "async": {"read": 1, "write": 1, "epoll_wait": 5},
    "trio": {"read": 1, "write": 1, "epoll_wait": 5, "epoll_ctl": 1},
}


def trace(process: int, out: Path) -> subprocess.Popen[str]:
    """Write its system calls to a file."""
    command = ["strace", "-f", "-qq", "-e", "signal=none", "-o", str(out), "-p", str(process)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


async def test_calls_of_a_trivial_sync_run(tmp_path: Path) -> None:
    async with open_worker(tmp_path, COUNTED.replace("RUNS", str(RUNS))) as parent:
        for n in range(RUNS):
            await parent.run({"n": n})
        (calls,) = (await parent.run({"n": RUNS})).outputs
        assert calls / RUNS <= CALLS


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("kind", SOURCES)
async def test_system_calls_of_a_trivial_run(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "calls"
    async with open_worker(tmp_path, SOURCES[kind]) as parent:
        await parent.run({"n": 0})
        with trace(parent.process.pid, out) as tracer:
            try:
                with trio.move_on_after(LIMIT):
                    while not (out.exists() and out.stat().st_size) and tracer.poll() is None:
                        await parent.run({"n": 1})
                if tracer.poll() is not None:
                    pytest.skip(f"no process may be traced here: {tracer.stderr and tracer.stderr.read()}")
                before = len(out.read_text().splitlines())
                for n in range(RUNS):
                    await parent.run({"n": n})
            finally:
                tracer.terminate()
    lines = out.read_text().splitlines()[before:]
    seen = Counter(match[1] for line in lines if (match := re.match(r"\d+ +(\w+)\(", line)))
    for name, most in SYSTEM_CALLS[kind].items():
        assert seen.pop(name, 0) <= most * RUNS + RUNS / 2, name
    assert sum(seen.values()) <= RUNS / 2, seen  # now and then the tracer itself interrupts one, or a timer comes
