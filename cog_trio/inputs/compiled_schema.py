"""One document's schemas of inputs: what is checked, compiled, and what a refusal says.

The verdict on a value is fastjsonschema's, one compiled function a property; the words for a refusal are ours,
found by a slower walk over the same schema, so that no library text and no secret ever reaches a client. Where
JSON Schema and Cog part, the schema is rewritten before it is compiled: ``$ref`` inlined, ``nullable`` understood,
``$`` in a pattern is the very end only, formats and defaults removed. The texts are those of Cog,
since clients match them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import fastjsonschema
import msgspec

from cog_trio.bridge.protocol import Json

Loc: TypeAlias = "tuple[str | int, ...]"

MASK: Final = "**********"
MAX_SHOWN: Final = 100  # characters of a refused value in a text
MAX_LISTED: Final = 1000  # characters of the choices in a text: a request can have a thousand faults
MAX_WALKED: Final = 100_000  # values that are looked at to explain the refusal of one; about 0.1 s

_KEPT: Final[tuple[str, ...]] = (  # keywords that reach the compiler as they are
    *("type", "enum", "required", "multipleOf", "uniqueItems", "minLength", "maxLength", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minProperties", "maxProperties"),
)
REFUSALS: Final = (fastjsonschema.JsonSchemaException, ArithmeticError, TypeError, ValueError, RecursionError)


class UnusableSchema(Exception):
    """The document's schema of the inputs can't be compiled; the text names the input and the cause."""


class Schemas:
    """Rewrites the properties of one document, compiles them, and says in words what a value breaks."""

    def __init__(self, components: Mapping[str, Json]) -> None:
        self._components = components
        self._patterns: dict[str, tuple[re.Pattern[str], str]] = {}  # by the format that stands for each

    def compile(self, name: str, schema: Json) -> Callable[[Json], object] | None:
        if not schema:
            return None
        formats: dict[str, Callable[[Any], Any]] = {key: pat.search for key, (pat, _) in self._patterns.items()}
        try:
            check: Callable[[Json], object] = fastjsonschema.compile(schema, formats=formats, use_default=False)
        except (*REFUSALS, AttributeError, LookupError, SyntaxError) as error:
            raise UnusableSchema(f"input {name!r}: {error}") from error
        return check

    def rewrite(
        self, name: str, fragment: Json, *, nullable: bool = True, within: frozenset[str] = frozenset()
    ) -> Json:
        """The schema with the keywords that count, in plain JSON Schema; {} accepts all.

        A component is looked into once on each path: inside itself it accepts all.
        """
        if not isinstance(fragment, Mapping):
            return {"not": {}} if fragment is False else {}

        def inner(part: Json) -> Json:
            return self.rewrite(name, part, within=within)

        reference = fragment.get("$ref")
        if isinstance(reference, str):
            target = reference.rpartition("#/components/schemas/")[2]
            if target not in self._components:
                raise UnusableSchema(f"input {name!r}: {reference!r} leads nowhere")
            if target in within:
                return {}
            return self.rewrite(name, self._components[target], within=within | {target})
        schema = {key: fragment[key] for key in _KEPT if key in fragment}
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
                schema[exclusive] = schema.pop(bound)  # OpenAPI 3.0 has a flag where JSON Schema has the bound
        if "pattern" in fragment:
            schema["format"] = self._pattern(name, fragment["pattern"])
        for key in ("allOf", "anyOf", "oneOf"):
            if isinstance(fragment.get(key), list):
                schema[key] = [inner(part) for part in fragment[key]]
        for key in ("items", "not", "additionalProperties"):
            if isinstance(fragment.get(key), Mapping) or fragment.get(key) is False:
                schema[key] = inner(fragment[key])
        if "properties" in fragment:
            schema["properties"] = {key: inner(part) for key, part in mapping(fragment["properties"]).items()}
        if nullable and fragment.get("nullable") and schema:
            return {"anyOf": [schema, {"type": "null"}]} if set(schema) != {"type"} else _or_null(schema)
        return schema

    def _pattern(self, name: str, pattern: Json) -> str:
        for key, (_, known) in self._patterns.items():
            if known == pattern:
                return key
        key = f"pattern_{len(self._patterns)}"
        try:
            self._patterns[key] = (re.compile(_only_at_the_end(pattern)), pattern)
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise UnusableSchema(f"input {name!r}: bad pattern {pattern!r}: {error}") from error
        return key

    def explain(self, schema: Json, value: Json, loc: Loc, secret: bool) -> Iterator[tuple[Loc, str]]:
        """Each fault of a value that was refused, with its place; at least one.

        The walk knows the keywords that Cog's documents use, and ends after ``MAX_WALKED`` values. Whatever it does not
        find was found by the compiled check, and one plain sentence says so.
        """
        faults = self._faults(schema, value, loc, secret, iter(range(MAX_WALKED)))
        first = next(faults, None)
        if first is not None:
            yield first
            yield from faults
        else:
            yield loc, f"{show_value(value, secret)} is not valid"

    def _faults(
        self, schema: Json, value: Json, loc: Loc, secret: bool, steps: Iterator[int]
    ) -> Iterator[tuple[Loc, str]]:
        """The faults of a value and of the values in it. ``steps`` are used up by values; without any left it ends."""
        if next(steps, None) is None:
            return
        for text in self._own_faults(schema, value, steps):
            yield loc, f"{show_value(value, secret)} {text}"
        for part in schema.get("allOf", ()):
            yield from self._faults(part, value, loc, secret, steps)
        if isinstance(value, list) and "items" in schema:
            for index, item in enumerate(value):
                if next(steps, None) is None:
                    return
                yield from self._faults(schema["items"], item, (*loc, index), secret, steps)
        if isinstance(value, dict):
            for key in schema.get("required", ()):
                if key not in value:
                    yield (*loc, key), "Field required"
            for key, part in schema.get("properties", {}).items():
                if key in value:
                    yield from self._faults(part, value[key], (*loc, key), secret, steps)

    def _own_faults(self, schema: Json, value: Json, steps: Iterator[int]) -> Iterator[str]:
        """What the value itself breaks, told by the words that follow the value."""
        types = schema.get("type")
        if types is not None:
            types = [types] if isinstance(types, str) else types
            if not any(name in _IS and _IS[name](value) for name in types):
                yield "is not of type " + ", ".join(f'"{name}"' for name in types if name != "null" or len(types) == 1)
        if "enum" in schema and value not in schema["enum"]:
            yield f"is not one of {_cut(_json(schema['enum']), MAX_LISTED)}"
        if _is_number(value):
            for key, breaks, text in _BOUNDS:
                if key in schema and breaks(value, schema[key]):
                    yield f"{text} of {_json(schema[key])}"
        elif isinstance(value, str):
            yield from _size_faults(schema, len(value), "Length", ("is shorter", "is longer", "character"))
            if "format" in schema:
                regex, pattern = self._patterns[schema["format"]]
                if not regex.search(value):
                    yield f'does not match "{pattern}"'
        elif isinstance(value, list):
            yield from _size_faults(schema, len(value), "Items", ("has less", "has more", "item"))
        if "anyOf" in schema and all(any(self._faults(part, value, (), True, steps)) for part in schema["anyOf"]):
            yield "is not valid under any of the schemas listed in the 'anyOf' keyword"


def _size_faults(schema: Json, size: int, key: str, words: tuple[str, str, str]) -> Iterator[str]:
    least, most = schema.get("min" + key), schema.get("max" + key)
    under, over, noun = words
    if least is not None and size < least:
        yield f"{under} than {least} {noun if least == 1 else noun + 's'}"
    if most is not None and size > most:
        yield f"{over} than {most} {noun if most == 1 else noun + 's'}"


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_IS: Final[dict[str, Callable[[Json], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_BOUNDS: Final[tuple[tuple[str, Callable[[Any, Any], bool], str], ...]] = (
    ("minimum", operator.lt, "is less than the minimum"),
    ("exclusiveMinimum", operator.le, "is less than or equal to the minimum"),
    ("maximum", operator.gt, "is greater than the maximum"),
    ("exclusiveMaximum", operator.ge, "is greater than or equal to the maximum"),
)


def _or_null(schema: Json) -> Json:
    types = schema["type"]
    return {"type": [*([types] if isinstance(types, str) else types), "null"]}


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def show_value(value: Json, secret: bool = False) -> str:
    """A value as compact JSON, cut; a secret's is never shown."""
    if secret:
        return f'"{MASK}"' if isinstance(value, str) else MASK
    try:
        text = _json(_beginning(value, iter(range(MAX_SHOWN))))
    except RecursionError:  # it was decoded with a little more stack than there is left here
        return "a value nested this deep"
    return _cut(text, MAX_SHOWN)


