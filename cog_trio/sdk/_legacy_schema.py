"""Names that `cog.schema` had in older releases: request and response as plain dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any


class Status(str, Enum):
    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    CANCELED = "canceled"
    FAILED = "failed"

    @staticmethod
    def is_terminal(status: str | None) -> bool:
        """Whether nothing follows a status."""
        return status in (Status.SUCCEEDED, Status.CANCELED, Status.FAILED)


class WebhookEvent(str, Enum):
    START = "start"
    OUTPUT = "output"
    LOGS = "logs"
    COMPLETED = "completed"

    @classmethod
    def default_events(cls) -> set[WebhookEvent]:
        """What is sent when a request does not say."""
        return {cls.START, cls.OUTPUT, cls.LOGS, cls.COMPLETED}


@dataclass
class PredictionRequest:
    input: dict[str, Any] = field(default_factory=dict)
    id: str | None = None
    created_at: datetime | None = None
    context: dict[str, str] | None = None
    output_file_prefix: str | None = None
    webhook: str | None = None
    webhook_events_filter: set[WebhookEvent] = field(default_factory=WebhookEvent.default_events)


@dataclass
class PredictionResponse:
    input: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    id: str | None = None
    version: str | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    logs: str = ""
    error: str | None = None
    status: Status | None = None
    metrics: dict[str, Any] | None = None


@dataclass
class TrainingRequest(PredictionRequest):
    """As for predictions."""


@dataclass
class TrainingResponse(PredictionResponse):
    """As for predictions."""


for _public in (Status, WebhookEvent, PredictionRequest, PredictionResponse, TrainingRequest, TrainingResponse):
    _public.__module__ = "cog.schema"
