"""A client for programs that are not trio programs: ``Client`` for plain code, ``AsyncClient`` for asyncio and trio.

Both ask a server of cog-trio, or of Cog, over HTTP. Names and shapes are near those of Replicate's client.
"""

from __future__ import annotations

from cog_trio.client.async_client import AsyncClient
from cog_trio.client.errors import (
    ClientError,
    InputsRefused,
    ModelError,
    NotFound,
    RequestRefused,
    RunCanceled,
    RunTimedOut,
    ServerBusy,
    ServerNotReady,
    ServerUnreachable,
    TokenRefused,
)
from cog_trio.client.events import (
    ClientEvent,
    CompletedEvent,
    LogEvent,
    LostEvent,
    MetricEvent,
    OutputEvent,
    StartEvent,
)
from cog_trio.client.remote_prediction import PredictionPage, RemotePrediction
from cog_trio.client.sync_client import Client

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "ClientEvent",
    "CompletedEvent",
    "InputsRefused",
    "LogEvent",
    "LostEvent",
    "MetricEvent",
    "ModelError",
    "NotFound",
    "OutputEvent",
    "PredictionPage",
    "RemotePrediction",
    "RequestRefused",
    "RunCanceled",
    "RunTimedOut",
    "ServerBusy",
    "ServerNotReady",
    "ServerUnreachable",
    "StartEvent",
    "TokenRefused",
]
