"""A body with files has the size that it says, and is the JSON that it stands for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cog_trio.client.json_body import PIECE, JsonBody


@pytest.mark.parametrize("size", [0, 1, 2, 3, PIECE - 1, PIECE, PIECE + 1])
def test_files_stand_where_they_were_given(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"x" * size)
    body = JsonBody({"input": {"one": path, "more": [path, "text"], "n": 1.5}})
    for _ in range(2):  # it may be sent again
        sent = b"".join(body.pieces())
        assert len(sent) == body.size
        input = json.loads(sent)["input"]
        assert input["one"] == input["more"][0]
        assert input["one"].startswith("data:image/png;base64,")
        assert input["more"][1] == "text"
    assert body.whole is None


def test_bytes_and_open_files_are_data_urls() -> None:
    body = JsonBody({"a": b"hi", "b": io.BytesIO(b"hi")})
    assert body.whole is not None
    assert json.loads(body.whole) == dict.fromkeys("ab", "data:application/octet-stream;base64,aGk=")


@pytest.mark.parametrize(
    ("value", "error"), [(io.StringIO("x"), TypeError), (object(), TypeError), (1e999, ValueError)]
)
def test_what_has_no_form_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        JsonBody({"x": value})
