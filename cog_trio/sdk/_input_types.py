"""Which types an input can have, and the JSON form of each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args, get_origin

from ._annotations import Namespace, UnionMember, is_typed_dict, options, type_name
from .types import File, Secret

InputKind: TypeAlias = Literal["str", "int", "float", "bool", "path", "file", "secret", "dict", "any", "union"]
Fragment: TypeAlias = dict[str, Any]

SCALARS: Final[dict[Any, tuple[InputKind, str]]] = {
    str: ("str", "string"),
    int: ("int", "integer"),
    float: ("float", "number"),
    bool: ("bool", "boolean"),
}
SECRET: Final[Fragment] = {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}
URI: Final[Fragment] = {"type": "string", "format": "uri"}
OBJECT: Final[Fragment] = {"type": "object"}


class UnsupportedInputType(TypeError):
    """A type that no input can have."""

    POSSIBLE: ClassVar[str] = (
        "str, int, float, bool, Path, File, Secret, dict, a TypedDict, Any, Literal[...] or an Enum of str or int; "
        "a list of one of these; Optional[...] of these; a union of str, int, float, bool, dict and lists of these; "
        "Annotated[T, Opaque] for any other JSON object"
    )

    def __init__(self, name: str, annotation: Any, why: str = "") -> None:
        super().__init__(f"unsupported input type {type_name(annotation)} for parameter {name!r}{why}")


@dataclass(frozen=True)
class InputType:
    """An annotation of an input, understood."""

    kind: InputKind
    fragment: Fragment = field(default_factory=dict)
    many: bool = False
    nullable: bool = False
    enum: type[Enum] | None = None
    literal: tuple[Any, ...] | None = None

    @property
    def json_type(self) -> str | None:
        """The JSON type of the value, of the elements when ``many``."""
        fragment = self.fragment["items"] if self.many else self.fragment
        kind: str | None = fragment.get("type")
        return kind


def read_input_type(name: str, annotation: Any, space: Namespace) -> InputType:
    """The form of the parameter ``name``.

    Raises:
      Unsupported: if it has none.
    """
    members, nullable = options(annotation, space)
    if not members:
        raise UnsupportedInputType(name, annotation)
    if len(members) > 1 and all(member.opaque for member in members):
        members = [UnionMember(Any, opaque=True)]
    if len(members) == 1:
        found = _one(members[0], space)
        if found is None:
            raise UnsupportedInputType(name, annotation)
        return InputType(found.kind, found.fragment, found.many, nullable, found.enum, found.literal)
    return InputType("union", {"anyOf": _union(name, annotation, members, space)}, nullable=nullable)


def _union(name: str, annotation: Any, members: list[UnionMember], space: Namespace) -> list[Fragment]:
    fragments: list[Fragment] = []
    for member in members:
        found = _one(member, space)
        if found is None or found.enum is not None or found.literal is not None or found.kind in _ALONE:
            why = f": {type_name(member.type)} cannot be part of a union"
            raise UnsupportedInputType(name, annotation, why)
        if found.fragment not in fragments:  # dict and a TypedDict are the same to a client
            fragments.append(found.fragment)
    return fragments


_ALONE: Final = frozenset({"path", "file", "secret"})


def _one(option: UnionMember, space: Namespace) -> InputType | None:
    """One type that is not a union; None if no input can have it."""
    is_list = option.type is list or get_origin(option.type) is list
    if option.opaque:
        if is_list:
            return InputType("dict", {"type": "array", "items": dict(OBJECT)}, many=True)
        return InputType("dict", dict(OBJECT))
    if not is_list:
        return _element(option)
    elements = get_args(option.type)
    if not elements:
        return InputType("any", {"type": "array", "items": {}}, many=True)
    members, nullable = options(elements[0], space)
    if nullable or len(members) != 1:
        return None
    element = _element(members[0])
    if element is None:
        return None
    fragment = {"type": "array", "items": element.fragment}
    return InputType(element.kind, fragment, many=True, enum=element.enum, literal=element.literal)


def _element(option: UnionMember) -> InputType | None:
    kind = option.type
    if option.opaque:
        return None if kind is list or get_origin(kind) is list else InputType("dict", dict(OBJECT))
    if kind is Any:
        return InputType("any")
    if get_origin(kind) is Literal:
        return _values(get_args(kind), literal=get_args(kind))
    if kind is dict or get_origin(kind) is dict or is_typed_dict(get_origin(kind) or kind):
        return InputType("dict", dict(OBJECT))
    if not isinstance(kind, type) or get_origin(kind) is not None:
        return None
    if kind in SCALARS:
        name, json_type = SCALARS[kind]
        return InputType(name, {"type": json_type})
    if issubclass(kind, Enum):
        return _values(tuple(member.value for member in kind), enum=kind)
    if issubclass(kind, Secret):
        return InputType("secret", dict(SECRET))
    if issubclass(kind, File):
        return InputType("file", dict(URI))
    if issubclass(kind, os.PathLike):
        return InputType("path", dict(URI))
    return None


def _values(
    values: tuple[Any, ...], *, literal: tuple[Any, ...] | None = None, enum: type[Enum] | None = None
) -> InputType | None:
    kinds = {type(value) for value in values}
    base = kinds.pop() if len(kinds) == 1 else None
    if base is str or base is int or (base is bool and literal is not None):
        name, json_type = SCALARS[base]
        return InputType(name, {"type": json_type}, enum=enum, literal=literal)
    return None
