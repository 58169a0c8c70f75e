"""Files that a run puts out: data URLs, spilled values, values with files inside."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import FileKind, FileOutput, FileOutputKind, OutputChunk
from cog_trio.files import output_files
from cog_trio.files import workspace as files
from cog_trio.files.mime import guess_mime
from cog_trio.files.output_files import OutputFiles, data_url
from cog_trio.files.upload import UploadTarget
from cog_trio.files.workspace import open_workspace
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Fact, Outcome


def file(path: Path | str, index: int = 0, mime_type: str | None = None) -> FileOutput:
    return FileOutput(str(path), FileKind(FileOutputKind.FILE), index, mime_type)


def oversized(path: Path | str) -> FileOutput:
    return FileOutput(str(path), FileKind(FileOutputKind.OVERSIZED), 0)


def inner(path: Path | str, place: int, index: int = 0) -> FileOutput:
    return FileOutput(str(path), FileKind(FileOutputKind.FILE), index, place=place)


class Server:
    """Takes uploads; the answer to a name waits for its gate, if it has one."""

    def __init__(self) -> None:
        self.gates: dict[str, trio.Event] = {}
        self.status: dict[str, int] = {}
        self.requests: dict[str, httpx.Request] = {}
        self.open = 0
        self.most = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        self.requests[name] = request
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            if name in self.gates:
                await self.gates[name].wait()
            return httpx.Response(self.status.get(name, 200))
        finally:
            self.open -= 1


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
    "size", [0, 1, 2, 3, output_files.CHUNK - 1, output_files.CHUNK, output_files.CHUNK + 1, 3 * output_files.CHUNK + 2]
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
    """A prediction whose files are taken by tasks of the test's nursery."""

    def __init__(self, nursery: trio.Nursery, workspace: files.Workspace, server: Server | None = None) -> None:
        self.prediction = Prediction(
            "p é", NewPrediction(trace=((b"traceparent", b"00-a-b-01"),)), output_is_array=True
        )
        self.prediction.dispatched()
        self.folder = workspace.run_folder()
        os.mkdir(self.folder)
        self.files = OutputFiles(
            self.prediction,
            self.folder,
            workspace,
            nursery.start_soon,
            target=None if server is None else UploadTarget("http://h/up", 25.0),
            transport=None if server is None else httpx.MockTransport(server),
        )

    def output(self) -> Any:
        return json.loads(self.prediction.snapshot()).get("output")


@pytest.fixture
async def run(nursery: trio.Nursery, tmp_path: Path) -> Any:
    async with open_workspace(str(tmp_path)) as workspace:
        yield Run(nursery, workspace)


@pytest.mark.covers("worker:W50", "lesson:32")
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


@pytest.mark.covers("worker:W48")
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
    with trio.testing.assert_no_checkpoints():
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


# Values with files inside.


