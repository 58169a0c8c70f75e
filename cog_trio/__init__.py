"""cog-trio: serves machine-learning models written for Cog, on trio.

The names below are for programs that embed it. Each is imported at its first use: a bare ``import cog_trio``
loads nothing, which the worker process and the spawn before all other imports rely on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cog_trio.bridge.protocol import LogSource, MetricMode, Mode
    from cog_trio.config import BadModel
    from cog_trio.embedding import local_path
    from cog_trio.failures import (
        PredictionCanceled,
        PredictionError,
        PredictionFailed,
        PredictionLost,
        PredictionTimedOut,
        ServiceEnded,
        WorkerDied,
    )
    from cog_trio.health import HealthSnapshot
    from cog_trio.input_validation import InvalidInput, MalformedInput
    from cog_trio.lifecycle import (
        EventsLost,
        Feed,
        HealthChanged,
        PredictionCreated,
        PredictionFinished,
        PredictionRefused,
        PredictionStarted,
        ServiceEvent,
        Statistics,
        WorkerDescribed,
        WorkerEnded,
        WorkerReady,
        WorkerStarted,
    )
    from cog_trio.opening import ServiceBroken, open_service
    from cog_trio.prediction import Prediction, Status, WebhookEvent
    from cog_trio.refusals import SetupFailed, ShuttingDown
    from cog_trio.service import (
        AlreadyRunning,
        AtCapacity,
        NotOffered,
        NotReady,
        PredictionService,
        QueueTimedOut,
        Rejected,
    )
    from cog_trio.settings import Settings
    from cog_trio.streaming import Completed, Log, Lost, Metric, Output, PredictionStream, Start, StreamEvent
    from cog_trio.transport.http.server import CannotListen, serve_http

__version__ = "0.1.0"

_HOMES = {
    "AlreadyRunning": "cog_trio.service",
    "AtCapacity": "cog_trio.service",
    "BadModel": "cog_trio.config",
    "CannotListen": "cog_trio.transport.http.server",
    "Completed": "cog_trio.streaming",
    "EventsLost": "cog_trio.lifecycle",
    "Feed": "cog_trio.lifecycle",
    "HealthChanged": "cog_trio.lifecycle",
    "HealthSnapshot": "cog_trio.health",
    "InvalidInput": "cog_trio.input_validation",
    "Log": "cog_trio.streaming",
    "LogSource": "cog_trio.bridge.protocol",
    "Lost": "cog_trio.streaming",
    "MalformedInput": "cog_trio.input_validation",
    "Metric": "cog_trio.streaming",
    "MetricMode": "cog_trio.bridge.protocol",
    "Mode": "cog_trio.bridge.protocol",
    "NotOffered": "cog_trio.service",
    "NotReady": "cog_trio.service",
    "Output": "cog_trio.streaming",
    "Prediction": "cog_trio.prediction",
    "PredictionCanceled": "cog_trio.failures",
    "PredictionCreated": "cog_trio.lifecycle",
    "PredictionError": "cog_trio.failures",
    "PredictionFailed": "cog_trio.failures",
    "PredictionFinished": "cog_trio.lifecycle",
    "PredictionLost": "cog_trio.failures",
    "PredictionRefused": "cog_trio.lifecycle",
    "PredictionService": "cog_trio.service",
    "PredictionStarted": "cog_trio.lifecycle",
    "PredictionStream": "cog_trio.streaming",
    "PredictionTimedOut": "cog_trio.failures",
    "QueueTimedOut": "cog_trio.service",
    "Rejected": "cog_trio.service",
    "ServiceBroken": "cog_trio.opening",
    "ServiceEnded": "cog_trio.failures",
    "ServiceEvent": "cog_trio.lifecycle",
    "Settings": "cog_trio.settings",
    "SetupFailed": "cog_trio.refusals",
    "ShuttingDown": "cog_trio.refusals",
    "Start": "cog_trio.streaming",
    "Statistics": "cog_trio.lifecycle",
    "Status": "cog_trio.prediction",
    "StreamEvent": "cog_trio.streaming",
    "WebhookEvent": "cog_trio.prediction",
    "WorkerDied": "cog_trio.failures",
    "WorkerDescribed": "cog_trio.lifecycle",
    "WorkerEnded": "cog_trio.lifecycle",
    "WorkerReady": "cog_trio.lifecycle",
    "WorkerStarted": "cog_trio.lifecycle",
    "local_path": "cog_trio.embedding",
    "open_service": "cog_trio.opening",
    "serve_http": "cog_trio.transport.http.server",
}

__all__ = [
    "AlreadyRunning",
    "AtCapacity",
    "BadModel",
    "CannotListen",
    "Completed",
    "EventsLost",
    "Feed",
    "HealthChanged",
    "HealthSnapshot",
    "InvalidInput",
    "Log",
    "LogSource",
    "Lost",
    "MalformedInput",
    "Metric",
    "MetricMode",
    "Mode",
    "NotOffered",
    "NotReady",
    "Output",
    "Prediction",
    "PredictionCanceled",
    "PredictionCreated",
    "PredictionError",
    "PredictionFailed",
    "PredictionFinished",
    "PredictionLost",
    "PredictionRefused",
    "PredictionService",
    "PredictionStarted",
    "PredictionStream",
    "PredictionTimedOut",
    "QueueTimedOut",
    "Rejected",
    "ServiceBroken",
    "ServiceEnded",
    "ServiceEvent",
    "Settings",
    "SetupFailed",
    "ShuttingDown",
    "Start",
    "Statistics",
    "Status",
    "StreamEvent",
    "WebhookEvent",
    "WorkerDescribed",
    "WorkerDied",
    "WorkerEnded",
    "WorkerReady",
    "WorkerStarted",
    "__version__",
    "local_path",
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
