"""What a client asks for when it asks for a prediction: one struct, from the edge of the service to the prediction."""

from __future__ import annotations

from typing import Final

import msgspec

from cog_trio.bridge.protocol import Mode
from cog_trio.state.snapshot import ALL_EVENTS, WebhookEvent

_NO_CONTEXT: Final[dict[str, str]] = {}


class NewPrediction(msgspec.Struct, frozen=True):
    """A prediction that is asked for. Who makes one has checked the form of id, webhook and context."""

    input: bytes | memoryview = b"{}"  # JSON, as it came
    id: str | None = None  # None: the service makes one
    context: dict[str, str] = _NO_CONTEXT  # what the model sees as ``current_scope().context``
    mode: Mode = Mode.PREDICT
    watched: bool = False  # it lives as long as a client watches it: the last one to leave cancels
    streamed: bool = False  # the same, and clients that follow its events count too
    webhook: str | None = None
    events: frozenset[WebhookEvent] = ALL_EVENTS  # that the webhook wants
    trace: tuple[tuple[bytes, bytes], ...] = ()  # headers of W3C trace context, for what is sent on its behalf