@pytest.mark.covers("worker:W51")
async def test_W51_files_inside_a_value_stand_at_their_places(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    run.files.announce(OutputChunk(msgspec.Raw(b'{"x":null,"y":[1.50,null,"null"]}'), 0, 2))
    run.files.announce(inner(tmp_path / "a.txt", 5))
    run.files.announce(inner(tmp_path / "b.txt", 20))
    run.prediction.add_output(msgspec.Raw(b"2"))
    await run.files.settled()
    assert run.files.error is None
    assert run.output() == [
        {"x": "data:text/plain;base64,YQ==", "y": [1.5, "data:text/plain;base64,Yg==", "null"]},
        2,
    ]
    assert b"1.50" in run.prediction.snapshot(), "what the model made is not rebuilt"


@pytest.mark.covers("worker:W51")
async def test_W51_files_inside_a_spilled_value(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    path = write(f"{run.folder}/spill.json", b'{"x":null}')
    run.files.announce(FileOutput(path, FileKind(FileOutputKind.OVERSIZED), 0, files=1))
    run.files.announce(inner(tmp_path / "a.txt", 5))
    await run.files.settled()
    assert run.output() == [{"x": "data:text/plain;base64,YQ=="}]


@pytest.mark.parametrize("place", [0, 1, 4, 6, 9, 500, -4])
async def test_a_place_that_is_none_fails_the_prediction(run: Run, tmp_path: Path, place: int) -> None:
    (tmp_path / "a.txt").write_text("a")
    run.files.announce(OutputChunk(msgspec.Raw(b'{"x":null}'), 0, 1))
    run.files.announce(inner(tmp_path / "a.txt", place))
    await run.files.settled()
    assert run.files.error is not None
    assert "where no place is" in run.files.error


async def test_places_out_of_order_fail_the_prediction(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    run.files.announce(OutputChunk(msgspec.Raw(b"[null,null]"), 0, 2))
    run.files.announce(inner(tmp_path / "a.txt", 6))
    run.files.announce(inner(tmp_path / "a.txt", 1))
    await run.files.settled()
    assert "where no place is" in (run.files.error or "")


@pytest.mark.covers("worker:W24")
async def test_a_large_value_is_put_together_in_a_thread(run: Run, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(output_files.JOINED_HERE))
    run.files.announce(OutputChunk(msgspec.Raw(b"[null]"), 0, 1))
    run.files.announce(inner(tmp_path / "big", 1))
    await run.files.settled()
    ((url,),) = run.output()
    assert base64.b64decode(url.partition(",")[2]) == bytes(output_files.JOINED_HERE)


async def test_what_was_made_for_us_is_deleted_once_it_was_taken(run: Run, tmp_path: Path) -> None:
    os.makedirs(f"{run.folder}/inputs/0")
    os.mkdir(f"{run.folder}/1")
    ours = [write(f"{run.folder}/0.bin", b"x"), write(f"{run.folder}/1/copy.txt", b"x")]
    theirs = [write(f"{run.folder}/inputs/0/in.txt", b"x"), write(tmp_path / "users.txt", b"x")]
    for index, path in enumerate([*ours, *theirs]):
        run.files.announce(file(path, index))
    await run.files.settled()
    assert run.files.error is None
    assert not any(map(exists, ours))
    assert all(map(exists, theirs))


# Uploads.


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def uploading(nursery: trio.Nursery, tmp_path: Path, server: Server) -> Any:
    async with open_workspace(str(tmp_path)) as workspace:
        yield Run(nursery, workspace, server)


@pytest.mark.covers("http:W34", "worker:W50")
async def test_W50_uploads_that_end_in_reverse_keep_their_order(uploading: Run, server: Server, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
        server.gates[name] = trio.Event()
    for index, name in enumerate("abc"):
        uploading.files.announce(file(tmp_path / name, index))
    with trio.fail_after(10):
        while server.open < 3:
            await trio.testing.wait_all_tasks_blocked(0.001)
        for name in "cba":
            assert uploading.output() is None
            server.gates[name].set()
            await trio.testing.wait_all_tasks_blocked()
        await uploading.files.settled()
    assert uploading.output() == ["http://h/up/a", "http://h/up/b", "http://h/up/c"]


@pytest.mark.covers("D9", "lesson:42")
async def test_headers_of_an_upload(uploading: Run, server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    uploading.files.announce(file(tmp_path / "a.png"))
    await uploading.files.settled()
    headers = server.requests["a.png"].headers
    assert headers["content-type"] == "image/png"
    assert headers["x-prediction-id"] == "p%20%C3%A9"
    assert headers["traceparent"] == "00-a-b-01"


@pytest.mark.covers("worker:W51", "lesson:32")
async def test_W51_files_inside_a_value_are_uploaded_too(uploading: Run, tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("a")
    uploading.files.announce(OutputChunk(msgspec.Raw(b'{"x":null}'), 0, 1))
    uploading.files.announce(inner(tmp_path / "a b.txt", 5))
    await uploading.files.settled()
    assert uploading.output() == [{"x": "http://h/up/a%20b.txt"}]


@pytest.mark.covers("http:W34", "lesson:33")
async def test_W34_equal_names_become_distinct(uploading: Run, server: Server, tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_text(folder)
    uploading.files.announce(file(tmp_path / "x" / "a.png", 0))
    uploading.files.announce(file(tmp_path / "y" / "a.png", 1))
    await uploading.files.settled()
    assert len(server.requests) == 2
    assert uploading.output()[0] == "http://h/up/a.png"
    assert uploading.output()[1] != "http://h/up/a.png"


async def test_so_many_at_once_and_no_more(uploading: Run, server: Server, tmp_path: Path) -> None:
    count = 3 * output_files.UPLOADS
    for index in range(count):
        (tmp_path / f"{index}").write_text("x")
        uploading.files.announce(file(tmp_path / f"{index}", index))
    await uploading.files.settled()
    assert server.most <= output_files.UPLOADS
    assert uploading.output() == [f"http://h/up/{index}" for index in range(count)]


async def test_a_failed_upload_cuts_the_others(uploading: Run, server: Server, tmp_path: Path) -> None:
    server.gates["slow"] = trio.Event()
    server.status["bad"] = 403
    for index, name in enumerate(("slow", "bad", "late")):
        (tmp_path / name).write_text("x")
        uploading.files.announce(file(tmp_path / name, index))
    with trio.fail_after(10):
        await uploading.files.settled()
    assert uploading.files.error == "Failed to upload output: bad: the server answered 403 Forbidden (http://h/up/bad)"
    uploading.files.announce(file(tmp_path / "late", 3))
    with trio.fail_after(10):
        await uploading.files.settled()
    assert server.open == 0


@pytest.mark.covers("worker:W48")
async def test_W48_a_missing_file_fails_and_the_others_are_uploaded(uploading: Run, tmp_path: Path) -> None:
    (tmp_path / "good").write_text("x")
    uploading.files.announce(file(tmp_path / "gone"))
    uploading.files.announce(file(tmp_path / "good", 1))
    await uploading.files.settled()
    assert "FileNotFoundError" in (uploading.files.error or "")
    assert str(tmp_path / "gone") in (uploading.files.error or "")
    uploading.prediction.finish(Outcome(Fact.RAISED, uploading.files.error))
    assert uploading.output() == ["http://h/up/good"]


async def test_a_cancel_cuts_uploads(uploading: Run, server: Server, tmp_path: Path) -> None:
    server.gates["slow"] = trio.Event()
    (tmp_path / "slow").write_text("x")
    uploading.files.announce(file(tmp_path / "slow"))
    with trio.fail_after(10):
        while not server.open:
            await trio.testing.wait_all_tasks_blocked(0.001)
        with trio.CancelScope() as scope:
            scope.cancel()
            await uploading.files.settled()
        await uploading.files.settled()
    assert server.open == 0


async def test_a_file_that_comes_while_the_others_end_is_not_forgotten(
    uploading: Run, server: Server, tmp_path: Path
) -> None:
    for index in range(50):
        (tmp_path / f"{index}").write_text("x")
        uploading.files.announce(file(tmp_path / f"{index}", index))
        for _ in range(index % 7):
            await trio.lowlevel.checkpoint()
    with trio.fail_after(10):
        await uploading.files.settled()
    assert uploading.files.error is None
    assert len(uploading.output()) == 50


async def test_a_proxy_that_needs_a_missing_package_fails_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    async with open_workspace(str(tmp_path)) as workspace:
        prediction = Prediction("p")
        prediction.dispatched()
        target = UploadTarget("http://127.0.0.1:1/up/", 5.0)
        taken = OutputFiles(prediction, workspace.run_folder(), workspace, nursery.start_soon, target=target)
        taken.announce(file(write(tmp_path / "a.txt", b"a")))
        await taken.settled()
        assert taken.error is not None
        assert taken.error.startswith("Failed to upload output: the HTTP client can't be set up: ")
        assert "socksio" in taken.error
