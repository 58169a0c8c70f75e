"""What the program says when it can't go on, or not even start: one line, and the group in the log."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from cog_trio.cli.launch_plan import LaunchPlan
from cog_trio.cli.serve.program import BROKEN, LARGE_BLOCK, serve
from cog_trio.config.settings import Settings
from cog_trio.orchestrator.spawn import spawn
from cog_trio.service.shutdown import ShutdownSequence

pytestmark = pytest.mark.process

SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")


def end(folder: Path) -> int:
    """Serve a worker that never answers, and end at once."""
    plan = LaunchPlan("cog-trio", Settings(port=0), str(folder), "m.py", None, {})
    with spawn(command=SLEEP) as process:
        return serve(plan, process, [signal.SIGTERM])


def log_of(text: str) -> dict[str, Any]:
    """The line of the log about the end."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    (found,) = [line for line in lines if line["message"] == "the server has failed"]
    return dict(found)


def test_a_service_that_breaks_is_one_line_and_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def broken(self: ShutdownSequence) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(ShutdownSequence, "_wait_idle", broken)
    assert end(tmp_path) == BROKEN
    errors = capfd.readouterr().err
    assert errors.splitlines()[-1].startswith("cog-trio: the server has failed: ServiceBroken: the service failed: ")
    exception = log_of(errors)["exception"]
    assert "LookupError: a bug" in exception
    assert "/click/" not in exception
    assert "Traceback" not in "".join(line for line in errors.splitlines() if not line.startswith("{"))


def test_an_accept_loop_that_breaks_is_one_line_and_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(trio, "serve_listeners", broken)
    assert end(tmp_path) == BROKEN
    errors = capfd.readouterr().err
    assert errors.splitlines()[-1] == "cog-trio: the server has failed: LookupError: a bug"
    assert "LookupError: a bug" in log_of(errors)["exception"]


def test_a_keyboard_interrupt_is_not_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    monkeypatch.setattr(trio, "serve_listeners", interrupted)
    with pytest.raises(BaseException) as raised:  # noqa: PT011 (alone, or in groups)
        end(tmp_path)
    assert "KeyboardInterrupt" in repr(raised.value)


def test_without_a_temporary_folder_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text("def run() -> str:\n    return ''\n")
    code = (
        "import sys, tempfile; from cog_trio.cli import main\n"
        "tempfile._candidate_tempdir_list = lambda: []\n"
        "sys.argv[1:] = ['serve', 'predict.py', '--port', '0']; main()"
    )
    done = run_in(tmp_path, code)
    assert done.returncode == BROKEN
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cog-trio: the server has failed: ServiceBroken: there is no temporary folder: ")


@pytest.mark.parametrize("command", ["serve", "run", "schema"])
def test_a_worker_that_cant_be_started_is_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "predict.py").write_text("def run() -> str:\n    return ''\n")
    code = (
        "import os, sys; from cog_trio.cli import main\n"
        "import cog_trio.cli.launch_plan as module, resource\n"
        "spawn = module.spawn\n"
        "def limited(*args):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))\n"
        "    return spawn(*args)\n"
        "module.spawn = limited\n"
        f"sys.argv[1:] = ['{command}', 'predict.py']; main()"
    )
    done = run_in(tmp_path, code)
    assert done.returncode == 1, done.stderr
    assert done.stderr == "cog-trio: the worker can't be started: [Errno 24] Too many open files\n"


def run_in(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 6
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
def test_the_memory_of_large_blocks_goes_back_when_they_are_freed() -> None:
    """Small blocks that were made meanwhile hold none of it."""
    program = f"""
from pathlib import Path
from cog_trio.cli.serve.program import return_large_blocks

def kept():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024

return_large_blocks()
bytearray(20 * {LARGE_BLOCK})
before = kept()
pairs = [(bytearray(b"x") * (20 * {LARGE_BLOCK}), bytearray(5_000)) for _ in range(8)]
assert kept() - before > 150 * {LARGE_BLOCK}
small = [small for _, small in pairs]
del pairs
print(kept() - before)
"""
    reply = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(reply.stdout) < 20 * LARGE_BLOCK, "without it, 150 MiB stay"
