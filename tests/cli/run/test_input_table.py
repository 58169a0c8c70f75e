"""The inputs of a model as rows, in the order of the signature."""

from __future__ import annotations

from typing import Any

from cog_trio.cli.run.input_table import MAX_WORDS, input_lines, input_rows


def _document(**properties: dict[str, Any]) -> dict[str, Any]:
    ordered = {name: {**field, "x-order": place} for place, (name, field) in enumerate(properties.items())}
    colour = {"type": "string", "enum": ["red", "green"]}
    component = {"type": "object", "properties": ordered, "required": ["image", "seed"]}
    return {"components": {"schemas": {"colour": colour, "Input": component}}}


DOCUMENT = _document(
    image={"type": "string", "format": "uri", "description": "A\nboat"},
    seed={"type": "integer", "minimum": 0, "maximum": 9},
    least={"type": "integer", "minimum": 3, "default": 4},
    colour={"allOf": [{"$ref": "#/components/schemas/colour"}], "default": "red"},
    many={"type": "array", "items": {"type": "string", "format": "uri"}},
    long={"type": "string", "description": "x" * 100},
)


def test_rows_have_type_range_choices_and_default() -> None:
    assert [tuple(row) for row in input_rows(DOCUMENT, "predict")] == [
        ("image", "file", "required", "A boat"),
        ("seed", "integer from 0 to 9", "required", ""),
        ("least", "integer, 3 or more", "4", ""),
        ("colour", '"red" | "green"', '"red"', ""),
        ("many", "array of file", "optional", ""),
        ("long", "string", "optional", "x" * MAX_WORDS),
    ]
    assert input_rows(DOCUMENT, "predict", frozenset({"image"}))[1].presence == "optional", "the worker knows more"


def test_lines_are_a_table_with_a_head() -> None:
    lines = input_lines(input_rows(DOCUMENT, "predict")[:2])
    assert lines == [
        "INPUT  TYPE                 DEFAULT   DESCRIPTION",
        "image  file                 required  A boat",
        "seed   integer from 0 to 9  required",
    ]
    assert input_lines([]) == ["The model takes no inputs."]
