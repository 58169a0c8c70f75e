"""`BaseModel`: structured outputs as dataclasses, with what models written for pydantic's expect of it.

Subclassing makes a dataclass, after the class body was brought into a form that dataclasses take: mutable defaults are
copied for each instance, ``Optional`` fields default to None, and fields without a default may follow fields with one
(they are keyword-only from there). Nothing is checked when an instance is made. Validators and ``Config`` of pydantic
have no effect, which is said once a class.
"""

from __future__ import annotations

import builtins
import copy as copying
import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from ._annotations import Namespace, of_class, options, own_annotations, type_name
from .input import is_pydantic_field, pydantic_default
from .types import Secret

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**kwargs: Any) -> Any:
        return lambda cls: cls


Model = TypeVar("Model", bound="BaseModel")


@dataclass_transform(kw_only_default=False, field_specifiers=(dataclasses.field,))
class BaseModel:
    """Base of structured outputs.

    Raises (when subclassed):
      TypeError: if the first base is not a `BaseModel`, a further one is a dataclass, or a keyword is unknown.
      ValueError: for ``auto_dataclass=False`` below a class that was converted.
    """

    def __init_subclass__(cls, *, auto_dataclass: bool = True, init: bool = True, **dataclass_kwargs: Any) -> None:
        super().__init_subclass__()
        first, *others = cls.__bases__
        if not issubclass(first, BaseModel):
            raise TypeError(f"{cls.__name__}: the first base must be a BaseModel, not {first.__name__}")
        for other in others:
            if dataclasses.is_dataclass(other):
                raise TypeError(f"{cls.__name__} cannot derive from the dataclass {other.__name__} as well")
        if not auto_dataclass:
            if dataclasses.is_dataclass(first):
                raise ValueError(f"{cls.__name__}: auto_dataclass=False is not possible below {first.__name__}")
            return
        _ignored_pydantic(cls)
        _prepare_fields(cls, sort=init and not dataclass_kwargs.get("kw_only", False))
        # Dataclasses make slots by making a second class, which nobody would get.
        dataclass_kwargs.pop("slots", None)
        dataclasses.dataclass(init=init, **dataclass_kwargs)(cls)

    def model_dump(self) -> builtins.dict[str, Any]:
        """The fields, nested models taken apart as well; files and secrets stay objects."""
        return {name: _dump(getattr(self, name)) for name in _field_names(self)}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """The fields as JSON: paths as text, secrets masked."""
        import json

        separators = (",", ":") if indent is None else None
        dumped = self.model_dump()
        return json.dumps(dumped, default=_json_default, ensure_ascii=False, indent=indent, separators=separators)

    def dict(self) -> builtins.dict[str, Any]:
        """The older name of `model_dump`."""
        return self.model_dump()

    def json(self, *, indent: int | None = None) -> str:
        """The older name of `model_dump_json`."""
        return self.model_dump_json(indent=indent)

    def copy(self: Model, *, update: Mapping[str, Any] | None = None) -> Model:
        """A shallow copy, with some fields changed."""
        new = copying.copy(self)
        for name, value in (update or {}).items():
            object.__setattr__(new, name, value)  # also when frozen: nobody else has it yet
        return new

    @classmethod
    def model_validate(cls: type[Model], obj: Any) -> Model:
        """An instance from a mapping of its fields; nothing is checked.

        Raises:
          TypeError: if ``obj`` is not a mapping, a field is missing, or one is unknown.
        """
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping):
            raise TypeError(f"{cls.__name__} is made from a mapping, got {type(obj).__name__}")
        return cls(**obj)

    @classmethod
    def parse_obj(cls: type[Model], obj: Any) -> Model:
        """The older name of `model_validate`."""
        return cls.model_validate(obj)


def _field_names(instance: Any) -> Iterable[str]:
    if dataclasses.is_dataclass(instance):
        return [field.name for field in dataclasses.fields(instance)]
    return list(vars(instance))


def _dump(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Secret):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _dump(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, builtins.dict):
        return {key: _dump(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_dump(item) for item in value)
    return value


def _json_default(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (Secret, os.PathLike)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if callable(getattr(value, "isoformat", None)):
        return value.isoformat()
    raise TypeError(f"{type_name(type(value))} cannot be turned into JSON")


def _prepare_fields(cls: type, *, sort: bool) -> None:
    space = of_class(cls)
    optional_before = sort and any(
        field.init and not field.kw_only and not _is_required(field)
        for field in getattr(cls, "__dataclass_fields__", {}).values()
    )
    by_name = False
    for name, annotation in own_annotations(cls).items():
        if annotation is dataclasses.KW_ONLY or (isinstance(annotation, str) and annotation.endswith("KW_ONLY")):
            sort = False  # what follows is keyword-only already
            continue
        if is_class_variable(annotation, space):
            continue
        field = _field(cls, name, annotation, space)
        if sort and field.init and field.kw_only is not True:
            if _is_required(field):
                by_name = by_name or optional_before
            else:
                optional_before = True
            if by_name:
                field.kw_only = True
        setattr(cls, name, field)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def is_class_variable(annotation: Any, space: Namespace) -> bool:
    """Whether an annotation in a class body is not a field: ``ClassVar``, ``InitVar``."""
    text = annotation if isinstance(annotation, str) else str(annotation)
    if "ClassVar" not in text and "InitVar" not in text:
        return False
    from typing import ClassVar, get_origin

    kind = space.evaluate(annotation)
    return kind is ClassVar or get_origin(kind) is ClassVar or isinstance(kind, dataclasses.InitVar)


def _field(cls: type, name: str, annotation: Any, space: Namespace) -> Any:
    given = name in cls.__dict__
    value: Any = cls.__dict__.get(name)
    if isinstance(value, dataclasses.Field):
        return value
    if given and is_pydantic_field(value):
        if value.default_factory is not None:
            return dataclasses.field(default_factory=value.default_factory)
        given, value = pydantic_default(value)
    if not given:
        return dataclasses.field(default=None) if _is_optional(annotation, space) else dataclasses.field()
    if type(value).__hash__ is None:  # what dataclasses refuse as mutable: list, dict, set, ...
        default = value
        return dataclasses.field(default_factory=lambda: copying.deepcopy(default))
    return dataclasses.field(default=value)


def _is_optional(annotation: Any, space: Namespace) -> bool:
    try:
        return options(annotation, space)[1]
    except TypeError:
        return False  # what can't be read here is told when the schema is made


def _ignored_pydantic(cls: type) -> None:
    ignored = [name for name in ("Config", "model_config") if name in cls.__dict__]
    for name, value in cls.__dict__.items():
        kind = type(value)
        if kind.__module__.partition(".")[0] == "pydantic" and not is_pydantic_field(value):
            ignored.append(name)
    if ignored:
        warnings.warn(
            f"{cls.__name__}: cog.BaseModel is a dataclass, no pydantic model; without effect: {', '.join(ignored)}",
            stacklevel=4,
        )


BaseModel.__module__ = "cog.model"
