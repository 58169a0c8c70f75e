"""The first screen: inputs in their order, and a curl line whose body the model accepts."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from cog_trio.cli.serve.welcome import render_failed, render_welcome

DOCUMENT: dict[str, Any] = {
    "components": {
        "schemas": {
            "colour": {"type": "string", "enum": ["red", "green"]},
            "Input": {
                "type": "object",
                "required": ["image", "count", "colour", "it's"],
                "properties": {
                    "radius": {"type": "number", "default": 4.0, "x-order": 1, "description": "How\nmuch"},
                    "image": {"type": "string", "format": "uri", "x-order": 0},
                    "count": {"type": "integer", "minimum": 3, "x-order": 2},
                    "colour": {"allOf": [{"$ref": "#/components/schemas/colour"}], "x-order": 3},
                    "it's": {"type": "string", "x-order": 4},
                },
            },
        }
    }
}


def test_inputs_stand_in_order_with_kind_and_default() -> None:
    lines = render_welcome("http://127.0.0.1:1", "m.py", DOCUMENT).splitlines()
    start = lines.index("  Inputs") + 2
    assert [" ".join(line.split()) for line in lines[start : start + 5]] == [
        "image file required",
        "radius number 4.0 How much",
        "count integer, 3 or more required",
        'colour "red" | "green" required',
        "it's string required",
    ]


@pytest.mark.covers("sdk:W11")
def test_W11_what_may_be_left_out_is_optional_and_ranges_are_shown() -> None:
    """An old model says ``seed: int = Input(default=None)``: the document lists it as required, which it is not."""
    seed = {"type": "integer", "minimum": 0, "maximum": 9, "x-order": 0}
    most = {"type": "integer", "maximum": 9, "default": 1, "x-order": 1}
    files = {"type": "array", "items": {"type": "string", "format": "uri"}, "x-order": 2}
    properties = {"seed": seed, "most": most, "files": files}
    component = {"type": "object", "required": ["seed"], "properties": properties}
    text = render_welcome("http://127.0.0.1:1", "m.py", {"components": {"schemas": {"Input": component}}}, frozenset())
    assert [" ".join(line.split()) for line in text.splitlines()[5:8]] == [
        "seed integer from 0 to 9 optional",
        "most integer, 9 or less 1",
        "files array of file optional",
    ]
    assert """-d '{"input": {"most": 1}}'""" in text, "how an input is written is shown, though none is required"


def test_curl_line_survives_the_shell_and_names_what_is_required() -> None:
    text = render_welcome("http://127.0.0.1:1", "m.py", DOCUMENT)
    words = shlex.split(next(line for line in text.splitlines() if "curl" in line))
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:1/predictions"]
    body = json.loads(words[-1])["input"]
    assert body["image"].startswith("data:image/png;base64,")
    assert body | {"image": ""} == {"image": "", "count": 3, "colour": "red", "it's": "hello"}


def test_model_without_inputs() -> None:
    text = render_welcome("http://127.0.0.1:1", "m.py", {})
    assert "Inputs" not in text
    assert """-d '{"input": {}}'""" in text


def test_trainings_alone_are_shown_at_their_own_address() -> None:
    fields = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "x-order": 0}}}
    text = render_welcome("http://127.0.0.1:1", "train.py", {"components": {"schemas": {"TrainingInput": fields}}})
    assert "text   string  required" in text
    assert "http://127.0.0.1:1/trainings -H" in text


def test_failed_setup_names_what_still_answers() -> None:
    assert "m.py can't be served; http://127.0.0.1:1/health-check" in render_failed("http://127.0.0.1:1", "m.py")


def test_curl_line_of_a_unix_socket_and_of_a_server_that_asks_for_a_token() -> None:
    line = next(line for line in render_welcome("unix:/tmp/a b", "m.py", {}, token=True).splitlines() if "curl" in line)
    assert shlex.split(line)[:6] == [
        "curl",
        "-s",
        "--unix-socket",
        "/tmp/a b",
        "http://localhost/predictions",
        "-H",
    ]
    assert '"Authorization: Bearer $COG_TRIO_AUTH_TOKEN"' in line, "the shell fills it in: it is not shown"
    assert "https://h:1/predictions" in render_welcome("https://h:1", "m.py", {})
