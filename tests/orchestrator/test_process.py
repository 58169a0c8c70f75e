"""A real child process on the trio side: its exit is seen, its group goes, what it left is read, it is reaped."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import trio

from cog_trio.bridge.protocol import Init, LogSource
from cog_trio.config.settings import Settings
from cog_trio.orchestrator import process as module
from cog_trio.orchestrator.orchestrator import NeverReady, open_orchestrator
from cog_trio.orchestrator.process import ProcessLink, adopt, describe_exit
from cog_trio.orchestrator.spawn import WorkerProcess, spawn
from cog_trio.testing.fakes import FakeWorker

pytestmark = pytest.mark.process

LIMIT = 20  # seconds; no test waits that long unless it fails
CAPACITY = 2**20  # bytes that a pipe may hold


def child(code: str) -> WorkerProcess:
    return spawn(command=(sys.executable, "-c", textwrap.dedent(code)))


def exists(pid: int) -> bool:
    """Living, or a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_zombie(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    """Wait until an orphan has ended; when it is reaped is PID 1's affair."""
    while exists(pid) and not is_zombie(pid):  # noqa: ASYNC110 (nothing tells us)
        await trio.sleep(0.01)


async def bury(link: ProcessLink) -> str:
    link.kill()
    await link.wait_exit()
    return link.reap()


STUCK = """
    import os, sys
    os.write(1, "\u20ac".encode() * 1_000_000 + b"end of stdout")  # three times what the pipe holds; nobody reads it
    os.write(2, b"y" * 3_000_000)
    os.write(int(sys.argv[3]), b"\\n")
    os.write(2, b"end of stderr")
    sys.stdin.read()
"""


async def test_a_pipe_that_stays_full_is_read() -> None:
    """Given a worker that can't read its own pipes, when one stays full, then we read it, until it is not."""
    code = STUCK.replace("os.write(1,", "os.write(int(sys.argv[3]),")  # its stdout as spawned is the control channel
    with child(code) as process, trio.fail_after(LIMIT):
        link = ProcessLink(process)
        texts = {LogSource.STDOUT: "", LogSource.STDERR: ""}
        async with trio.open_nursery() as nursery:

            def take(source: LogSource, text: str) -> None:
                texts[source] += text
                if len(texts[LogSource.STDERR]) > 2_500_000:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(link.relieve, take)
        text = texts[LogSource.STDOUT]
        assert ("\u20ac" * 1_000_000 + "end of stdout").startswith(text)  # no character is torn, nothing is left out
        assert 3 * len(text) > 3_000_000 - CAPACITY  # the last part is the worker's to read
        await bury(link)


async def test_a_pipe_whose_worker_waits_for_us_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given bytes on a slot's socket that we have not read, a full pipe is as it must be: its writer waits."""
    code = """
        import os, sys, time
        os.write(int(sys.argv[1]), b"unread")
        os.write(2, b"y" * 3_000_000)
    """
    monkeypatch.setattr(module, "LOOK", 0.02)
    with child(code) as process, trio.fail_after(LIMIT):
        link = ProcessLink(process)
        assert isinstance(link.slot0, trio.SocketStream)
        while module._waiting(process.captures[1]) < 2**16 or not module._waiting(link.slot0.socket.fileno()):  # noqa: ASYNC110
            await trio.sleep(0.01)
        with trio.move_on_after(0.5):
            await link.relieve(lambda source, text: pytest.fail("it was read"))
        assert await link.slot0.receive_some() == b"unread"
        with trio.CancelScope() as scope:
            await link.relieve(lambda source, text: scope.cancel())
        await bury(link)


@pytest.mark.covers("worker:W2")
@pytest.mark.parametrize("pidfd", [True, False])
async def test_W2_the_exit_is_seen_whatever_its_children_hold(pidfd: bool) -> None:
    code = """
        import os, sys, time
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)  # with all descriptors, in the same group
        os.write(1, b"%d\\n" % pid)
        os.write(int(sys.argv[3]), b"out")
        os.write(2, b"err\\xff")
        os.write(1, b"half a line")
        os._exit(3)
    """
    with child(code) as process, trio.fail_after(LIMIT):
        link = ProcessLink(process, pidfd=pidfd)
        await link.wait_exit()
        await link.wait_exit()
        link.kill()
        number, _, rest = (await link.leftover(link.control)).partition(b"\n")
        child_of_its = int(number)
        assert rest == b"half a line"
        assert await link.leftover(link.slot0) == b""
        assert link.captured() == [(LogSource.STDOUT, "out"), (LogSource.STDERR, "err\ufffd")]
        assert link.reap() == "exit code 3"
        assert not exists(process.pid), "reaped"
        await gone(child_of_its)


@pytest.mark.parametrize("pidfd", [True, False])
async def test_waiting_for_the_exit_can_be_given_up(pidfd: bool) -> None:
    with child("import time; time.sleep(1000)") as process, trio.fail_after(LIMIT):
        link = ProcessLink(process, pidfd=pidfd)
        with trio.move_on_after(0.05) as patience:
            await link.wait_exit()
        assert patience.cancelled_caught
        assert await bury(link) == "signal 9 (SIGKILL), possibly out of memory"


async def test_a_system_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    with child("raise SystemExit(4)") as process, trio.fail_after(LIMIT):
        link = ProcessLink(process)
        await link.wait_exit()
        link.kill()
        assert link.reap() == "exit code 4"


async def test_sockets_of_more_slots_cross_in_groups() -> None:
    """450 slots: three messages of one byte and at most 200 descriptors, each end joined to ours, in order."""
    code = """
        import array, socket, sys
        slot0 = socket.socket(fileno=int(sys.argv[1]))
        number = 0
        sys.stdin.readline()
        while number < 450:
            data, rights, flags, address = slot0.recvmsg(1, socket.CMSG_SPACE(200 * 4))
            descriptors = array.array("i")
            descriptors.frombytes(rights[0][2])
            assert data == b"\\0" and len(descriptors) <= 200 and not flags
            for descriptor in descriptors:
                number += 1
                sock = socket.socket(fileno=descriptor)
                sock.sendall(b"%d" % number)
                sock.detach()
        sys.stdin.readline()
    """
    with child(code) as process, trio.fail_after(LIMIT):
        link = ProcessLink(process)
        await link.control.send_all(b"\n")
        streams = await link.more_slots(450)
        assert [await stream.receive_some(16) for stream in streams] == [b"%d" % number for number in range(1, 451)]
        await bury(link)


async def test_descriptors_that_run_out() -> None:
    with child("import time; time.sleep(1000)") as process, trio.fail_after(LIMIT):
        link = ProcessLink(process)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.MonkeyPatch.context() as patch:

            def refuse() -> None:
                raise OSError(errno.EMFILE, "Too many open files")

            patch.setattr(socket, "socketpair", refuse)
            with pytest.raises(OSError, match="Too many open files"):
                await link.more_slots(3)
        assert len(os.listdir("/proc/self/fd")) == before
        await bury(link)


def test_what_is_read_at_the_end_is_bounded_by_what_stands_there() -> None:
    """A child that the worker has left behind writes on and on."""
    read, write = os.pipe()
    try:
        with subprocess.Popen(["yes"], stdout=write) as writer:
            try:
                os.set_blocking(read, False)
                while not (data := module._read_now(read)):
                    time.sleep(0.001)
                for _ in range(20):
                    assert len(data) <= CAPACITY
                    data = module._read_now(read)
            finally:
                writer.kill()
    finally:
        os.close(read)
        os.close(write)


async def test_a_killed_worker_that_does_not_go_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its control channel closes, and the kill does nothing: the loop goes on while it is waited for, and after it."""
    before = len(os.listdir("/proc/self/fd"))
    gaps = [0.0]

    async def tick() -> None:
        while True:
            start = trio.current_time()
            await trio.sleep(0.01)
            gaps.append(trio.current_time() - start)

    code = "import os, signal, time; os.close(0); os.close(1); time.sleep(1000)"
    with monkeypatch.context() as patch, trio.fail_after(LIMIT):
        patch.setattr(os, "killpg", lambda group, number: None)
        process = child(code)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            with pytest.raises(NeverReady, match="closed its control channel"):
                async with open_orchestrator(process, Init("m.py:R"), Settings(), on_event=lambda event: None):
                    pytest.fail("it is not ready")
            nursery.cancel_scope.cancel()
    assert max(gaps) < 2.0, "the wait for its end was not the loop's"
    assert process.popen.returncode is None
    os.kill(process.pid, signal.SIGKILL)
    process.popen.wait(LIMIT)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_nothing_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with child("import time; time.sleep(1000)") as process, trio.fail_after(LIMIT):
        link = ProcessLink(process)
        await bury(link)
        assert set(os.listdir("/proc/self/fd")) == before
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_fake_is_a_link_already() -> None:
    worker = FakeWorker()
    assert adopt(worker) is worker


@pytest.mark.covers("worker:W3")
@pytest.mark.parametrize(
    ("status", "oom", "text"),
    [
        (0, False, "exit code 0"),
        (255, True, "exit code 255"),
        (-6, True, "signal 6 (SIGABRT)"),
        (-9, False, "signal 9 (SIGKILL), possibly out of memory"),
        (-9, True, "signal 9 (SIGKILL), out of memory"),
        (-37, False, "signal 37 (SIGRTMIN+3)"),
    ],
)
def test_W3_how_it_ended(status: int, oom: bool, text: str) -> None:
    assert describe_exit(status, oom) == text


@pytest.mark.covers("worker:W3")
def test_W3_the_cgroup_confirms_an_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([2, 3, 3])
    monkeypatch.setattr(module, "_oom_kills", lambda: next(counts))
    assert module._was_oom(2) is False
    assert module._was_oom(2) is True
    assert module._was_oom(None) is False


def test_the_count_is_read_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CGROUP", tmp_path / "cgroup")
    assert module._oom_kills() is None
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n")
    assert module._oom_kills() is None
    monkeypatch.setattr(module, "_CGROUPS", tmp_path)
    (tmp_path / "cgroup").write_text("12:pids:/x\n0::/mine\n")
    assert module._oom_kills() is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert module._oom_kills() == 1


# Adopted by an orchestrator.


@pytest.mark.covers("worker:W4")
async def test_W4_a_worker_that_can_not_start_is_reaped_and_heard() -> None:
    events: list[object] = []
    with trio.fail_after(LIMIT):
        process = child("import sys; sys.stderr.write('no such model\\n'); sys.exit(5)")
        with pytest.raises(NeverReady, match=r"^Worker died: exit code 5$"):
            await open_orchestrator(process, Init("x"), Settings(), on_event=events.append).__aenter__()
    assert [event.data for event in events] == ["no such model\n"]  # type: ignore[attr-defined]
    assert not exists(process.pid)


@pytest.mark.covers("D46")
async def test_D46_a_cancelled_setup_leaves_nothing_behind() -> None:
    before = set(os.listdir("/proc/self/fd"))
    process = child("import time; time.sleep(1000)")
    with trio.move_on_after(0.2) as limit:
        async with open_orchestrator(process, Init("x"), Settings(), on_event=lambda event: None):
            raise AssertionError("it became ready")
    assert limit.cancelled_caught
    assert not exists(process.pid)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.covers("worker:W9")
async def test_W9_a_setup_that_is_cut_takes_the_children_along() -> None:
    code = """
        import subprocess, sys, time
        child = subprocess.Popen(["sleep", "1000"])
        print(child.pid, flush=True)
        time.sleep(1000)
    """
    children: list[int] = []
    with trio.fail_after(LIMIT), trio.CancelScope() as scope:

        def note(event: object) -> None:
            children.append(int(event.data))  # type: ignore[attr-defined]
            scope.cancel()

        process = child(code)
        async with open_orchestrator(process, Init("x"), Settings(), on_event=note):
            raise AssertionError("it became ready")
    assert scope.cancelled_caught
    assert not exists(process.pid)
    with trio.fail_after(LIMIT):
        await gone(*children)
