"""Which types an output can have, and the JSON form of each.

Structured types are inlined wherever they appear. What the document says is not enforced: a model may return anything
that can be turned into JSON.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import os
from enum import Enum
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from ._annotations import (
    Namespace,
    UnionMember,
    is_typed_dict,
    of_class,
    options,
    own_annotations,
    type_name,
    unresolved_names,
)
from ._input_types import OBJECT, SCALARS, SECRET, URI, Fragment
from .model import BaseModel, is_class_variable
from .types import AsyncConcatenateIterator, ConcatenateIterator, File, Secret

GENERATORS: Final = (collections.abc.Generator, collections.abc.AsyncGenerator)
ITERATORS: Final = (collections.abc.Iterator, collections.abc.AsyncIterator, *GENERATORS)
CONCATENATE: Final = (ConcatenateIterator, AsyncConcatenateIterator)
POSSIBLE: Final = (
    "str, int, float, bool, Path, File, Secret, Any, dict, list, a BaseModel, TypedDict or dataclass, Literal, Enum, "
    "lists and dicts of these, and at the top Iterator[T], AsyncIterator[T] or ConcatenateIterator[str]"
)


class UnsupportedOutputType(TypeError):
    """A type that no output can have."""

    def __init__(self, annotation: Any, why: str = "") -> None:
        super().__init__(f"unsupported output type {type_name(annotation)}{why}; supported: {POSSIBLE}")


def is_stream(annotation: Any, space: Namespace) -> bool:
    """Whether an output annotation is one of the iterator kinds."""
    members, nullable = options(annotation, space)
    if nullable or len(members) != 1:
        return False
    kind = get_origin(members[0].type) or members[0].type
    return kind in ITERATORS or kind in CONCATENATE


def read_output(annotation: Any, space: Namespace) -> Fragment:
    """The form of an output, without title.

    Raises:
      TypeError: if it has none, naming the part that is to blame.
    """
    annotation = space.evaluate(annotation)
    if missing := unresolved_names(annotation):
        names = ", ".join(sorted(set(missing)))
        raise TypeError(
            f"the return annotation {type_name(annotation)} names {names}, which is not defined when the model runs; "
            "import it outside of TYPE_CHECKING, or write Annotated[..., Opaque] for any JSON object"
        )
    members, nullable = options(annotation, space)
    if len(members) == 1 and not members[0].opaque and not nullable:
        found = members[0].type
        kind, arguments = get_origin(found) or found, get_args(found)
        if kind in CONCATENATE:
            _check_concatenated(found, arguments, space)
            return {**_iterator({"type": "string"}), "x-cog-array-display": "concatenate"}
        if kind in GENERATORS and not arguments:
            return _iterator({"type": "string"})
        if kind in ITERATORS:
            return _iterator(_single(arguments[0], space, ()) if arguments else {})
    return _alternatives(annotation, space, ())


def _check_concatenated(annotation: Any, arguments: tuple[Any, ...], space: Namespace) -> None:
    """Without an argument it is taken for one of texts.

    Raises:
      UnsupportedOutputType: its items are not texts.
    """
    members, nullable = options(arguments[0], space) if arguments else ([], False)
    if nullable or any(member.type is not str for member in members):
        raise UnsupportedOutputType(
            annotation, ": only texts can be concatenated, write ConcatenateIterator[str] or Iterator[T]"
        )


def _iterator(items: Fragment) -> Fragment:
    return {"type": "array", "items": items, "x-cog-array-type": "iterator"}


def _alternatives(annotation: Any, space: Namespace, within: tuple[Any, ...]) -> Fragment:
    """A type that may be a union or None."""
    members, nullable = options(annotation, space)
    fragment: Fragment
    if nullable and any(member.opaque for member in members):
        raise UnsupportedOutputType(annotation, ": Opaque and Optional do not go together in an output")
    if len(members) == 1:
        fragment = _one(members[0], space, within)
    elif members:
        fragment = {"anyOf": [_one(member, space, within) for member in members]}
    else:
        fragment = {}
    return {**fragment, "nullable": True} if nullable else fragment


def _single(annotation: Any, space: Namespace, within: tuple[Any, ...]) -> Fragment:
    """The element of a container: neither a union nor None."""
    members, nullable = options(annotation, space)
    if nullable or len(members) != 1:
        raise UnsupportedOutputType(annotation, " as an element: give it one type, or Any")
    return _one(members[0], space, within)


def _one(option: UnionMember, space: Namespace, within: tuple[Any, ...]) -> Fragment:
    kind = option.type
    origin = get_origin(kind)
    if option.opaque:
        is_list = kind is list or origin is list
        return {"type": "array", "items": dict(OBJECT)} if is_list else dict(OBJECT)
    if kind is Any or isinstance(kind, TypeVar):
        return {}
    if origin is Literal:
        return _enumeration(get_args(kind))
    if kind is list:
        return {"type": "array", "items": dict(OBJECT)}
    if kind is dict:
        return dict(OBJECT)
    if origin is list:
        arguments = get_args(kind)
        return {"type": "array", "items": _single(arguments[0], space, within) if arguments else dict(OBJECT)}
    if origin is dict:
        arguments = get_args(kind)
        if not arguments:
            return dict(OBJECT)
        return {"type": "object", "additionalProperties": _single(arguments[1], space, within)}
    return _class(origin or kind, kind, within)


def _class(kind: Any, annotation: Any, within: tuple[Any, ...]) -> Fragment:
    if not isinstance(kind, type):
        raise UnsupportedOutputType(annotation)
    if issubclass(kind, (bytes, bytearray)):
        raise UnsupportedOutputType(annotation, ": write the bytes into a file, and return its Path")
    if kind in SCALARS:
        return {"type": SCALARS[kind][1]}
    if issubclass(kind, Enum):
        return _enumeration(tuple(member.value for member in kind))
    if issubclass(kind, Secret):
        return dict(SECRET)
    if issubclass(kind, (File, os.PathLike)):
        return dict(URI)
    if is_typed_dict(kind) or dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel) or is_pydantic_model(kind):
        return dict(OBJECT) if kind in within else _structure(kind, (*within, kind))
    raise UnsupportedOutputType(annotation)


def _enumeration(values: tuple[Any, ...]) -> Fragment:
    kinds = {SCALARS[type(value)][1] if type(value) in SCALARS else None for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return {"enum": list(values)} if kind is None else {"type": kind, "enum": list(values)}


def is_pydantic_model(kind: type) -> bool:
    """Whether a class derives from pydantic's BaseModel, of either major version."""
    return any(_from_pydantic(base) and base.__name__ == "BaseModel" for base in kind.__mro__)


