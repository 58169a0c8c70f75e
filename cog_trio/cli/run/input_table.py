"""The inputs of a model as people read them, one row each, out of the model's OpenAPI document.

Three commands show them: ``serve`` on its first screen, ``schema --inputs``, and ``run`` when no input was given.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from cog_trio.cli.run.input_parser import COMPONENTS, resolved, takes_file

MAX_WORDS: Final = 70  # characters of a description


class InputRow(NamedTuple):
    """One input."""

    name: str
    kind: str  # its type, with its range or choices
    presence: str  # required, optional, or its default
    words: str  # its description, cut


def input_rows(document: Mapping[str, Any], mode: str, needed: Collection[str] | None = None) -> list[InputRow]:
    """The inputs of the predict or train callable, in the order of the signature.

    Args:
      needed: the inputs that can't be left out, where more is known than the document says.
    """
    schemas = document.get("components", {}).get("schemas", {})
    component = schemas.get(COMPONENTS[mode], {})
    properties: dict[str, Any] = component.get("properties", {})
    required = component.get("required", []) if needed is None else needed
    ordered = sorted(properties, key=lambda name: properties[name].get("x-order", 0))
    return [_row(name, properties[name], name in required, schemas) for name in ordered]


def input_lines(rows: Collection[InputRow]) -> list[str]:
    """A table of the rows, its columns aligned; one line that says so if there are none."""
    if not rows:
        return ["The model takes no inputs."]
    table = [("INPUT", "TYPE", "DEFAULT", "DESCRIPTION"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    return ["  ".join((*map(str.ljust, row[:3], widths), row[3])).rstrip() for row in table]


def _row(name: str, field: Mapping[str, Any], required: bool, schemas: Mapping[str, Any]) -> InputRow:
    whole = resolved(field, schemas)
    kind = _kind(whole)
    if "enum" in whole:
        kind = " | ".join(map(_json, whole["enum"]))
    least, most = whole.get("minimum"), whole.get("maximum")
    if least is not None and most is not None:
        kind += f" from {least} to {most}"
    elif least is not None or most is not None:
        kind += f", {least} or more" if most is None else f", {most} or less"
    default = field.get("default")
    presence = "required" if required else "optional" if default is None else _json(default)
    words = " ".join(str(field.get("description", "")).split())[:MAX_WORDS]
    return InputRow(name, kind, presence, words)


def _kind(field: Mapping[str, Any]) -> str:
    if "items" in field:
        return f"array of {_kind(field['items'])}"
    return "file" if takes_file(field) else str(field.get("type", "any"))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
