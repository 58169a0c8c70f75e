"""The inputs of a callable: one `Parameter` for each, made from annotation and default.

All faults of all parameters are collected and told in one error: who has to wait for a model to load wants to see
every mistake at once, each with what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from . import _constraints as constraints
from ._annotations import Namespace, signature, type_name, unresolved_names
from ._input_types import InputKind, InputType, UnsupportedInputType, read_input_type
from ._notice import notice
from .input import FieldInfo, from_pydantic, is_pydantic_field


class _Missing(Enum):
    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing.MISSING
"""Stands for a default that was not given: ``None`` is one that can be."""


FAULT_END: Final = ";\n"  # a line each, and good to read where a text must be one line


@dataclass(frozen=True)
class Parameter:
    """One input of a callable, resolved.

    ``kind`` speaks of the elements when ``many``: ``list[Path]`` is kind ``path``, many. ``union`` and ``any`` values
    are the JSON value itself, and so are ``dict``. A bare ``list`` is kind ``any``, many.
    """

    name: str
    kind: InputKind
    many: bool = False
    nullable: bool = False
    """``nullable`` in the document: the annotation admits None, or it is a Secret whose default is None."""
    accepts_null: bool = False
    """An explicit JSON null passes and `run` sees None: nullable, kind any, or a default of None."""
    required: bool = True
    """Leaving it out is a fault. The document may list a parameter as required that is not."""
    listed: bool = True
    """Stands in the document's ``required``."""
    inject_null: bool = False
    """Nullable, without a default and not required: the echo of an input shows null where it was left out."""
    enum: type[Enum] | None = None
    """The annotation is (a list of) this Enum: a value becomes its member, ``enum(value)``; ``kind``: of the values."""
    literal: tuple[Any, ...] | None = None
    """The annotation is (a list of) a Literal with these values; a value needs no conversion beyond its ``kind``."""
    choices: tuple[Any, ...] | None = None
    """The JSON values that are allowed, whichever way they were given (choices, Literal, Enum)."""
    default: Any = field(default=MISSING, repr=False)  # it may be a secret
    """As the author wrote it, never to be handed out itself: `MISSING`, or any Python value."""
    positional: bool = False
    """Positional-only: goes into ``args``."""
    python_name: str = ""
    """What the function calls it, if something else: of a private ``__x`` in a class ``C`` Python makes ``_C__x``."""
    fragment: Mapping[str, Any] = field(default_factory=dict)
    """Its property in the document but for ``x-order``. With choices it says nothing of the type: the document gives
    these a component of their own, see `choice_type`."""
    choice_type: str | None = None
    """The JSON type of the choices."""


@dataclass(frozen=True)
class Parameters:
    """All inputs of a callable."""

    parameters: tuple[Parameter, ...]
    extra: bool = False
    """It takes ``**kwargs``: unknown inputs are passed on."""


class _Faults:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.kind: type[Exception] = ValueError
        self.unsupported = False

    def add(self, error: Exception) -> None:
        if isinstance(error, TypeError):
            self.kind = TypeError
        self.unsupported = self.unsupported or isinstance(error, UnsupportedInputType)
        self.texts.append(str(error))

    def raise_if_any(self) -> None:
        if self.texts:
            hint = f"; supported: {UnsupportedInputType.POSSIBLE}" if self.unsupported else ""
            raise self.kind(FAULT_END.join(self.texts) + hint)


def read_inputs(function: Callable[..., Any], space: Namespace) -> Parameters:
    """The inputs of a function (bound: without ``self``).

    Raises:
      TypeError, ValueError: naming every parameter that can't be an input as it stands.
    """
    found: list[Parameter] = []
    faults = _Faults()
    extra = False
    private = _private_prefix(function)
    for raw in signature(function).parameters.values():
        if raw.kind is raw.VAR_KEYWORD:
            extra = True
        elif raw.kind is raw.VAR_POSITIONAL:
            notice(f"*{raw.name} is ignored: inputs have names, so nothing can reach it")
        else:
            try:
                found.append(_read(raw, space, private))
            except (TypeError, ValueError) as error:
                faults.add(error)
    faults.raise_if_any()
    return Parameters(tuple(found), extra)


def _private_prefix(function: Callable[..., Any]) -> str | None:
    """What Python puts before a private name in the class that a method was written in."""
    name = getattr(inspect.unwrap(function), "__qualname__", "").rpartition(".")[0].rpartition(".")[2].lstrip("_")
    return f"_{name}__" if name.isidentifier() else None


def _read(raw: inspect.Parameter, space: Namespace, private: str | None) -> Parameter:
    name = raw.name
    if private is not None and name.startswith(private):
        name = "__" + name.removeprefix(private)
    if raw.annotation is raw.empty:
        raise TypeError(f"parameter {name!r} has no type annotation; write for example {name}: str, or {name}: Any")
    annotation = space.evaluate(raw.annotation)
    if missing := unresolved_names(annotation):
        names = ", ".join(sorted(set(missing)))
        raise TypeError(
            f"parameter {name!r}: the annotation {type_name(raw.annotation)} names {names}, which is not defined when "
            "the model runs; import it outside of TYPE_CHECKING, or write Annotated[..., Opaque] for any JSON object"
        )
    info = field_info(raw.default)
    shape = read_input_type(name, annotation, space)
    given = info.has_default
    parameter = Parameter(
        name=name,
        kind=shape.kind,
        many=shape.many,
        enum=shape.enum,
        literal=shape.literal,
        default=info.default if given else MISSING,
        positional=raw.kind is raw.POSITIONAL_ONLY,
        python_name="" if raw.name == name else raw.name,
        fragment=dict(shape.fragment),
    )
    parameter = constraints.apply(parameter, shape, info)
    return _with_default(parameter, shape, info)


def field_info(default: Any) -> FieldInfo:
    """What a parameter's default says, in whichever form it was written."""
    if default is inspect.Parameter.empty:
        return FieldInfo()
    if isinstance(default, FieldInfo):
        return default
    if is_pydantic_field(default):
        return from_pydantic(default)
    info = FieldInfo(default=default)
    info.__dict__["_given"] = True
    return info


def _with_default(parameter: Parameter, shape: InputType, info: FieldInfo) -> Parameter:
    """Add default, nullable and required."""
    fragment = dict(parameter.fragment)
    given, default = info.has_default, info.default
    none = given and default is None
    nullable = shape.nullable or (none and shape.kind == "secret" and not shape.many)
    if nullable:
        fragment["nullable"] = True
        if "anyOf" in fragment:
            fragment["anyOf"] = [{**member, "nullable": True} for member in fragment["anyOf"]]
    if not given:
        listed = required = not shape.nullable or shape.kind == "union"
    elif none:
        listed, required = not nullable, False
        if nullable:
            fragment["default"] = None
    else:
        listed = required = False
        constraints.add_default(parameter, fragment, default)
    return replace(
        parameter,
        fragment=fragment,
        nullable=nullable,
        accepts_null=nullable or none or (shape.kind == "any" and not shape.many),
        required=required,
        listed=listed,
        inject_null=nullable and not given and not listed,
    )


__all__ = ["MISSING", "InputKind", "Parameter", "Parameters", "field_info", "read_inputs"]
