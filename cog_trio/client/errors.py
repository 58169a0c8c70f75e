"""What can go wrong for a client, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cog_trio.client.remote_prediction import RemotePrediction


class ClientError(Exception):
    """The base of all errors of a client."""


class ServerUnreachable(ClientError):
    """The server can't be reached, or the connection broke; the text says how."""


class RequestRefused(ClientError):
    """The server has refused a request.

    Attributes:
      status: of HTTP.
      faults: of the inputs, as ``(name, text)``; empty if they are not why.
    """

    def __init__(self, status: int, text: str, faults: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.faults = tuple(faults)


class InputsRefused(RequestRefused):
    """The inputs do not fit the model: ``faults`` says which and why."""


class TokenRefused(RequestRefused):
    """The server wants a bearer token, or another one."""


class NotFound(RequestRefused):
    """There is no such prediction (any more), or no such route."""


class ServerBusy(RequestRefused):
    """All slots are taken, or the id is in use; nothing was started."""


class ServerNotReady(RequestRefused):
    """The model is being set up, its setup has failed, or the server is shutting down."""


class ModelError(ClientError):
    """The prediction has failed; ``prediction`` has its error and logs."""

    def __init__(self, prediction: RemotePrediction) -> None:
        super().__init__(prediction.error or "the prediction failed")
        self.prediction = prediction


class RunCanceled(ClientError):
    """The prediction was cancelled by somebody else; ``prediction`` has what there was."""

    def __init__(self, prediction: RemotePrediction) -> None:
        super().__init__("the prediction was cancelled")
        self.prediction = prediction


class RunTimedOut(ClientError, TimeoutError):
    """The time that was given is over. A prediction that the call has started was cancelled."""


KINDS: Final[Mapping[int, type[RequestRefused]]] = {
    401: TokenRefused,
    404: NotFound,
    409: ServerBusy,
    422: InputsRefused,
    503: ServerNotReady,
}


def refused(status: int, body: bytes) -> RequestRefused:
    """The error for an answer that is not what was asked for."""
    told = json_object(body)
    detail = told.get("detail")
    kind = KINDS.get(status, RequestRefused)
    if isinstance(detail, list):
        faults = [(_input_name(fault), str(fault.get("msg"))) for fault in detail if isinstance(fault, dict)]
        text = "; ".join(f"{name}: {why}" if name else why for name, why in faults)
        return kind(status, text or f"the server answered {status}", faults)
    said = told.get("error") or (detail if isinstance(detail, str) else None)
    if status < 300:
        return kind(status, f"the server answered {status}, but not as a server of cog-trio or Cog does")
    return kind(status, f"the server refuses ({status}): {said}" if said else f"the server answered {status}")


def json_object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty one if it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _input_name(fault: Mapping[str, Any]) -> str:
    place = fault.get("loc")
    parts = place if isinstance(place, list) else ()
    return ".".join(str(part) for part in parts if part not in ("body", "input", "__root__"))
