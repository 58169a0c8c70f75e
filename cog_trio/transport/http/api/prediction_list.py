"""The list of predictions that run, wait or are retained: newest first, page by page, as Replicate's API has it.

An entry says how a prediction stands and where more is to be had; inputs, outputs and logs are not in the list, so that
a page is small whatever the predictions hold. A cursor names the place between two predictions and the direction, so a
page stays right when predictions come and go.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

import msgspec

from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Status
from cog_trio.transport.http.api import bodies
from cog_trio.transport.http.api.route_families import RouteFamily

PAGE: Final = 100  # predictions
MAX_ERROR: Final = 1_000  # characters of an error
STATUSES: Final = tuple(status.value for status in Status)
BAD_STATUS: Final = f"must be one of {', '.join(STATUSES)}"
BAD_CURSOR: Final = "is not a cursor of this list: take it from next or previous"


class BadQuery(Exception):
    """The query can't be understood; ``faults`` says why."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name} {text}")
        self.faults = [bodies.fault(["query", name], text)]


class Place(NamedTuple):
    """A prediction in the order of the list; later ones come first."""

    created_at: datetime
    id: str


class Query(NamedTuple):
    """What is asked for. ``after``: predictions older than this place; ``before``: newer ones, the oldest of them."""

    status: Status | None = None
    after: Place | None = None
    before: Place | None = None


def read_query(query: bytes) -> Query:
    """Read ``status`` and ``cursor``; other parameters are ignored.

    Raises:
      BadQuery: one of them makes no sense.
    """
    given = dict(parse_qsl(query.decode("utf-8", "replace"), max_num_fields=100))
    status = given.get("status")
    if status is not None and status not in STATUSES:
        raise BadQuery("status", BAD_STATUS)
    read = Query(None if status is None else Status(status))
    if (cursor := given.get("cursor")) is None:
        return read
    try:
        older, created_at, id = msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[bool, str, str])
        place = Place(datetime.fromisoformat(created_at), id)
        if place.created_at.tzinfo is None:
            raise ValueError
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise BadQuery("cursor", BAD_CURSOR) from None
    return read._replace(after=place) if older else read._replace(before=place)


def list_page(predictions: Iterable[Prediction], query: Query, family: RouteFamily, root: str) -> bytes:
    """One page as JSON."""
    found = sorted(
        ((Place(one.created_at, one.id), one) for one in predictions if query.status in (None, one.status)),
        key=lambda pair: pair[0],
        reverse=True,
    )
    older = [pair for pair in found if query.after is None or pair[0] < query.after]
    if query.before is not None:
        newer = [pair for pair in found if pair[0] > query.before]
        page, has_newer, has_older = newer[-PAGE:], len(newer) > PAGE, len(newer) < len(found)
    else:
        page, has_newer, has_older = older[:PAGE], len(older) < len(found), len(older) > PAGE
    path = f"{root}{family.path}"
    return bodies.encode(
        {
            "next": _link(path, query, page[-1][0], older=True) if page and has_older else None,
            "previous": _link(path, query, page[0][0], older=False) if page and has_newer else None,
            "results": [_entry(prediction, path) for _, prediction in page],
        }
    )


def _link(path: str, query: Query, place: Place, *, older: bool) -> str:
    cursor = base64.urlsafe_b64encode(bodies.encode((older, place.created_at.isoformat(), place.id))).decode()
    status = {} if query.status is None else {"status": query.status.value}
    return f"{path}?{urlencode({**status, 'cursor': cursor})}"


def _entry(prediction: Prediction, path: str) -> dict[str, Any]:
    ended, began = prediction.completed_at, prediction.started_at
    return {
        "id": prediction.id,
        "status": prediction.status.value,
        "error": prediction.error[:MAX_ERROR] if prediction.error else None,
        "created_at": prediction.created_at.isoformat(),
        "started_at": None if began is None else began.isoformat(),
        "completed_at": None if ended is None else ended.isoformat(),
        "urls": {"get": f"{path}/{prediction.id}", "cancel": f"{path}/{prediction.id}/cancel"},
    }
