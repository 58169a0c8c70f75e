"""A prediction as clients see it: the JSON of replies, polls and webhooks, and when webhooks show it."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from cog_trio.bridge.protocol import Json
from cog_trio.state.status import Status


class WebhookEvent(str, Enum):
    START = "start"
    OUTPUT = "output"
    LOGS = "logs"
    COMPLETED = "completed"


ALL_EVENTS: Final = frozenset(WebhookEvent)
encode: Final = msgspec.json.Encoder().encode


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prediction as clients see it."""

    id: str
    status: Status
    logs: str
    metrics: dict[str, Json]
    created_at: str  # RFC 3339, UTC
    started_at: str | msgspec.UnsetType = msgspec.UNSET
    completed_at: str | msgspec.UnsetType = msgspec.UNSET
    output: msgspec.Raw | list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
