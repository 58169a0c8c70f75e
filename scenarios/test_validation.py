"""Validation before start: a wrong input never reaches the model, and every fault is named."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from cog_trio.testing import ServeModel


async def test_validation_before_start_names_every_fault(serve_model: ServeModel) -> None:
    """Given a model with limits, when every input is wrong, then 422 lists each with its place, also while the only
    slot is taken, and the model never ran."""
    with trio.fail_after(60):
        async with serve_model("strict.py") as server:
            reply = await server.predict({"count": 11, "colour": "blue", "word": "TOO LONG"})
            assert reply.status_code == 422
            places = [fault["loc"] for fault in reply.json()["detail"]]
            assert ["body", "input", "count"] in places
            assert ["body", "input", "colour"] in places
            assert ["body", "input", "word"] in places
            reply = await server.predict({})
            assert reply.status_code == 422
            assert reply.json()["detail"][0]["loc"] == ["body", "input", "count"]
            good = (await server.predict({"count": 1.0, "more": "is dropped"})).json()
    assert good["output"] == "1 red abc"
    assert good["logs"] == "it ran\n"


BODIES = [
    (b"{", 400),
    (b'{"input": NaN}', 400),
    (b'{"input": {"count": 1e999}}', 400),
    (b"[1]", 422),
    (b"null", 422),
    (b'{"id": 5}', 422),
    (b'{"id": ""}', 422),
    (b'{"context": {"a": 1}}', 422),
    (b'{"webhook_events_filter": ["none"]}', 422),
    (b'{"webhook": "nonsense", "input": {"count": 1}}', 422),
]


@pytest.mark.covers("http:W19")
async def test_bad_bodies_are_refused_as_json(serve_model: ServeModel) -> None:
    """Given bodies that are not requests, when they are posted, then each gets the status that says why, with a JSON
    body, and the next good one is served."""
    with trio.fail_after(60):
        async with serve_model("strict.py") as server:
            for body, status in BODIES:
                reply = await server.client.post(
                    "/predictions", content=body, headers={"content-type": "application/json"}
                )
                assert (body, reply.status_code) == (body, status), reply.text
                detail: list[dict[str, Any]] = reply.json()["detail"]
                assert detail
                assert (await server.predict({"count": 1})).status_code == 200
