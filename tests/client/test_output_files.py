"""Files of an output are found where the document has them, and get names of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from cog_trio.client.output_files import decode_data_url, file_name, file_places, replace_files

URI: Final = {"type": "string", "format": "uri"}
ONE: Final = "data:image/png;base64,aGk="
TWO: Final = "https://store/a/b%20c.txt?sig=1"


@pytest.mark.parametrize(
    ("form", "output", "found"),
    [
        (URI, ONE, [ONE]),
        ({"type": "string"}, ONE, []),
        ({"type": "array", "items": URI}, [ONE, None, TWO], [ONE, TWO]),
        ({"type": "object", "properties": {"a": URI, "b": {"type": "string"}}}, {"a": TWO, "b": ONE}, [TWO]),
        ({"type": "object", "additionalProperties": URI}, {"any": TWO}, [TWO]),
        (URI, "plain text", []),
        (None, ONE, []),
    ],
)
def test_places(form: Any, output: Any, found: list[str]) -> None:
    assert list(file_places({"components": {"schemas": {"Output": form}}}, "Output", output)) == found
    assert list(file_places({}, "Output", output)) == []


@pytest.mark.parametrize(
    ("url", "number", "name"),
    [
        (ONE, 0, "output.png"),
        (ONE, 2, "output-2.png"),
        (TWO, 0, "b c.txt"),
        ("https://store/", 0, "output"),
        ("https://store/..%2f..%2fetc%2fpasswd", 1, "_.-1._etc_passwd"),
        ("https://store/..", 0, "output"),
    ],
)
def test_names_stay_in_their_folder(url: str, number: int, name: str) -> None:
    assert file_name(url, number) == name
    assert "/" not in name


def test_paths_take_the_places_of_urls() -> None:
    assert replace_files({"a": [ONE, "x"], "b": 1}, {ONE: Path("f")}) == {"a": [Path("f"), "x"], "b": 1}


def test_data_urls() -> None:
    assert decode_data_url(ONE) == b"hi"
    assert decode_data_url("data:,a%20b") == b"a b"
    with pytest.raises(ValueError, match="comma"):
        decode_data_url("data:nothing")
