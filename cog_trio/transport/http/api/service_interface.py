"""What the transports ask of the service, and what its refusals look like to clients."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from cog_trio.bridge.protocol import Mode
from cog_trio.inputs.validation import InvalidInput, MalformedInput
from cog_trio.state.event_log import OtherRun, Subscription, TooManyFollowers
from cog_trio.state.prediction import Prediction, WebhookEvent
from cog_trio.state.refusals import NotOffered, NotReady, Rejected
from cog_trio.transport.http.api import bodies

if TYPE_CHECKING:
    from cog_trio.state.health import HealthSnapshot
    from cog_trio.transport.http.api.router import Headers

GONE: Final = "Prediction not found"
OTHER_RUN: Final = "Last-Event-ID names no event of this run"
TOO_MANY: Final = "Too many stream subscribers"
REFUSALS: Final = (Rejected, InvalidInput, MalformedInput, OtherRun, TooManyFollowers)


class ServiceInterface(Protocol):
    """What is asked of the service."""

    @property
    def schema(self) -> bytes | None: ...
    @property
    def draining(self) -> bool: ...
    @property
    def streaming(self) -> bool: ...
    def health(self) -> HealthSnapshot: ...
    async def check_health(self) -> HealthSnapshot: ...
    def serves(self, mode: Mode) -> bool: ...
    def admit(self, id: str | None = None, mode: Mode = Mode.PREDICT) -> None: ...
    def get(self, id: str) -> Prediction | None: ...
    def running(self, id: str) -> Prediction | None: ...
    def create(
        self,
        *,
        id: str | None = None,
        input: bytes | memoryview | None = None,
        context: dict[str, str] | None = None,
        webhook: str | None = None,
        events: frozenset[WebhookEvent] = ...,
        trace: Headers = (),
        watched: bool = False,
        streamed: bool = False,
        mode: Mode = Mode.PREDICT,
    ) -> Prediction: ...
    def watch(self, prediction: Prediction) -> AbstractContextManager[None]: ...
    def follow(self, prediction: Prediction, after: str | None = None) -> Subscription: ...
    def cancel(self, id: str) -> bool: ...
    def shutdown(self) -> None: ...
    async def wait_shutdown(self) -> None: ...


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
