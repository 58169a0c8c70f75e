"""A stream of server-sent events, cut anywhere, gives the same events."""

from __future__ import annotations

from typing import Final

import pytest

from cog_trio.client.events import (
    BadStream,
    CompletedEvent,
    LogEvent,
    LostEvent,
    OutputEvent,
    ServerSentEvents,
    StartEvent,
    event_of,
)

BODY: Final = (
    b": a comment\n\n"
    b'id: 1\nevent: start\ndata: {"id":"p"}\n\n'
    b'id: 2\r\nevent: output\r\ndata: {"index":0,"chunk":"\xc3\xa4"}\r\n\r\n'
    b'event: log\ndata: {"source":"stderr",\ndata: "data":"x"}\n\n'
    b"data: without a name\n\n"
)
FOUND: Final = [
    ("start", "1", StartEvent("p")),
    ("output", "2", OutputEvent("ä", 0)),
    ("log", "", LogEvent("x", "stderr")),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_every_cut_gives_the_same_events(size: int) -> None:
    reader = ServerSentEvents()
    found = [
        (name, id, event_of(name, data))
        for start in range(0, len(BODY), size)
        for name, id, data in reader.feed(BODY[start : start + size])
    ]
    assert found == FOUND


@pytest.mark.parametrize(
    ("name", "data"),
    [("start", b"{"), ("output", b'{"index":0}'), ("log", b"[]"), ("completed", b'{"output":1}'), ("metric", b"{}")],
)
def test_what_is_not_an_event_is_told(name: str, data: bytes) -> None:
    with pytest.raises(BadStream, match=name):
        event_of(name, data)


def test_unknown_events_are_left_out_and_losses_are_counted() -> None:
    assert event_of("later", b"{}") is None
    assert event_of("error", b'{"skipped":3}') == LostEvent(3)
    done = event_of("completed", b'{"id":"p","status":"failed","error":"no"}')
    assert isinstance(done, CompletedEvent)
    assert (done.prediction.ended, done.prediction.error, done.prediction.logs) == (True, "no", "")
