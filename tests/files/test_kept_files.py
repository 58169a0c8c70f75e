"""Output files that go into a folder of ours, as files: what the command line asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
import trio

from cog_trio.bridge.protocol import DOWNLOADS, FileKind, FileOutput, FileOutputKind, OutputChunk
from cog_trio.files.mime import guess_extension, guess_mime
from cog_trio.files.output_files import OutputFiles
from cog_trio.files.upload import UploadTarget
from cog_trio.files.workspace import open_workspace
from cog_trio.state.prediction import Prediction


def _file(path: str, place: int | None = None) -> FileOutput:
    return FileOutput(path, FileKind(FileOutputKind.FILE), 0, place=place)


async def test_files_are_moved_or_copied_and_named_by_their_urls(tmp_path: Path, nursery: trio.Nursery) -> None:
    """What the runtime made for us is moved; files of the model's own, and inputs put out again, are copied: they may
    be used on. Equal names are kept apart."""
    place = tmp_path / "the folder"
    place.mkdir()
    async with open_workspace(str(tmp_path)) as workspace:
        prediction = Prediction("p", output_is_array=True)
        prediction.dispatched()
        folder = workspace.run_folder()
        os.makedirs(f"{folder}/{DOWNLOADS}")
        target = UploadTarget(place.as_uri(), 25.0)
        files = OutputFiles(prediction, folder, workspace, nursery.start_soon, target=target)
        sources = [str(tmp_path / "a b.png"), f"{folder}/a b.png", f"{folder}/{DOWNLOADS}/in.txt"]
        for number, source in enumerate(sources):
            Path(source).write_bytes(b"%d" % number)  # noqa: ASYNC240 (a few bytes)
        files.announce(OutputChunk(msgspec.Raw(b"[null,null,null]"), 0, files=3))
        for number, source in enumerate(sources):
            files.announce(_file(source, 1 + 5 * number))
        with trio.fail_after(10):
            await files.settled()
        assert files.error is None
        ((first, second, third),) = json.loads(prediction.snapshot())["output"]
        assert first == f"{place.as_uri()}/a%20b.png"
        assert second.startswith(f"{place.as_uri()}/a%20b-")
        assert third == f"{place.as_uri()}/in.txt"
        left = [os.path.exists(source) for source in sources]  # noqa: ASYNC240
        assert left == [True, False, True]
        assert sorted(path.read_bytes() for path in place.iterdir()) == [b"0", b"1", b"2"]


async def test_a_file_that_cant_be_kept_fails_the_run_and_is_named(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with open_workspace(str(tmp_path)) as workspace:
        prediction = Prediction("p")
        prediction.dispatched()
        (tmp_path / "taken").write_text("a file, where a folder would be")
        target = UploadTarget((tmp_path / "taken").as_uri(), 25.0)
        files = OutputFiles(prediction, workspace.run_folder(), workspace, nursery.start_soon, target=target)
        (tmp_path / "a.png").write_bytes(b"x")
        files.announce(_file(str(tmp_path / "a.png")))
        with trio.fail_after(10):
            await files.settled()
        assert files.error is not None
        assert "Error: " in files.error
        assert str(tmp_path / "taken") in files.error


@pytest.mark.parametrize(
    ("mime", "extension"),
    [
        ("image/png", ".png"),
        ("image/JPEG", ".jpg"),
        ("image/webp", ".webp"),
        ("text/plain", ".txt"),
        ("application/json", ".json"),
        ("audio/wav", ".wav"),
        ("audio/x-wav", ".wav"),
        ("video/mp4", ".mp4"),
        ("application/zip", ".zip"),
        ("model/gltf-binary", ".glb"),
        ("application/octet-stream", ""),
        ("no/such-thing", ""),
    ],
)
def test_the_extension_follows_the_media_type(mime: str, extension: str) -> None:
    assert guess_extension(mime) == extension
    if extension:
        assert guess_extension(guess_mime(f"a{extension}")) == extension
