"""Temporary folders, spilled inputs, and outputs that come as files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import MAX_INLINE, Spilled
from cog_trio.files import workspace as files
from cog_trio.files.workspace import Readiness, keep_ready_file, needs_spill, open_workspace, spill, sweep
from cog_trio.state.internal_errors import Where, counts


def entries(folder: Path | str) -> list[str]:
    return os.listdir(folder)


def write(path: Path | str, data: bytes) -> str:
    with open(path, "wb") as stream:
        stream.write(data)
    return str(path)


def read(path: Path | str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def exists(path: Path | str) -> bool:
    return os.path.lexists(path)


def mode(path: Path | str) -> int:
    return os.stat(path).st_mode & 0o777


async def eventually(condition: Callable[[], bool]) -> None:
    """Threads are at work: look until it is so, with a deadline."""
    with trio.fail_after(10):
        while True:
            if condition():
                return
            await trio.sleep(0.001)


# Folders.


async def test_the_base_is_private_and_goes_at_exit(tmp_path: Path) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        assert mode(workspace.base) == 0o700
        await spill(workspace.run_folder(), b"{}", {})
    assert entries(tmp_path) == []


@pytest.mark.covers("worker:W21")
async def test_W21_each_run_has_a_folder_of_its_own_below_the_base(tmp_path: Path) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        names = {workspace.run_folder() for _ in range(100)}
        assert len(names) == 100
        assert {os.path.dirname(name) for name in names} == {workspace.base}
        assert entries(workspace.base) == [], "a name is not a folder"


def make_folder(workspace: files.Workspace) -> str:
    folder = workspace.run_folder()
    os.makedirs(f"{folder}/deep/er")
    write(f"{folder}/deep/file", b"x")
    return folder


@pytest.mark.covers("worker:W22")
async def test_W22_a_runs_folder_is_removed_with_all_in_it(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        nursery.start_soon(workspace.remove_discarded)
        folders = [make_folder(workspace) for _ in range(10)]
        for folder in folders:
            workspace.discard(folder)
        workspace.discard(workspace.run_folder())  # a run that needed none
        await eventually(lambda: entries(workspace.base) == [])
        last = make_folder(workspace)
        workspace.discard(last)
        await eventually(lambda: not exists(last))


WRITER: Final = """
import os, sys, time
end = time.monotonic() + 1.0
print("go", flush=True)
while time.monotonic() < end:
    os.makedirs(sys.argv[1], exist_ok=True)
    for number in range(20):
        try:
            open(f"{sys.argv[1]}/{number}", "w").close()
        except FileNotFoundError:
            break
"""


@pytest.mark.process
async def test_a_folder_that_a_child_of_the_model_still_writes_to_goes_with_its_last_writer(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    def play(folder: str) -> None:
        with subprocess.Popen([sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            trio.from_thread.run_sync(workspace.discard, folder)

    async with open_workspace(str(tmp_path)) as workspace:
        nursery.start_soon(workspace.remove_discarded)
        folder = make_folder(workspace)
        await trio.to_thread.run_sync(play, folder)
        workspace.discard(folder)  # the writer may have made it again after it was gone
        await eventually(lambda: not exists(folder))


async def test_what_cant_be_removed_is_said_once_and_tried_again(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "RETRY", 0.01)
    tried: list[str] = []

    def refuse(folder: str, **_: object) -> None:
        tried.append(folder)

    async with open_workspace(str(tmp_path)) as workspace:
        nursery.start_soon(workspace.remove_discarded)
        with monkeypatch.context() as patched:
            patched.setattr("shutil.rmtree", refuse)
            stuck = make_folder(workspace)
            workspace.discard(stuck)
            await eventually(lambda: tried.count(stuck) >= 3)
        assert caplog.text.count("is tried again") == 1
        await eventually(lambda: not exists(stuck))


async def test_a_remover_that_gets_no_thread_tries_again(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RETRY", 0.01)
    before = counts[Where.FILES]

    async def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async with open_workspace(str(tmp_path)) as workspace:
        nursery.start_soon(workspace.remove_discarded)
        folder = make_folder(workspace)
        with monkeypatch.context() as patched:
            patched.setattr(trio.to_thread, "run_sync", no_thread)
            workspace.discard(folder)
            await eventually(lambda: counts[Where.FILES] > before)
        await eventually(lambda: not exists(folder))


UNLISTED: Final = """
import os, sys, trio
from cog_trio.files.workspace import open_workspace
os.chmod(sys.argv[1], 0o311)
if os.getuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
async def main():
    async with open_workspace(sys.argv[1]) as workspace:
        await workspace.sweep_predecessors()
        print(os.path.isdir(workspace.base))
try:
    os.listdir(sys.argv[1])
except PermissionError:
    trio.run(main)
