"""Names that `cog.types` had in older releases, made when a model asks for them."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

LEGACY: Final = frozenset(
    {
        "CogBuildConfig",
        "CogConcurrencyConfig",
        "CogConfig",
        "ExperimentalFeatureWarning",
        "Input",
        "PYDANTIC_V2",
        "get_filename_from_urlopen",
    }
)


def legacy(name: str) -> Any:
    """The object of that name; ``name`` is one of `LEGACY`."""
    if name == "Input":
        from .input import Input

        return Input
    if name == "ExperimentalFeatureWarning":
        from . import _deprecated

        return _deprecated.ExperimentalFeatureWarning
    if name == "PYDANTIC_V2":
        return _pydantic_v2()
    if name == "get_filename_from_urlopen":
        return _filename_from_response
    return dict[str, Any]  # the shapes of cog.yaml were TypedDicts: plain dicts at run time


def _pydantic_v2() -> bool:
    if importlib.util.find_spec("pydantic") is None:
        return False
    import pydantic

    return not pydantic.VERSION.startswith("1.")


def _filename_from_response(response: Any) -> str:
    """The name of an opened ``urllib`` response, from its URL; of a ``data:`` URL from its type."""
    from ._urls import get_filename

    return get_filename(response.url)
