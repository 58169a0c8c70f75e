"""What a model author imports: the names of Cog, under `cog` (in workers) and `cog_trio.sdk`.

Importing it costs a model nothing that it does not use: only the standard library is loaded, and of our own only the
small modules named below. What describes a signature (`schema`) is loaded by the worker; httpx by the first `URLFile`
that is read; pydantic by pydantic itself. Module objects are shared: `cog.types` *is* `cog_trio.sdk.types` wherever
the alias of `cog_trio._alias` is in force, so identity and ``isinstance`` never depend on the name that was imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ._decorators import concurrent, streaming
from ._decorators import trio as trio  # not in __all__: ``from cog import *`` must not hide the package of that name
from ._opaque import Opaque
from ._version import __version__
from .exceptions import CancelationException
from .input import FieldInfo, Input
from .model import BaseModel
from .predictor import BasePredictor, BaseRunner
from .scope import current_scope
from .types import AsyncConcatenateIterator, ConcatenateIterator, File, Path, Secret, URLFile, URLPath

if TYPE_CHECKING:
    from ._deprecated import ExperimentalFeatureWarning, emit_metric

Predictor = BasePredictor

_LEGACY: Final = frozenset(
    [
        "base_input",
        "base_predictor",
        "coder",
        "command",
        "config",
        "errors",
        "ext",
        "files",
        "json",
        "logging",
        "mode",
        "response",
        "server",
        "suppress_output",
        "wait",
    ]
)

__all__ = [  # noqa: RUF022 - in the order of Cog's own
    "__version__",
    "BaseRunner",
    "BasePredictor",
    "Predictor",
    "BaseModel",
    "Opaque",
    "Input",
    "FieldInfo",
    "Path",
    "Secret",
    "File",
    "URLFile",
    "URLPath",
    "ConcatenateIterator",
    "AsyncConcatenateIterator",
    "CancelationException",
    "current_scope",
    "streaming",
    "concurrent",
    "ExperimentalFeatureWarning",
    "emit_metric",
]


def __getattr__(name: str) -> Any:
    if name in ("emit_metric", "ExperimentalFeatureWarning"):
        from ._deprecated import deprecated

        return deprecated(name)
    if name in _LEGACY:  # ``from cog import files``
        return import_module(f"{__name__}.legacy.{name}")
    if name == "Model":
        from .input import FIRST_API

        raise AttributeError(FIRST_API)
    raise AttributeError(f"module 'cog' has no attribute {name!r}")
