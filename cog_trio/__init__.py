"""cog-trio: serves machine-learning models written for Cog, on trio.

The names below are for programs that embed it. Each is imported at its first use: a bare ``import cog_trio``
loads nothing, which the worker process and the spawn before all other imports rely on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cog_trio.bridge.protocol import Mode
    from cog_trio.input_validation import InvalidInput
    from cog_trio.opening import ServiceBroken, open_service
    from cog_trio.prediction import Prediction
    from cog_trio.service import AlreadyRunning, AtCapacity, NotOffered, NotReady, PredictionService, Rejected
    from cog_trio.settings import Settings
    from cog_trio.transport.http.server import CannotListen, serve_http

__version__ = "0.1.0"

_HOMES = {
    "AlreadyRunning": "cog_trio.service",
    "AtCapacity": "cog_trio.service",
    "CannotListen": "cog_trio.transport.http.server",
    "InvalidInput": "cog_trio.input_validation",
    "Mode": "cog_trio.bridge.protocol",
    "NotOffered": "cog_trio.service",
    "NotReady": "cog_trio.service",
    "Prediction": "cog_trio.prediction",
    "PredictionService": "cog_trio.service",
    "Rejected": "cog_trio.service",
    "ServiceBroken": "cog_trio.opening",
    "Settings": "cog_trio.settings",
    "open_service": "cog_trio.opening",
    "serve_http": "cog_trio.transport.http.server",
}

__all__ = [
    "AlreadyRunning",
    "AtCapacity",
    "CannotListen",
    "InvalidInput",
    "Mode",
    "NotOffered",
    "NotReady",
    "Prediction",
    "PredictionService",
    "Rejected",
    "ServiceBroken",
    "Settings",
    "__version__",
    "open_service",
    "serve_http",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
