"""The inputs of a callable: one `Parameter` for each, made from annotation and default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

InputKind: TypeAlias = Literal["str", "int", "float", "bool", "path", "file", "secret", "dict", "any", "union"]


class _Missing(Enum):
    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing.MISSING
"""Stands for a default that was not given: ``None`` is one that can be."""


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
    """The annotation admits None: ``nullable`` in the document."""
    accepts_null: bool = False
    """An explicit JSON null passes and `run` sees None (D1): nullable, kind any, or a default of None."""
    required: bool = True
    """Leaving it out is a fault. The document may list a parameter as required that is not (W11)."""
    inject_null: bool = False
    """Nullable, not required and without a default in the document: the echo of an input shows null for it."""
    enum: type[Enum] | None = None
    """The annotation is (a list of) this Enum: a value becomes its member, ``enum(value)``; ``kind`` is of the values."""
    literal: tuple[Any, ...] | None = None
    """The annotation is (a list of) a Literal with these values; a value needs no conversion beyond its ``kind``."""
    choices: tuple[Any, ...] | None = None
    """The JSON values that are allowed, whichever way they were given (choices, Literal, Enum)."""
    default: Any = MISSING
    """As the author wrote it, never to be handed out itself (W2): `MISSING`, or any Python value."""
    positional: bool = False
    """Positional-only: goes into ``args``."""
    fragment: Mapping[str, Any] = field(default_factory=dict)
    """Its property in the document's input component."""
