"""Another server may answer anything: what can't be understood is one refusal in words, never a trace of ours."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from cog_trio.cli.run.display import Display, DisplayStyle
from cog_trio.cli.run.http_run import events, show_event
from cog_trio.cli.run.input_parser import InputParser
from cog_trio.cli.run.output_writer import OutputForm
from cog_trio.cli.run.remote_server import ServerRefused, finished, refusal, understood
from tests.cli.run.test_display import Paper


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("output", None),
        ("output", {}),
        ("output", {"index": "x", "chunk": "a"}),
        ("output", {"index": float("inf"), "chunk": "a"}),
        ("log", []),
        ("log", {}),
        ("error", []),
        ("error", {"skipped": "x"}),
        ("completed", []),
        ("completed", {}),
        ("completed", {"status": "starting"}),
        ("completed", {"status": []}),
    ],
)
async def test_an_event_that_makes_no_sense_is_refused(event: str, data: Any) -> None:
    paper = Paper()
    with pytest.raises(ServerRefused, match=f"the event {event} is not as it should be"):
        await show_event(
            event, data, Display(paper, DisplayStyle(None, False, False), OutputForm({}, "predict")), paper
        )


@pytest.mark.parametrize(
    "body", [b"event: output\n\n", b"event: \xff\xfe\ndata: {\n\n", b"event: x\ndata: " + b"[" * 9**5]
)
async def test_a_stream_that_makes_no_sense_is_refused(body: bytes) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield body
        yield b"\n\n"

    async with aclosing(pieces()) as stream:
        with pytest.raises(ServerRefused, match="can't be understood"):
            _ = [event async for event in events(stream)]


@pytest.mark.parametrize(
    "schemas",
    [
        None,
        [],
        {"Input": "x"},
        {"Input": {"properties": {"s": "x"}}},
        {"Input": {"required": 5}},
        {"Input": {"properties": {"s": {"x-order": "a"}, "t": {}}}},
        {"Input": {"properties": {"s": {"allOf": [1]}}}},
    ],
)
def test_a_document_that_makes_no_sense_is_refused(schemas: Any) -> None:
    with pytest.raises(ServerRefused, match=r"its openapi\.json"), understood("its openapi.json"):
        InputParser.of({"components": {"schemas": schemas} if schemas is not None else None}, "predict")


@pytest.mark.parametrize("field", [{"type": ["string", "null"]}, {"anyOf": None}, {"anyOf": [{"type": ["integer"]}]}])
def test_a_type_that_is_none_of_ours_is_any(field: dict[str, Any]) -> None:
    inputs = InputParser.of({"components": {"schemas": {"Input": {"properties": {"s": field}}}}}, "predict")
    assert inputs.build([("s", "x")], {}, lambda _: b"") == {"s": "x"}


@pytest.mark.parametrize("detail", [[], [1, 2], [{"loc": 5, "msg": None}], [{"loc": [[1], {}], "msg": "m"}], {}, "x"])
def test_a_refusal_that_makes_no_sense_is_still_one(detail: Any) -> None:
    refused = refusal(422, json.dumps({"detail": detail}).encode())
    assert refused.faults or "422" in str(refused)


def test_an_answer_that_is_no_run_says_so() -> None:
    assert "not with what was asked for" in str(refusal(200, b"<html>"))
    values: list[object] = [None, [], {}, {"status": "processing"}]
    for value in values:
        with pytest.raises(ValueError, match="no prediction"):
            finished(value)
