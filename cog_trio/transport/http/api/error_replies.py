"""What a refusal of the service looks like to clients: its status and its body, over HTTP and WebSocket."""

from __future__ import annotations

from typing import Any, Final

from cog_trio.inputs.validation import InvalidInput, MalformedInput
from cog_trio.state.event_log import OtherRun, TooManyFollowers
from cog_trio.state.refusals import NotOffered, NotReady, Rejected
from cog_trio.transport.http.api import bodies

GONE: Final = "Prediction not found"
OTHER_RUN: Final = "Last-Event-ID names no event of this run"
TOO_MANY: Final = "Too many stream subscribers"
REFUSALS: Final = (Rejected, InvalidInput, MalformedInput, OtherRun, TooManyFollowers)


def refused(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell of one of ``REFUSALS``."""
    if isinstance(error, InvalidInput):
        return 422, {"detail": error.faults}
    if isinstance(error, MalformedInput):
        return 400, {"detail": bodies.not_json(str(error)).faults}
    if isinstance(error, NotOffered):
        return 404, {"error": error.text}
    if isinstance(error, Rejected):
        return 503 if isinstance(error, NotReady) else 409, bodies.failed(error.text, error.id)
    if isinstance(error, OtherRun):
        return 409, {"error": OTHER_RUN}
    if isinstance(error, TooManyFollowers):
        return 429, {"error": TOO_MANY}
    raise error
