"""Files that a run puts out: data URLs, spilled values, values with files inside."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cog_trio import files, outputs
from cog_trio.bridge.protocol import FileKind, FileOutput, FileOutputKind
from cog_trio.files import open_workspace
from cog_trio.mime import guess_mime
from cog_trio.outputs import OutputFiles, data_url
from cog_trio.prediction import Fact, Outcome, Prediction


def file(path: Path | str, index: int = 0, mime_type: str | None = None) -> FileOutput:
    return FileOutput(str(path), FileKind(FileOutputKind.FILE), index, mime_type)


def oversized(path: Path | str) -> FileOutput:
    return FileOutput(str(path), FileKind(FileOutputKind.OVERSIZED), 0)


def decoded(raw: msgspec.Raw) -> tuple[str, bytes]:
    text: str = json.loads(bytes(raw))
    head, payload = text.split(",", 1)
    return head, base64.b64decode(payload)


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


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, outputs.CHUNK - 1, outputs.CHUNK, outputs.CHUNK + 1, 3 * outputs.CHUNK + 2]
)
def test_a_data_url_holds_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "out.PNG"
    path.write_bytes(data := os.urandom(size))
    assert decoded(data_url(str(path))) == ("data:image/png;base64", data)


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("a.png", "image/png"),
        ("a.JPG", "image/jpeg"),
        ("a.jpeg", "image/jpeg"),
        ("a.webp", "image/webp"),
        ("a.mp4", "video/mp4"),
        ("a.json", "application/json"),
        ("a.txt", "text/plain"),
        ("a.gz", "application/gzip"),
        ("a.tar.gz", "application/gzip"),
        ("a.unknown-thing", "application/octet-stream"),
        ("noextension", "application/octet-stream"),
        ("a b#c?.png", "image/png"),
        ("data:text,x.png", "image/png"),
    ],
)
def test_the_media_type_follows_the_name(name: str, mime: str) -> None:
    assert guess_mime(f"/tmp/{name}") == mime


def test_the_workers_media_type_wins_and_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    assert decoded(data_url(str(tmp_path / "a.png"), "text/csv")) == ("data:text/csv;base64", b"x")
    assert decoded(data_url(str(tmp_path / "a.png"), 'a"b\n')) == ('data:a"b\n;base64', b"x")


class Run:
    """A prediction whose files are read by tasks of the test's nursery."""

    def __init__(self, nursery: trio.Nursery, workspace: files.Workspace) -> None:
        self.prediction = Prediction("p", output_is_array=True)
        self.prediction.dispatched()
        self.folder = workspace.run_folder()
        os.mkdir(self.folder)
        self.files = OutputFiles(self.prediction, self.folder, workspace, nursery.start_soon)

    def output(self) -> Any:
        return json.loads(self.prediction.snapshot()).get("output")


@pytest.fixture
async def run(nursery: trio.Nursery, tmp_path: Path) -> Any:
    async with open_workspace(str(tmp_path)) as workspace:
        yield Run(nursery, workspace)


async def test_W50_files_stand_where_the_model_put_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(b"x" * 2**20)
    (tmp_path / "small.txt").write_bytes(b"y")
    run.prediction.add_output(msgspec.Raw(b'"first"'))
    run.files.announce(file(tmp_path / "big.bin", 1))
    run.prediction.add_output(msgspec.Raw(b'"third"'))
    run.files.announce(file(tmp_path / "small.txt", 3))
    assert run.output() == ["first"]
    await run.files.settled()
    output = run.output()
    assert [output[0], output[2]] == ["first", "third"]
    assert decoded(msgspec.Raw(json.dumps(output[1]).encode())) == (
        "data:application/octet-stream;base64",
        b"x" * 2**20,
    )
    assert output[3] == "data:text/plain;base64,eQ=="
    assert run.files.error is None


def unreadable(path: Path) -> None:
    path.mkdir()


def missing(path: Path) -> None:
    pass


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [missing, unreadable, pipe])
async def test_W48_a_file_that_cant_be_read_is_named(run: Run, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x.png")
    (tmp_path / "good.txt").write_text("y")
    run.files.announce(file(tmp_path / "x.png"))
    run.files.announce(file(tmp_path / "good.txt", 1))
    with trio.fail_after(5):
        await run.files.settled()
    assert run.files.error is not None
    assert str(tmp_path / "x.png") in run.files.error
    assert "Error: " in run.files.error
    run.prediction.finish(Outcome(Fact.RAISED, run.files.error))
    assert run.output() == ["data:text/plain;base64,eQ=="], "what could be read is kept"


async def test_settled_without_a_file_is_immediate(run: Run) -> None:
    await run.files.settled()


async def test_a_file_announced_after_a_quiet_time_is_read_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    for index in range(3):
        run.files.announce(file(tmp_path / "a.txt", index))
        await run.files.settled()
    assert run.output() == ["data:text/plain;base64,YQ=="] * 3


async def test_a_prediction_that_ended_meanwhile_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    run.files.announce(file(tmp_path / "a.txt"))
    run.prediction.finish(Outcome(Fact.CUT))
    await run.files.settled()
    assert run.output() is None


async def test_settled_comes_back_when_the_whole_service_is_cancelled(tmp_path: Path) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        async with trio.open_nursery() as nursery:
            run = Run(nursery, workspace)
            for index in range(3):
                run.files.announce(file(tmp_path / "missing", index))
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await run.files.settled()
        assert run.files.error is not None


async def test_an_oversized_value_is_taken_as_it_is_and_its_file_deleted(run: Run) -> None:
    path = write(f"{run.folder}/spill.json", b'{"n": 1.50}')
    run.files.announce(oversized(path))
    await run.files.settled()
    assert b'[{"n": 1.50}]' in run.prediction.snapshot()
    assert not exists(path)


@pytest.mark.parametrize("content", [b"", b"{", b"NaN", b'"\xff"', b"1 2"])
async def test_an_oversized_value_that_is_no_json_fails_and_is_deleted(run: Run, content: bytes) -> None:
    path = write(f"{run.folder}/spill.json", content)
    run.files.announce(oversized(path))
    await run.files.settled()
    assert run.files.error is not None
    assert run.files.error.startswith("ValueError: the worker spilled")
    assert not exists(path)


async def test_only_the_runs_own_spill_files_are_deleted(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "users.json", b"1")
    run.files.announce(oversized(path))
    await run.files.settled()
    assert exists(path)
