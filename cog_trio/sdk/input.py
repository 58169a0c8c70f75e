"""`Input(...)`: what a model says about one of its inputs beside its type.

"No default" and "default=None" are different facts for the document (an input without a default is required), while
``FieldInfo().default`` is None in both cases, as models expect. So the instance carries a flag of its own, outside of
the dataclass's fields: it is neither compared nor shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final


@dataclass(frozen=True)
class FieldInfo:
    """What `Input` returns."""

    default: Any = None
    description: str | None = None
    ge: int | float | None = None
    le: int | float | None = None
    min_length: int | None = None
    max_length: int | None = None
    regex: str | None = None
    choices: Iterable[Any] | None = None
    deprecated: bool | None = None
    accept: str | None = None

    @property
    def has_default(self) -> bool:
        """Whether a default was given, be it None."""
        return self.default is not None or bool(self.__dict__.get("_given", False))


_NOT_GIVEN: Final[Any] = ...  # pydantic's habit of saying "required" means just that here, too


def Input(  # noqa: N802, RUF100 - the name is Cog's
    default: Any = _NOT_GIVEN,
    description: str | None = None,
    ge: int | float | None = None,
    le: int | float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    regex: str | None = None,
    choices: Iterable[Any] | None = None,
    deprecated: bool | None = None,
    *,
    default_factory: Callable[..., Any] | None = None,
    accept: str | None = None,
) -> Any:
    """Describe an input; stands where its default would.

    Nothing is checked here: what does not fit the input's type is told, with all other faults, when the model loads.

    Raises:
      TypeError: for a ``default_factory``; give the default itself, each run gets its own copy.
    """
    if default_factory is not None:
        raise TypeError("Input() takes no default_factory; write default=..., each prediction gets its own copy of it")
    given = default is not _NOT_GIVEN
    info = FieldInfo(
        default=default if given else None,
        description=description,
        ge=ge,
        le=le,
        min_length=min_length,
        max_length=max_length,
        regex=regex,
        choices=choices,
        deprecated=deprecated,
        accept=accept,
    )
    if given:
        info.__dict__["_given"] = True
    return info


def is_pydantic_field(value: object) -> bool:
    """Whether ``value`` came from ``pydantic.Field(...)``, of either major version."""
    kind = type(value)
    return kind.__name__ == "FieldInfo" and kind.__module__.partition(".")[0] == "pydantic"


def pydantic_default(field: Any) -> tuple[bool, Any]:
    """Whether a ``pydantic.Field(...)`` has a default, and which; a factory is called."""
    if field.default_factory is not None:
        return True, field.default_factory()
    absent = field.default is ... or type(field.default).__name__ in ("PydanticUndefinedType", "UndefinedType")
    return not absent, None if absent else field.default


def from_pydantic(field: Any) -> FieldInfo:
    """The same facts as an `Input`."""
    found: dict[str, Any] = {}
    for source in (field, *getattr(field, "metadata", ())):
        for ours, names in _PYDANTIC.items():
            for name in names:
                value = getattr(source, name, None)
                if value is not None:
                    found.setdefault(ours, value)
    given, default = pydantic_default(field)
    info: FieldInfo = Input(default if given else _NOT_GIVEN, **found)
    return info


_PYDANTIC: Final = {
    "description": ("description",),
    "ge": ("ge",),
    "le": ("le",),
    "min_length": ("min_length",),
    "max_length": ("max_length",),
    "regex": ("pattern", "regex"),
    "deprecated": ("deprecated",),
}


class _InputModule(ModuleType):
    """This module, which the first releases of Cog had as a decorator."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(FIRST_API)


FIRST_API: Final = (
    "@cog.input and cog.Model are of Cog before 0.1: write class Runner(cog.BaseRunner), and each input as a "
    "parameter: def run(self, image: cog.Path, scale: float = cog.Input(default=1.0, ge=0)) -> cog.Path"
)
sys.modules[__name__].__class__ = _InputModule
FieldInfo.__module__ = "cog.input"
Input.__module__ = "cog.input"
