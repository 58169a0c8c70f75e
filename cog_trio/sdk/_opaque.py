"""`Opaque`: the mark in ``Annotated[T, Opaque]`` that says "any JSON object; do not look into T"."""

from __future__ import annotations

from typing import Final, final


@final
class _Opaque:
    def __repr__(self) -> str:
        return "cog.Opaque"

    def __reduce__(self) -> str:
        return "Opaque"


_Opaque.__module__ = "cog._opaque"
Opaque: Final = _Opaque()
