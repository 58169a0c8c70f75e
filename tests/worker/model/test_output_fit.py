"""A plain value that the annotation does not say is told; everything else is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from cog_trio.worker.model.output_fit import misfits


@pytest.mark.parametrize(
    ("output", "fitting"),
    [
        ({"type": "string"}, {str}),
        ({"type": "integer"}, {int}),
        ({"type": "number"}, {int, float}),
        ({"type": "boolean"}, {bool}),
        ({"type": "object", "properties": {}}, {dict}),
        ({"type": "array", "items": {}}, {list}),
        ({"type": "string", "format": "uri"}, set()),
        ({}, {str, int, float, bool, list, dict}),
        ({"anyOf": [{"type": "string"}]}, {str, int, float, bool, list, dict}),
    ],
)
def test_what_no_warning_is_for(output: dict[str, Any], fitting: set[type]) -> None:
    assert {str, int, float, bool, list, dict} - misfits(output).keys() == fitting


def test_the_warning_says_what_to_return() -> None:
    assert misfits({"type": "string", "format": "uri"})[str] == (
        "Warning: the output is of type str, but the annotation says a file: return Path(...)\n"
    )
