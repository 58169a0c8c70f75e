"""A prediction on a server, as a reply shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ENDS: Final = ("succeeded", "failed", "canceled")


@dataclass(frozen=True)
class RemotePrediction:
    """One prediction or training, as it was when the server showed it; ``Client.get`` looks again."""

    id: str | None
    status: str  # starting, processing, succeeded, failed, canceled
    output: Any = None
    error: str | None = None
    logs: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    created_at: str | None = None  # ISO 8601
    started_at: str | None = None
    completed_at: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.status in ENDS

    @classmethod
    def of(cls, told: Any) -> RemotePrediction:
        """From the JSON of a reply.

        Raises:
          ValueError: it is not that of a prediction.
        """
        if not isinstance(told, dict) or not isinstance(told.get("status"), str):
            raise ValueError("not a prediction")
        return cls(
            id=told.get("id"),
            status=told["status"],
            output=told.get("output"),
            error=told.get("error"),
            logs=told.get("logs") or "",
            input=told.get("input") or {},
            metrics=told.get("metrics") or {},
            created_at=told.get("created_at"),
            started_at=told.get("started_at"),
            completed_at=told.get("completed_at"),
        )


@dataclass(frozen=True)
class PredictionPage:
    """A page of the list of predictions, newest first."""

    results: tuple[RemotePrediction, ...]
    next: str | None  # the URL of the page with older ones
    previous: str | None
