"""What `Input(...)` adds to the form of an input: bounds, lengths, pattern, choices, texts, and the default.

On a list, constraints go to its elements. A constraint on a type that it can't act on is told and kept, since
Cog's documents have it; one that can never be met, or that the default breaks, is an error.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ._input_types import InputType
from ._notice import notice
from .input import FieldInfo
from .types import Secret

if TYPE_CHECKING:
    from ._parameters import Parameter

KEYWORDS: Final = {
    "ge": ("minimum", ("int", "float")),
    "le": ("maximum", ("int", "float")),
    "min_length": ("minLength", ("str",)),
    "max_length": ("maxLength", ("str",)),
    "regex": ("pattern", ("str",)),
}


class NoJson(Exception):
    """A default that JSON can't express."""


def apply(parameter: Parameter, shape: InputType, info: FieldInfo) -> Parameter:
    """The parameter with everything that `Input` says but the default.

    Raises:
      TypeError, ValueError: naming the parameter and the argument.
    """
    name = parameter.name
    fragment = dict(parameter.fragment)
    choices = _choices(name, shape, info)
    used = [key for key in KEYWORDS if getattr(info, key) is not None] + (["choices"] if choices else [])
    if shape.kind == "union" and used:
        raise TypeError(
            f"parameter {name!r}: constraints and choices do not go with unions; use one type or drop {', '.join(used)}"
        )
    target = dict(fragment["items"]) if shape.many else fragment
    for argument, (key, kinds) in KEYWORDS.items():
        value = getattr(info, argument)
        if value is not None:
            value = _READERS[argument](name, argument, value)
        if value is None:
            continue
        if shape.kind not in kinds:
            notice(f"parameter {name!r}: {argument} has no effect on this type, only on {' and '.join(kinds)}")
        target[key] = value
    choice_type = shape.json_type
    if choices is not None:
        for key in ("type", "format", "writeOnly", "x-cog-secret"):
            target.pop(key, None)
    if shape.many:
        fragment["items"] = target
    if info.description is not None:
        fragment["description"] = _text(name, "description", str(info.description))
    if info.deprecated:
        fragment["deprecated"] = True
    if info.accept is not None:
        if shape.kind not in ("path", "file"):
            raise ValueError(f"parameter {name!r}: accept is only valid on Path or File inputs")
        fragment["x-cog-accept"] = _text(name, "accept", info.accept)
    return replace(
        parameter,
        fragment=fragment,
        choices=None if choices is None else tuple(choices),
        choice_type=None if choices is None else choice_type,
    )


def _text(name: str, argument: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"parameter {name!r}: {argument} must be a text, got {type(value).__name__}")
    if not _is_unicode(value):
        raise ValueError(f"parameter {name!r}: {argument} holds a lone surrogate, which JSON cannot express")
    return value


def _pattern(name: str, argument: str, value: Any) -> str:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        flags = "".join(letter for letter, flag in _FLAGS.items() if value.flags & flag)
        value = f"(?{flags}){value.pattern}" if flags and not value.pattern.startswith("(?") else value.pattern
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise ValueError(f"parameter {name!r}: invalid regex {value!r}: {error}") from error
    return _text(name, argument, value)


_FLAGS: Final = {"a": re.ASCII, "i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


def _bound(name: str, argument: str, value: Any) -> int | float | None:
    """A bound as JSON; None if it is infinite and so none at all."""
    try:
        number: int | float = operator.index(value)
    except TypeError:
        try:
            number = float(value) if not isinstance(value, (str, bytes)) else math.nan
        except (TypeError, ValueError):
            number = math.nan
    if number == (-math.inf if argument == "ge" else math.inf):
        return None
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"parameter {name!r}: {argument} must be a finite number, got {value!r}")
    return number


def _length(name: str, argument: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"parameter {name!r}: {argument} must be a whole number, 0 or more, got {value!r}")
    return number


_READERS: Final[Mapping[str, Callable[[str, str, Any], Any]]] = {
    "ge": _bound,
    "le": _bound,
    "min_length": _length,
    "max_length": _length,
    "regex": _pattern,
}