def _beginning(value: Json, values: Iterator[int]) -> Json:
    """A value without what its text would be cut off anyway: long texts are cut, and only the first values kept."""
    if isinstance(value, str):
        return value[: MAX_SHOWN + 1]
    if isinstance(value, list):
        return [_beginning(item, values) for item, _ in zip(value, values, strict=False)]
    if isinstance(value, dict):
        return {
            key[: MAX_SHOWN + 1]: _beginning(item, values)
            for (key, item), _ in zip(value.items(), values, strict=False)
        }
    return value


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _only_at_the_end(pattern: str) -> str:
    r"""The pattern with each ``$`` that is an anchor as ``\Z``: Python's ``$`` also matches before a last newline."""
    out: list[str] = []
    in_set, at, end = False, 0, len(pattern)
    while at < end:
        char = pattern[at]
        if char == "\\":
            out.append(pattern[at : at + 2])
            at += 2
            continue
        if in_set:
            in_set = char != "]"
        elif char == "[":
            in_set = True
            head = pattern[at + 1 : at + 2] == "^"
            literal = at + 1 + head
            if pattern[literal : literal + 1] == "]":  # a bracket that stands first is a member
                out.append(pattern[at : literal + 1])
                at = literal + 1
                continue
        out.append(r"\Z" if char == "$" and not in_set else char)
        at += 1
    return "".join(out)
