"""A request body with local files is the JSON that it would be without streaming, and is read while it is sent."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from cog_trio.cli.run.input_parser import BadInputs, InputParser
from cog_trio.cli.run.upload_body import UploadBody
from cog_trio.client.json_body import PIECE

FILE = {"type": "string", "format": "uri"}
PARSER = InputParser(
    {"first": FILE, "many": {"type": "array", "items": FILE}, "text": {"type": "string"}}, frozenset(), False
)


def _read(source: str) -> bytes:
    return b"from stdin" if source == "-" else Path(source).read_bytes()


async def test_files_are_where_they_belong_and_the_size_is_known(tmp_path: Path) -> None:
    contents = {"a.png": b"x" * (PIECE + 1), "b.bin": b"", "c.txt": b"text"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    body = UploadBody(_read)
    pairs = [("many", f"@{tmp_path}/{name}") for name in ("c.txt", "b.bin", "a.png")]
    values = PARSER.build(
        [*pairs, ("text", f"@{tmp_path}/c.txt"), ("many", "@-")], {"first": f"@{tmp_path}/a.png"}, body
    )
    body.set({"input": values})
    assert body.progress() == (0, body.size)
    pieces = [piece async for piece in body]
    assert max(map(len, pieces)) <= 4 * PIECE // 3
    data = b"".join(pieces)
    assert len(data) == body.size
    assert body.progress() is None, "all is sent"

    def url(name: str, kind: str) -> str:
        return f"data:{kind};base64,{base64.b64encode(contents[name]).decode()}"

    assert json.loads(data)["input"] == {
        "first": url("a.png", "image/png"),
        "many": [
            url("c.txt", "text/plain"),
            url("b.bin", "application/octet-stream"),
            url("a.png", "image/png"),
            "data:application/octet-stream;base64," + base64.b64encode(b"from stdin").decode(),
        ],
        "text": "text",
    }


async def test_without_files_it_is_plain_json_and_shows_no_progress() -> None:
    body = UploadBody(_read)
    body.set({"input": PARSER.build([("text", "a")], {}, body)})
    assert body.progress() is None
    assert b"".join([piece async for piece in body]) == b'{"input":{"text":"a"}}'


def test_a_file_that_is_not_there_is_a_fault_of_its_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputs, match=r"first: .*gone can't be read: No such file or directory"):
        PARSER.build([("first", f"@{tmp_path}/gone")], {}, UploadBody(_read))