"""


@pytest.mark.process
def test_a_temporary_folder_that_may_be_entered_but_not_listed_will_do(tmp_path: Path) -> None:
    inner = tmp_path / "tmp"
    inner.mkdir()
    for folder in tmp_path, *tmp_path.parents:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "-c", UNLISTED, str(inner)], capture_output=True, text=True, timeout=60, check=False
    )
    inner.chmod(0o700)
    assert done.stdout == "True\n", done.stderr
    assert "can't be looked for" in done.stderr
    assert entries(inner) == []


async def test_the_base_goes_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with open_workspace(str(tmp_path)):
            raise KeyError
    assert entries(tmp_path) == []


HOLDER = """
import sys, trio
from cog_trio.files.workspace import open_workspace
async def main():
    async with open_workspace(sys.argv[1]) as workspace:
        print(workspace.base, flush=True)
        sys.stdin.read()
trio.run(main)
"""


@pytest.mark.process
async def test_the_base_of_a_dead_service_is_swept_and_that_of_a_living_one_not(tmp_path: Path) -> None:
    def play() -> None:
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            try:
                assert holder.stdout is not None
                base = holder.stdout.readline().strip()
                assert sweep(str(tmp_path)) == [], "its service lives"
            finally:
                holder.kill()
        assert os.path.isdir(base), "SIGKILL leaves it behind"
        assert sweep(str(tmp_path)) == [base]
        assert entries(tmp_path) == []

    await trio.to_thread.run_sync(play)


def test_sweep_leaves_foreign_things(tmp_path: Path) -> None:
    """Links, files, and folders that only begin like ours, as a user's checkout may."""
    other, link = tmp_path / "cog-trio-checkout", tmp_path / f"cog-trio-{'a' * 16}"
    other.mkdir()
    link.symlink_to(other)
    (tmp_path / f"cog-trio-{'b' * 16}").write_text("x")
    assert sweep(str(tmp_path)) == []
    assert other.is_dir()


def test_a_base_is_never_there_without_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a base is being made, a sweep at any moment leaves it alone."""
    swept: list[str] = []

    def rename(source: str, target: str, really: Callable[[str, str], None] = os.rename) -> None:
        swept.extend(sweep(str(tmp_path)))
        really(source, target)
        swept.extend(sweep(str(tmp_path)))

    monkeypatch.setattr(os, "rename", rename)

    async def open_one() -> None:
        async with open_workspace(str(tmp_path)) as workspace:
            assert mode(workspace.base) == 0o700

    trio.run(open_one)
    assert swept == []
    assert entries(tmp_path) == []


# Inputs.


@pytest.mark.covers("D26")
@pytest.mark.parametrize(
    ("size", "context", "spilled"),
    [
        (10, {}, False),
        (MAX_INLINE - files.ENVELOPE, {}, False),
        (MAX_INLINE - files.ENVELOPE + 1, {}, True),
        (MAX_INLINE - files.ENVELOPE - 10, {"key": "value"}, True),
        (10, {"key": "x" * MAX_INLINE}, True),
        (10, {"key": '"' * (MAX_INLINE // 2)}, True),
    ],
)
def test_D26_input_and_context_spill_over_six_mib(size: int, context: dict[str, str], spilled: bool) -> None:
    assert needs_spill(b"x" * size, context) is spilled


async def test_a_spilled_input_is_private_and_whole(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    path = await spill(folder, b'{"a": 1.50}', {"k": "v"})
    assert os.path.dirname(path) == folder
    assert (mode(folder), mode(path)) == (0o700, 0o600)
    assert b'{"a": 1.50}' in read(path), "the bytes as they came"
    spilled = msgspec.json.decode(read(path), type=Spilled)
    assert (bytes(spilled.input), spilled.context) == (b'{"a": 1.50}', {"k": "v"})


# The readiness file.


async def appears(path: Path, there: bool) -> None:
    await eventually(lambda: exists(path) is there)


@pytest.mark.covers("http:W30")
async def test_W30_the_readiness_file_follows_ready(tmp_path: Path, nursery: trio.Nursery) -> None:
    path, readiness = tmp_path / "run" / "ready", Readiness()
    path.parent.mkdir()
    path.write_text("left by a service that was killed")
    nursery.start_soon(keep_ready_file, str(path), readiness)
    await appears(path, False)
    for _ in range(2):
        readiness.set(True)
        await appears(path, True)
        assert path.read_bytes() == b""
        readiness.set(False)
        await appears(path, False)


@pytest.mark.covers("http:W30")
async def test_W30_the_readiness_file_goes_at_exit(tmp_path: Path) -> None:
    path, readiness = tmp_path / "new" / "folder" / "ready", Readiness()
    readiness.set(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_ready_file, str(path), readiness)
        await appears(path, True)
        nursery.cancel_scope.cancel()
    assert not exists(path)


async def test_a_readiness_file_that_cant_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    readiness = Readiness()
    readiness.set(True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_ready_file, str(tmp_path / "file" / "ready"), readiness)
        await eventually(lambda: bool(caplog.records))
        nursery.cancel_scope.cancel()
    assert "readiness file" in caplog.text