def _from_pydantic(base: type) -> bool:
    return base.__module__.partition(".")[0] == "pydantic"


def title(name: str) -> str:
    """The title of a property: ``guidance_scale`` is ``Guidance Scale``."""
    return " ".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _structure(kind: type, within: tuple[Any, ...]) -> Fragment:
    properties: dict[str, Fragment] = {}
    required: list[str] = []
    for name, annotation, space in _fields(kind):
        bare, demanded = _key_rules(space.evaluate(annotation))
        members, nullable = options(bare, space)
        try:
            fragment = _alternatives(bare, space, within) if members else {"nullable": True}
        except TypeError as error:
            raise TypeError(f"field {name!r} of {kind.__name__}: {error}") from error
        properties[name] = {**fragment, "title": title(name)}
        if is_typed_dict(kind):
            needed = name in kind.__required_keys__ if demanded is None else demanded  # type: ignore[attr-defined]
        else:
            needed = not nullable and not _has_default(kind, name)
        if needed:
            required.append(name)
    fragment = {"type": "object", "properties": properties}
    return {**fragment, "required": required} if required else fragment


def _fields(kind: type) -> list[tuple[str, Any, Namespace]]:
    """Names, annotations and where to read them, in the order of declaration, those of bases first."""
    found: dict[str, tuple[str, Any, Namespace]] = {}
    bases = [kind] if is_typed_dict(kind) else reversed(kind.__mro__)
    for base in bases:
        if base is BaseModel or base is object or _from_pydantic(base):
            continue
        space = of_class(base)
        for name, annotation in own_annotations(base).items():
            if annotation is not dataclasses.KW_ONLY and not is_class_variable(annotation, space):
                found[name] = (name, annotation, space)
    return list(found.values())


def _key_rules(annotation: Any) -> tuple[Any, bool | None]:
    """Take off Required, NotRequired and ReadOnly; says which of the first two was there."""
    demanded: bool | None = None
    while True:
        name = str(get_origin(annotation) or "").rpartition(".")[2]
        if name not in ("Required", "NotRequired", "ReadOnly"):
            return annotation, demanded
        if name != "ReadOnly":
            demanded = name == "Required"
        annotation = get_args(annotation)[0]


def _has_default(kind: Any, name: str) -> bool:
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            if field.name == name:
                return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    if is_pydantic_model(kind):
        fields = getattr(kind, "model_fields", None) or getattr(kind, "__fields__", {})
        if name in fields:
            entry = fields[name]
            return not (entry.is_required() if hasattr(entry, "is_required") else entry.required)
    return any(name in vars(base) for base in kind.__mro__)


__all__ = ["UnsupportedOutputType", "is_stream", "read_output", "title"]
