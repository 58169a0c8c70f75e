"""Temporary folders, spilled inputs, and outputs that come as files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import MAX_INLINE, Spilled
from cog_trio.files import workspace as files
from cog_trio.files.workspace import Readiness, keep_ready_file, needs_spill, open_workspace, spill, sweep


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
async def test_W21_the_name_of_a_runs_folder_is_random(tmp_path: Path) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        names = {workspace.run_folder() for _ in range(100)}
        assert len(names) == 100
        assert {os.path.dirname(name) for name in names} == {workspace.base}
        assert not any(workspace.used(name) for name in names), "a name is not a folder"


@pytest.mark.covers("worker:W22")
async def test_W22_a_runs_folder_is_removed_with_all_in_it(tmp_path: Path) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        folder = workspace.run_folder()
        os.makedirs(f"{folder}/deep/er")
        write(f"{folder}/deep/file", b"x")
        assert workspace.used(folder)
        await workspace.remove(folder)
        assert not workspace.used(folder)


async def test_removal_is_finished_under_cancellation(tmp_path: Path) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        folder = workspace.run_folder()
        os.mkdir(folder)
        with trio.CancelScope() as scope:
            scope.cancel()
            await workspace.remove(folder)
        assert not workspace.used(folder)


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