def _choices(name: str, shape: InputType, info: FieldInfo) -> list[Any] | None:
    given: Iterable[Any] | None = info.choices
    if given is None:
        if shape.enum is not None:
            given = shape.enum
        elif shape.literal is not None:
            given = shape.literal
    try:
        values = [value.value if isinstance(value, Enum) else value for value in given or ()]
    except TypeError:
        raise TypeError(f"parameter {name!r}: choices must be a list of values, got {given!r}") from None
    if not values:
        return None
    for value in values:
        if not (value is None or isinstance(value, (str, int, float))):
            raise TypeError(f"parameter {name!r}: choices must be str or int values, got {type(value).__name__}")
    values = [value for value in values if not isinstance(value, float) or math.isfinite(value)]
    for value in values:
        if isinstance(value, str):
            _text(name, "a choice", value)
    kind = shape.json_type
    if kind is not None and shape.kind != "union":
        fits = [_is(kind, value) for value in values]
        if not any(fits):
            raise ValueError(f"parameter {name!r}: none of the choices {values!r} is a valid {shape.kind}")
        if not all(fits):
            odd = ", ".join(repr(value) for value, fit in zip(values, fits, strict=True) if not fit)
            notice(f"parameter {name!r}: these choices can never be chosen, they are no {shape.kind}: {odd}")
    return values


def add_default(parameter: Parameter, fragment: dict[str, Any], default: Any) -> None:
    """Put a default other than None into the fragment, if it has a JSON form and may be shown.

    Raises:
      ValueError: if it breaks the input's own rules.
    """
    name = parameter.name
    try:
        value = json_form(default)
    except NoJson as error:
        notice(f"parameter {name!r}: the default is not shown in the schema, it has no JSON form ({error})")
        return
    secret = parameter.kind == "secret"
    if fault := _fault(parameter, value):
        shown = "" if secret else f" {value!r}"
        raise ValueError(f"parameter {name!r}: invalid default{shown}: {fault}; change the default or the constraint")
    if not secret:
        fragment["default"] = value


def json_form(value: Any) -> Any:
    """A default as JSON.

    Raises:
      NoJson: if it has no such form.
    """
    if isinstance(value, Enum):
        return json_form(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not _is_unicode(value):
            raise NoJson("a lone surrogate")
        return str.__str__(value)
    if isinstance(value, numbers.Integral):  # numpy's too
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise NoJson(str(value))
        return float(value)
    if isinstance(value, Secret):
        return value.secret_value
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_form(item) for item in value]
    if isinstance(value, Mapping):
        return {_key(key): json_form(item) for key, item in value.items()}
    raise NoJson(type(value).__name__)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, (str, int, float)):
        return str(json_form(str(key)))
    raise NoJson(f"a key is {type(key).__name__}")


def _fault(parameter: Parameter, value: Any) -> str | None:
    """Why a default (as JSON) is none, by the rules that hold for a request's value."""
    fragment = parameter.fragment
    if "anyOf" in fragment:
        if any(_type_fault(member, value) is None for member in fragment["anyOf"]):
            return None
        return "it fits none of the types of the union"
    if not parameter.many:
        return _type_fault(fragment, value) or _value_fault(parameter, fragment, value)
    if not isinstance(value, list):
        return "it is not a list"
    items = fragment["items"]
    for index, item in enumerate(value):
        if fault := _type_fault(items, item) or _value_fault(parameter, items, item):
            return f"element {index}: {fault}"
    return None


def _type_fault(fragment: Mapping[str, Any], value: Any) -> str | None:
    kind = fragment.get("type")
    if kind is None:
        return None
    if not _is(kind, value):
        return f"it is not of type {kind!r}"
    if kind == "array" and any(_type_fault(fragment["items"], item) for item in value):
        return f"an element is not of type {fragment['items'].get('type')!r}"
    return None


def _value_fault(parameter: Parameter, fragment: Mapping[str, Any], value: Any) -> str | None:
    if parameter.choices is not None and not any(_same(value, choice) for choice in parameter.choices):
        return f"it is not one of the choices {list(parameter.choices)!r}"
    if parameter.kind in ("int", "float"):
        if (least := fragment.get("minimum")) is not None and value < least:
            return f"it is less than the minimum of {least}"
        if (most := fragment.get("maximum")) is not None and value > most:
            return f"it is greater than the maximum of {most}"
    if parameter.kind == "str":
        if (least := fragment.get("minLength")) is not None and len(value) < least:
            return f"it is shorter than the minLength of {least}"
        if (most := fragment.get("maxLength")) is not None and len(value) > most:
            return f"it is longer than the maxLength of {most}"
        if (pattern := fragment.get("pattern")) is not None and not _matches(pattern, value):
            return f"it does not match the pattern {pattern!r}"
    return None


def _matches(pattern: str, value: str) -> bool:
    """Search as JSON Schema means it: ``$`` is the very end, not the place before a last line break."""
    return re.search(re.sub(r"(?<!\\)((?:\\\\)*)\$$", r"\1\\Z", pattern), value) is not None


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _is(kind: str, value: Any) -> bool:
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return kind == "number" or isinstance(value, int) or value.is_integer()
    return isinstance(value, list if kind == "array" else dict)


__all__ = ["NoJson", "add_default", "apply", "json_form"]
