"""The list of predictions: newest first, in pages that stay right while predictions come and go."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Fact, Outcome
from cog_trio.transport.http.api import prediction_list
from cog_trio.transport.http.api.prediction_list import BadQuery, list_page, read_query
from cog_trio.transport.http.api.route_families import PREDICTIONS

START: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)


def made(number: int, id: str | None = None) -> Prediction:
    """A prediction that was created so many seconds after the start."""
    return Prediction(id or f"p{number}", NewPrediction(), now=lambda: START + timedelta(seconds=number))


def page(predictions: list[Prediction], link: str | None = None, query: bytes = b"") -> dict[str, Any]:
    asked = urlsplit(link).query.encode() if link else query
    return dict(json.loads(list_page(predictions, read_query(asked), PREDICTIONS, "/root")))


def ids(found: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in found["results"]]


async def test_pages_forward_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_list, "PAGE", 3)
    all_of_them = [made(number) for number in range(8)]
    first = page(all_of_them)
    assert (ids(first), first["previous"]) == (["p7", "p6", "p5"], None)
    assert first["next"].startswith("/root/predictions?cursor=")
    more = [*all_of_them, made(8)]  # a newer one changes no later page
    second = page(more, first["next"])
    third = page(more[1:], second["next"])  # nor does one that is forgotten
    assert (ids(second), ids(third), third["next"]) == (["p4", "p3", "p2"], ["p1"], None)
    back = page(more, second["previous"])
    assert ids(back) == ["p7", "p6", "p5"]
    assert ids(page(more, back["previous"])) == ["p8"]
    assert page(more, back["previous"])["previous"] is None


async def test_equal_times_are_told_apart_and_nothing_is_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_list, "PAGE", 2)
    same = [made(1, id) for id in "abcde"]
    seen, link = [], None
    while True:
        found = page(same, link)
        seen += ids(found)
        if (link := found["next"]) is None:
            break
    assert seen == ["e", "d", "c", "b", "a"]


async def test_status_filters_and_stays_in_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_list, "PAGE", 1)
    ended, other, runs = made(1), made(2), made(3)
    for one in (ended, other):
        one.dispatched()
        one.finish(Outcome(Fact.RAISED, "x" * 5_000))
    found = page([ended, other, runs], query=b"status=failed")
    assert ids(found) == ["p2"]
    assert "status=failed" in found["next"]
    assert ids(page([ended, other, runs], found["next"])) == ["p1"]
    (entry,) = found["results"]
    assert entry["urls"] == {"get": "/root/predictions/p2", "cancel": "/root/predictions/p2/cancel"}
    assert (entry["status"], len(entry["error"])) == ("failed", prediction_list.MAX_ERROR)
    assert ids(page([runs], query=b"status=starting&other=1")) == ["p3"]
    assert page([], query=b"status=starting") == {"next": None, "previous": None, "results": []}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (b"status=done", "status"),
        (b"cursor=x", "cursor"),
        (b"cursor=!!!", "cursor"),
        (b"cursor=W3RydWUsImEiLCJiIl0=", "cursor"),
        (b"cursor=\xff\xfe", "cursor"),
        (b"cursor=W3RydWUsIjIwMjYtMDEtMDEiLCJiIl0=", "cursor"),  # a time without its zone
    ],
)
def test_what_makes_no_sense_is_refused(query: bytes, name: str) -> None:
    with pytest.raises(BadQuery) as refused:
        read_query(query)
    assert refused.value.faults[0]["loc"] == ["query", name]
