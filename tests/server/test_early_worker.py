"""The worker that is spawned before the settings are read: when, and what becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cog_trio.config.settings import Settings, worker_variables
from cog_trio.orchestrator.spawn import WorkerProcess
from cog_trio.server import early_worker
from cog_trio.server.early_worker import EarlyWorker, likely

pytestmark = pytest.mark.process

ORDER = """
import subprocess, sys
popen = subprocess.Popen

class Popen(popen):
    def __init__(self, *args, **more):
        print("spawned", sorted({"click", "yaml", "trio", "typing", "cog_trio.config"} & sys.modules.keys()))
        super().__init__(*args, **more)

subprocess.Popen = Popen
sys.argv = ["http", "--port", "nonsense"]
from cog_trio.server.http import main
main()
"""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and the variables of a container with a model."""
    monkeypatch.chdir(tmp_path)
    for name in early_worker.NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COG_PREDICT_TYPE_STUB", "predict.py:Runner")
    monkeypatch.setattr(sys, "argv", ["http"])
    return tmp_path


def gone(process: WorkerProcess) -> bool:
    return process.popen.returncode is not None and process.guardian == -1


def test_its_variables_are_those_of_the_default_settings() -> None:
    assert worker_variables(Settings()) == early_worker.VARIABLES


def test_it_is_taken_when_it_is_what_was_asked_for(container: Path) -> None:
    with EarlyWorker() as early:
        process = early.take(str(container), worker_variables(Settings()))
        assert process is not None
        assert process.popen.poll() is None
    assert gone(process)


@pytest.mark.parametrize(
    ("folder", "variables"), [("/", {}), (None, {"CUDA_VISIBLE_DEVICES": "1"}), (None, {"FOO": "of cog.yaml"})]
)
def test_it_is_ended_when_another_one_was_asked_for(
    container: Path, folder: str | None, variables: dict[str, str]
) -> None:
    with EarlyWorker() as early:
        process = early._process
        assert process is not None
        assert early.take(folder or str(container), {**early_worker.VARIABLES, **variables}) is None
        assert gone(process)


def test_an_error_ends_it(container: Path) -> None:
    def fail() -> None:
        with EarlyWorker() as early:
            processes.append(early._process)
            raise ZeroDivisionError

    processes: list[WorkerProcess | None] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert processes[0] is not None
    assert gone(processes[0])


def test_no_process_can_be_started(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> WorkerProcess:
        raise BlockingIOError("fork")

    monkeypatch.setattr(early_worker, "spawn", fail)
    with EarlyWorker() as early:
        assert early.take(str(container), early_worker.VARIABLES) is None


@pytest.mark.parametrize("arguments", [["--help"], ["-v"], ["--gpus", "1"], ["--gpus=1"], ["--reload-dir", "x"]])
def test_flags_that_make_it_unlikely(container: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    assert likely()
    monkeypatch.setattr(sys, "argv", ["http", "--port", "0", *arguments])
    assert not likely()


def test_variables_and_files_that_make_it_unlikely(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (container / "cog.yaml").write_text("predict: predict.py:Runner\n")
    assert likely()
    (container / "cog.yaml").write_text("environment:\n  - A=1\n")
    assert not likely()
    (container / "cog.yaml").unlink()
    monkeypatch.setenv("COG_TRIO_GPUS", "1")
    assert not likely()
    monkeypatch.delenv("COG_TRIO_GPUS")
    monkeypatch.delenv("COG_PREDICT_TYPE_STUB")
    assert not likely()


def test_it_is_spawned_before_the_command_line_is_read_and_a_wrong_flag_ends_it(container: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORDER], capture_output=True, text=True, timeout=50, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == ["spawned []"]
    assert done.returncode == 2
    assert "nonsense" in done.stderr


SERVED = """
import sys
import cog_trio.server.entry
import trio
from cog_trio.bridge.quick_trio import import_trio
from cog_trio.cli.serve import program
from cog_trio.transport.http import routes, serve
import cog_trio.service.open_service
unwanted = ("asyncio", "hypercorn", "h2", "wsproto", "h11", "prometheus_client", "httpx", "rich", "uuid6")
print([name for name in unwanted if name in sys.modules], len(sys.modules) < 520 or len(sys.modules))
"""
WORKER = """
import sys
from cog_trio.worker import __main__
from cog_trio.bridge.quick_trio import import_trio
import_trio()
import cog_trio.worker.process.main
unwanted = ("asyncio", "httpx", "click", "yaml", "hypercorn", "cog_trio.service", "cog_trio.transport")
print([name for name in unwanted if name in sys.modules], len(sys.modules) < 430 or len(sys.modules))
"""


def test_what_few_servers_need_is_not_imported_at_the_start() -> None:
    """Counts, too: each module costs the start of a server, and of each of its workers, about 0.3 ms."""
    for code in (SERVED, WORKER):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
        assert done.stdout.strip() == "[] True"
