"""Tells an author that what ``run`` returns is not what its annotation says: clients go by the schema.

Nothing is refused for it. Plain types of JSON are looked at alone, by one look into a table for each run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

JSON_TYPES: Final = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


def misfits(output: Mapping[str, Any]) -> dict[type, str]:
    """For each type of JSON that the form of an output excludes, the warning that a run gets which returns it."""
    kind = output.get("type")
    if kind not in JSON_TYPES:
        return {}
    is_file = output.get("format") == "uri"
    right = set() if is_file else {JSON_TYPES[kind]} | ({int} if kind == "number" else set())
    said = "a file: return Path(...)" if is_file else kind
    return {
        wrong: f"Warning: the output is of type {wrong.__name__}, but the annotation says {said}\n"
        for wrong in JSON_TYPES.values()
        if wrong not in right
    }
