"""The guardian: what it kills when, with a pidfd and without one, and what it holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from cog_trio.bridge.protocol import LogLine
from tests.worker.rig import alive, open_worker, until

HOG = """
    import ctypes, subprocess
    def Runner(x: int = 0) -> int:
        child = subprocess.Popen(["sleep", "60"])
        print("child", child.pid)
        ctypes.PyDLL(None).sleep(60)  # holds the GIL
        return 1
"""


async def gone(pid: int) -> None:
    await until(lambda: not alive(pid))


def members(group: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.add(int(entry.name))
    return found


@pytest.mark.covers("worker:W8", "D29")
async def test_W8_D29_end_of_the_parent_while_the_gil_is_held(tmp_path: Path) -> None:
    async with open_worker(tmp_path, HOG) as parent:
        await parent.predict()
        log = await parent.lines[0].hear(LogLine)
        os.close(parent.process.guardian)  # what a killed parent's kernel does
        parent.process.guardian = -1
        assert await parent.wait_exit() == -signal.SIGKILL
        await gone(int(log.data.split()[1]))


@pytest.mark.covers("worker:W9")
async def test_W9_children_are_gone_when_the_worker_was_killed(tmp_path: Path) -> None:
    async with open_worker(tmp_path, HOG) as parent:
        await parent.predict()
        log = await parent.lines[0].hear(LogLine)
        os.kill(parent.process.pid, signal.SIGKILL)
        assert await parent.wait_exit() == -signal.SIGKILL
        await gone(int(log.data.split()[1]))


async def test_guardian_holds_one_pipe_and_two_pidfds_ignores_polite_signals_and_ends_with_the_worker(
    tmp_path: Path,
) -> None:
    async with open_worker(tmp_path, "def Runner() -> int:\n    return 1") as parent:
        (guardian,) = members(parent.process.pid) - {parent.process.pid}
        held = [os.readlink(f"/proc/{guardian}/fd/{fd}") for fd in os.listdir(f"/proc/{guardian}/fd")]
        assert sorted(name.partition(":")[0] for name in held) == ["anon_inode", "anon_inode", "pipe"], held
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(guardian, signum)
        assert (await parent.run()).outputs == [1]
        assert alive(guardian)
        assert await parent.leave() == 0
        await gone(guardian)


FORKING_PARENT = """
import os, subprocess, sys, time
from cog_trio.orchestrator.spawn import spawn
with spawn(sys.argv[1]) as process:
    if os.fork() == 0:  # holds every end that its parent has
        time.sleep(60)
    print(process.pid, flush=True)
    time.sleep(60)
"""


def start_forking_parent(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", FORKING_PARENT, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)


@pytest.mark.covers("D29")
async def test_D29_parent_killed_while_a_forked_child_of_it_holds_all_its_descriptors(tmp_path: Path) -> None:
    with start_forking_parent(tmp_path) as parent:
        try:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
            await until(lambda: members(worker) - {worker})  # its guardian is there
            os.kill(parent.pid, signal.SIGKILL)
            await gone(worker)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


FIRST_PROCESS = """
import ctypes, os, signal, sys, time
from cog_trio.orchestrator.spawn import spawn
PR_SET_CHILD_SUBREAPER = 36  # orphans become our children, as with PID 1
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
for number in range(4):
    with spawn(sys.argv[1]) as process:
        children = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
        while len(open(children).read().split()) < 2:  # the worker and, once its parent has ended, its guardian
            time.sleep(0.01)
        other = os.fork()
        if other == 0:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 7  # a child that is not ours to reap is left alone
    from cog_trio.orchestrator import spawn as module
    while open(children).read().split():
        time.sleep(0.01)
        module._reap_orphans()
    assert not module._orphaned
"""


async def test_a_server_without_init_keeps_no_zombie_of_a_guardian(tmp_path: Path) -> None:
    """Given a server to which orphans come, as to PID 1, when workers end, then their guardians are reaped."""
    command = [sys.executable, "-c", FIRST_PROCESS, str(tmp_path)]
    with trio.fail_after(60):
        await trio.run_process(command)


STAND_IN = """
import os, sys, time
from cog_trio.worker.process import guardian
assert guardian.open_pidfd(os.getpid()) is not None
del os.pidfd_open
if "unlisted" in sys.argv:
    def refuse(path): raise FileNotFoundError(path)
    os.listdir = refuse
assert guardian.start_guardian(int(sys.argv[1]), os.getppid())
print(os.getpid(), flush=True)
time.sleep(60)
"""


def start_stand_in(pipe: int, *how: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", STAND_IN, str(pipe), *how]
    return subprocess.Popen(command, pass_fds=[pipe], stdout=subprocess.PIPE, start_new_session=True)


@pytest.mark.parametrize("how", ["listed", "unlisted"])
@pytest.mark.parametrize("end", ["pipe", "worker"])
async def test_without_pidfd_it_does_the_same(end: str, how: str) -> None:
    """The way of macOS, forced here; a stand-in for the worker, whose child is killed with the group.

    ``unlisted``: nothing tells which descriptors are open, as in a container without ``/proc``.
    """
    read, write = os.pipe()
    process = start_stand_in(read, how)
    read_end = read
    try:
        os.close(read)
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
        (guardian,) = members(process.pid) - {process.pid}
        await until(lambda: os.listdir(f"/proc/{guardian}/fd") == [str(read_end)])
        if end == "pipe":
            os.close(write)
            write = -1
        else:
            process.kill()
        assert await trio.to_thread.run_sync(process.wait) == -signal.SIGKILL
        await gone(guardian)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        if write >= 0:
            os.close(write)
