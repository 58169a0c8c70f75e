"""Server-sent events out of a body in pieces, and refusals of a server in words for people."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cog_trio.cli.run.http_run import events
from cog_trio.cli.run.remote_server import refusal

BODY = (
    b'event: start\nid: 1-1\ndata: {"id": "p"}\n\n: keep-alive\n\n'
    b'event: output\r\ndata: {"chunk": "\xc3\xa9",\r\ndata: "index": 0}\r\n\r\nevent: completed\ndata: {}\n\n'
)


async def test_every_split_of_the_body_gives_the_same_events() -> None:
    expected = [("start", {"id": "p"}), ("output", {"chunk": "é", "index": 0}), ("completed", {})]
    for cut in range(len(BODY) + 1):

        async def pieces(at: int = cut) -> AsyncIterator[bytes]:
            yield BODY[:at]
            yield BODY[at:]

        assert [event async for event in events(pieces())] == expected


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"error": "Unauthorized"}, "--auth-token"),
        (409, {"error": "Already running"}, "the server refuses (409): Already running"),
        (413, {"detail": "Too large"}, "give large files as URLs (Too large)"),
        (503, {"error": "Setup failed: boom"}, "the server refuses (503): Setup failed: boom"),
        (404, {"detail": "Not Found"}, "the server refuses (404): Not Found"),
        (400, {"detail": [{"loc": ["body"], "msg": "no JSON", "type": "x"}]}, "the server refuses (400): no JSON"),
        (502, None, "the server answered 502"),
    ],
)
def test_a_refusal_is_one_line(status: int, body: Any, words: str) -> None:
    refused = refusal(status, b"<html>" if body is None else json.dumps(body).encode())
    assert words in str(refused)
    assert not refused.faults


def test_faults_of_inputs_have_their_names() -> None:
    detail = [
        {"loc": ["body", "input", "a"], "msg": "Field required", "type": "value_error.missing"},
        {"loc": ["body", "input", "b/1"], "msg": "too large", "type": "value_error"},
    ]
    assert refusal(422, json.dumps({"detail": detail}).encode()).faults == [
        "a: is required: give it by -i a=…",
        "b/1: too large",
    ]
