"""cog-trio: serves machine-learning models written for Cog, on trio.

The names below are for programs that embed it. Each is imported at its first use: a bare ``import cog_trio``
loads nothing, which the worker process and the spawn before all other imports rely on.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # no `import typing` before the worker runs
if TYPE_CHECKING:
    from typing import Any

    from cog_trio._version import __version__
    from cog_trio.bridge.protocol import LogSource, MetricMode, Mode
    from cog_trio.config.cog_yaml import BadModel
    from cog_trio.config.settings import Settings
    from cog_trio.inputs.validation import InvalidInput, MalformedInput
    from cog_trio.sdk.batching import batch
    from cog_trio.service.open_service import ServiceBroken, open_service
    from cog_trio.service.prediction_stream import (
        Completed,
        Log,
        Lost,
        Metric,
        Output,
        PredictionStream,
        Start,
        StreamEvent,
    )
    from cog_trio.service.python_api import local_path
    from cog_trio.service.service import PredictionService
    from cog_trio.state.health import HealthSnapshot
    from cog_trio.state.prediction import Prediction
    from cog_trio.state.prediction_errors import (
        PredictionCanceled,
        PredictionError,
        PredictionFailed,
        PredictionLost,
        PredictionTimedOut,
        ServiceEnded,
        WorkerDied,
    )
    from cog_trio.state.refusals import (
        AlreadyRunning,
        AtCapacity,
        NotOffered,
        NotReady,
        QueueTimedOut,
        Rejected,
        SetupFailed,
        ShuttingDown,
    )
    from cog_trio.state.service_events import (
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
    from cog_trio.state.snapshot import WebhookEvent
    from cog_trio.state.status import Status
    from cog_trio.transport.http.protocol.listeners import CannotListen
    from cog_trio.transport.http.serve import serve_http

_HOMES = {
    "AlreadyRunning": "cog_trio.state.refusals",
    "AtCapacity": "cog_trio.state.refusals",
    "BadModel": "cog_trio.config.cog_yaml",
    "CannotListen": "cog_trio.transport.http.protocol.listeners",
    "Completed": "cog_trio.service.prediction_stream",
    "EventsLost": "cog_trio.state.service_events",
    "Feed": "cog_trio.state.service_events",
    "HealthChanged": "cog_trio.state.service_events",
    "HealthSnapshot": "cog_trio.state.health",
    "InvalidInput": "cog_trio.inputs.validation",
    "Log": "cog_trio.service.prediction_stream",
    "LogSource": "cog_trio.bridge.protocol",
    "Lost": "cog_trio.service.prediction_stream",
    "MalformedInput": "cog_trio.inputs.validation",
    "Metric": "cog_trio.service.prediction_stream",
    "MetricMode": "cog_trio.bridge.protocol",
    "Mode": "cog_trio.bridge.protocol",
    "NotOffered": "cog_trio.state.refusals",
    "NotReady": "cog_trio.state.refusals",
    "Output": "cog_trio.service.prediction_stream",
    "Prediction": "cog_trio.state.prediction",
    "PredictionCanceled": "cog_trio.state.prediction_errors",
    "PredictionCreated": "cog_trio.state.service_events",
    "PredictionError": "cog_trio.state.prediction_errors",
    "PredictionFailed": "cog_trio.state.prediction_errors",
    "PredictionFinished": "cog_trio.state.service_events",
    "PredictionLost": "cog_trio.state.prediction_errors",
    "PredictionRefused": "cog_trio.state.service_events",
    "PredictionService": "cog_trio.service.service",
    "PredictionStarted": "cog_trio.state.service_events",
    "PredictionStream": "cog_trio.service.prediction_stream",
    "PredictionTimedOut": "cog_trio.state.prediction_errors",
    "QueueTimedOut": "cog_trio.state.refusals",
    "Rejected": "cog_trio.state.refusals",
    "ServiceBroken": "cog_trio.service.open_service",
    "ServiceEnded": "cog_trio.state.prediction_errors",
    "ServiceEvent": "cog_trio.state.service_events",
    "Settings": "cog_trio.config.settings",
    "SetupFailed": "cog_trio.state.refusals",
    "ShuttingDown": "cog_trio.state.refusals",
    "Start": "cog_trio.service.prediction_stream",
    "Statistics": "cog_trio.state.service_events",
    "Status": "cog_trio.state.status",
    "StreamEvent": "cog_trio.service.prediction_stream",
    "WebhookEvent": "cog_trio.state.snapshot",
    "WorkerDied": "cog_trio.state.prediction_errors",
    "WorkerDescribed": "cog_trio.state.service_events",
    "WorkerEnded": "cog_trio.state.service_events",
    "WorkerReady": "cog_trio.state.service_events",
    "WorkerStarted": "cog_trio.state.service_events",
    "__version__": "cog_trio._version",
    "batch": "cog_trio.sdk.batching",
    "local_path": "cog_trio.service.python_api",
    "open_service": "cog_trio.service.open_service",
    "serve_http": "cog_trio.transport.http.serve",
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
    "batch",
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
