"""Where outputs go: which values are files, what they are called, what is left to be shown."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from cog_trio.cli.run.output_writer import BadOutput, OutputForm, OutputNames, check_destination, decode_data_url

URI = {"type": "string", "format": "uri"}
PNG = "data:image/png;base64," + base64.b64encode(b"pixels").decode()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("destination", "schema", "value", "names"),
    [
        (None, URI, PNG, ["output.png"]),
        ("cat.webp", URI, PNG, ["cat.webp"]),
        ("cat", URI, PNG, ["cat.png"]),
        ("new/", URI, PNG, ["new/output.png"]),
        (None, {"type": "array", "items": URI}, [PNG, PNG], ["output.0.png", "output.1.png"]),
        ("out.jpg", {"type": "array", "items": URI}, [PNG, PNG], ["out.0.jpg", "out.1.jpg"]),
        (None, {"type": "object", "properties": {"weights": URI}}, {"weights": PNG, "n": 1}, ["output.weights.png"]),
        (None, {}, {"a": [PNG]}, ["output.a.0.png"]),
        (None, {"type": "object", "additionalProperties": URI}, {"../x": PNG}, ["output.___x.png"]),
        (None, URI, "data:,plain%20text", ["output.txt"]),
        (None, URI, "data:application/octet-stream;base64,AAAA", ["output"]),
        (None, URI, "data:audio/wav;base64,AAAA", ["output.wav"]),
    ],
)
def test_files_are_written_with_the_right_suffix(
    destination: str | None, schema: dict[str, Any], value: Any, names: list[str], tmp_path: Path
) -> None:
    files = OutputNames(destination)
    assert files.concern(value)
    left = files.replace(value, schema)
    assert [str(path) for path in files.written] == names
    assert "data:" not in str(left)
    for name in names:
        assert (tmp_path / name).is_file()


def test_no_file_takes_the_place_of_another(tmp_path: Path) -> None:
    """Members whose names become the same one, and the JSON that ``-o`` names."""
    files = OutputNames(None)
    content = {"a.b": "data:,1", "a_b": "data:,2", "a/b": "data:,3"}
    left = files.replace(content, {})
    assert left == {"a.b": "output.a_b.txt", "a_b": "output.a_b.2.txt", "a/b": "output.a_b.3.txt"}
    assert [Path(name).read_text() for name in left.values()] == ["1", "2", "3"]
    beside = OutputNames("out.json", beside=True)
    assert beside.replace("data:application/json,{}", {}) == "out.2.json"


def test_a_link_a_device_and_a_folder_stay_what_they_are(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    (tmp_path / "link").symlink_to("target.bin")
    (tmp_path / "output.p_n_g").mkdir()
    for destination, name in (("link", "a"), ("/dev/null", "b.png"), (None, "c.p n\ng")):
        source = staging / name
        source.write_text("content")
        files = OutputNames(destination, staging.as_uri() + "/")
        if destination is None:
            with pytest.raises(BadOutput, match=r"output\.p_n_g can't be written: Is a directory"):
                files.replace(source.as_uri(), {})
        else:
            assert files.replace(source.as_uri(), {}) == destination
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target.bin").read_text() == "content"
    assert Path("/dev/null").is_char_device()
    assert list((tmp_path / "output.p_n_g").iterdir()) == []


def test_a_value_that_the_schema_calls_a_text_stays_one(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    assert OutputNames(None).replace({"text": PNG}, schema) == {"text": PNG}
    assert list(tmp_path.iterdir()) == []


def test_a_url_of_an_uploaded_file_stays_one() -> None:
    assert OutputNames(None).replace("https://host/a.png", URI) == "https://host/a.png"


def test_a_staged_file_is_moved_and_keeps_its_suffix(tmp_path: Path) -> None:
    staging = tmp_path / "staging dir"
    staging.mkdir()
    (staging / "w.safetensors").write_bytes(b"weights")
    prefix = staging.as_uri() + "/"
    files = OutputNames(None, prefix)
    assert files.replace({"w": prefix + "w.safetensors"}, {}) == {"w": "output.w.safetensors"}
    assert (tmp_path / "output.w.safetensors").read_bytes() == b"weights"
    assert list(staging.iterdir()) == []


def test_a_file_url_that_is_not_ours_is_a_text(tmp_path: Path) -> None:
    """A model, or a server, must not make us move files."""
    (tmp_path / "secret").write_text("s")
    url = (tmp_path / "secret").as_uri()
    assert OutputNames(None, (tmp_path / "staging").as_uri() + "/").replace(url, URI) == url
    assert (tmp_path / "secret").exists()


def test_json_has_its_files_beside_it(tmp_path: Path) -> None:
    files = OutputNames("result.json", beside=True)
    assert files.replace(PNG, URI) == "result.png"
    assert files.write(b"{}", ".json") == Path("result.json")


@pytest.mark.parametrize(
    ("destination", "name"), [("a.txt", "a.txt"), ("folder/", "folder/output.json"), ("plain", "plain")]
)
def test_what_is_no_file_is_written_where_it_was_asked_for(destination: str, name: str, tmp_path: Path) -> None:
    OutputNames(destination).write(b"[]", ".json")
    assert (tmp_path / name).read_bytes() == b"[]"


def test_broken_data_url_is_told() -> None:
    with pytest.raises(BadOutput, match="broken data URL"):
        decode_data_url("data:image/png;base64,!!!!")


def test_a_place_that_can_not_be_is_found_out_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check_destination("file/a.png") == "file is not a folder"
    (tmp_path / "output").mkdir()
    assert "is a folder" in (check_destination(None) or "")
    for good in ("a.png", "new/a.png", "new/", "-", "output/"):
        assert check_destination(good) is None


def test_shapes() -> None:
    def form(output: dict[str, Any]) -> OutputForm:
        return OutputForm({"components": {"schemas": {"Output": output}}}, "predict")

    glued = form(
        {
            "type": "array",
            "items": {"type": "string"},
            "x-cog-array-type": "iterator",
            "x-cog-array-display": "concatenate",
        }
    )
    assert (glued.streams, glued.glued, glued.files) == (True, True, False)
    assert form(URI).files
    assert form({"type": "array", "items": URI}).files
    assert not form({"type": "string"}).files
