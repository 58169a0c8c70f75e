"""Real processes: what the worker is started with, and that leaving the block leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cog_trio.config import settings
from cog_trio.orchestrator import spawn as module
from cog_trio.orchestrator.spawn import WorkerProcess, spawn

pytestmark = pytest.mark.process

LIMIT = 20.0  # seconds; no test waits that long unless it fails


def child(code: str, **options: object) -> WorkerProcess:
    return spawn(command=(sys.executable, "-c", textwrap.dedent(code)), **options)  # type: ignore[arg-type]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def line_of(process: WorkerProcess) -> str:
    assert process.popen.stdout is not None
    return process.popen.stdout.readline().decode()


TELL = """
    import fcntl, json, os, resource, stat, sys

    def is_open(number):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
            return True
        except OSError:
            return False

    numbers = [int(arg) for arg in sys.argv[1:6]]
    print(json.dumps({
        "kinds": [stat.S_ISSOCK(os.fstat(n).st_mode) for n in numbers],
        "err_is_fd2": os.fstat(numbers[3]).st_ino == os.fstat(2).st_ino,
        "open": [number for number in range(256) if is_open(number)],
        "shared": numbers,
        "parent": [int(sys.argv[6]), os.getppid()],
        "leader": [os.getpid(), os.getsid(0), os.getpgrp()],
        "path": os.environ["PYTHONPATH"].split(os.pathsep),
        "cwd": os.getcwd(),
        "extra": os.environ.get("EXTRA"),
        "soft": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }), flush=True)
    sys.stdin.read()
"""


@pytest.mark.covers("D31")
def test_what_a_worker_is_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    stray, other = socket.socketpair()  # inheritable descriptors of ours stay ours
    stray.set_inheritable(True)
    with stray, other, child(TELL, cwd=str(tmp_path), env={"EXTRA": "1"}) as process:
        told = json.loads(line_of(process))
    assert told["kinds"] == [True, False, False, False, False]
    assert told["err_is_fd2"]
    assert set(told["open"]) == {0, 1, 2, *told["shared"]}
    assert told["parent"] == [os.getpid()] * 2
    assert told["leader"] == [process.pid] * 3, "a session of its own (D31)"
    assert told["path"][0].endswith(os.path.join("cog_trio", "_alias"))
    assert told["path"][1:] == ["/somewhere"]
    assert told["cwd"] == str(tmp_path)
    assert told["extra"] == "1"


@pytest.mark.covers("D40", "D42")
def test_D40_D42_secrets_of_the_server_do_not_come_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {option.variable for option in settings.OPTIONS if option.secret or option.field in settings.SECRET_FILES}
    assert secrets == set(module._SECRETS)
    for name in secrets:
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("SHOWN", "shown")
    with child("import json, os, sys; print(json.dumps(dict(os.environ)), flush=True); sys.stdin.read()") as process:
        told = json.loads(line_of(process))
    assert told["SHOWN"] == "shown"
    assert secrets.isdisjoint(told)
    assert "hidden" not in told.values()


def test_the_worker_gets_the_old_descriptor_limit() -> None:
    old, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if old < 64:
        pytest.skip("no room to lower it")
    resource.setrlimit(resource.RLIMIT_NOFILE, (old - 1, hard))  # stands for the server that changes its own later
    try:
        code = "import resource, sys; sys.stdin.readline(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        with child(code) as process:
            assert process.popen.stdin is not None
            process.popen.stdin.write(b"\n")
            assert int(line_of(process)) == old
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (old, hard))


@pytest.mark.covers("D46")
def test_D46_leaving_the_block_kills_reaps_and_closes() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with child("import subprocess, time; subprocess.Popen(['sleep', '1000']); time.sleep(1000)") as process:
        pid = process.pid
    assert process.popen.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{pid}").exists(), "reaped, no zombie"
    assert len(os.listdir("/proc/self/fd")) == before
    process.kill()
    process.close()


def test_a_killed_process_that_does_not_go_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill does nothing here, as it does to a process in an uninterruptible call."""
    monkeypatch.setattr(module, "REAP_LIMIT", LIMIT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, number: None)
        with child("import time; time.sleep(1000)") as process:
            process.kill()
            assert process._killed is not None
            process._killed -= LIMIT  # the time of its end has been waited for already, in another way
            start = time.perf_counter()
        assert process.popen.returncode is None
        assert time.perf_counter() - start < LIMIT / 2
        assert process.slot0.fileno() < 0
    os.kill(process.pid, signal.SIGKILL)
    process.popen.wait(LIMIT)


@pytest.mark.covers("worker:W9")
def test_W9_its_children_go_with_it() -> None:
    code = """
        import subprocess, sys, time
        print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
        time.sleep(1000)
    """
    with child(code) as process:
        grandchild = int(line_of(process))
        assert alive(grandchild)
    wait_for(lambda: not alive(grandchild))


def test_the_group_is_not_killed_after_the_reaping() -> None:
    """The number of a reaped worker may be somebody else's."""
    with child("raise SystemExit(3)") as process:
        wait_for(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
        assert process.reap() == 3
        killed: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "killpg", lambda group, number: killed.append(group))
            process.kill()
        assert killed == []


def test_a_start_that_fails_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        spawn(command=("/nonexistent/python",))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("env", [{"A=B": "c"}, {"A": "b\0c"}, {"A": "\ud800"}])
def test_an_environment_that_can_not_be_is_a_start_that_fails(env: dict[str, str]) -> None:
    """So it shows as SETUP_FAILED, and a reload to it does not end the service."""
    with pytest.raises(OSError, match=rf"^\[Errno {errno.EINVAL}\] "):
        spawn(env=env)


def test_what_was_written_just_before_a_crash_is_kept() -> None:
    with child("import os, sys; os.write(int(sys.argv[3]), b'out'); os.write(2, b'err'); os.abort()") as process:
        assert process.reap() == -signal.SIGABRT
        assert [os.read(descriptor, 100) for descriptor in process.captures] == [b"out", b"err"]


@pytest.mark.covers("http:W7")
def test_an_interpreter_that_cannot_start_is_heard() -> None:
    with spawn(env={"PYTHONHOME": "/nonexistent"}) as process:
        assert process.reap() != 0
        assert b"encodings" in os.read(process.captures[1], 2**16)


@pytest.mark.covers("D46")
def test_spawn_needs_the_standard_library_only() -> None:
    code = "import sys; old = set(sys.modules); import cog_trio.orchestrator.spawn; print(*(set(sys.modules) - old))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert foreign <= {"cog_trio"}
    assert {name for name in loaded if name.startswith("cog_trio")} == {
        "cog_trio",
        "cog_trio.orchestrator",
        "cog_trio.orchestrator.spawn",
    }
    assert "inspect" not in loaded, "dataclasses would cost the start 10 ms"
