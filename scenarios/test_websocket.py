"""Predictions over a WebSocket of a real server; trio-websocket is the client."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from cog_trio.testing import ServeModel


async def say(talk: WebSocketConnection, **message: Any) -> None:
    await talk.send_message(json.dumps(message))


async def hear(talk: WebSocketConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(await talk.get_message())
    return event


async def until_end(talk: WebSocketConnection, count: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Events by prediction until so many have ended."""
    seen: dict[str, list[dict[str, Any]]] = {}
    while count:
        event = await hear(talk)
        seen.setdefault(event["id"], []).append(event)
        count -= event["event"] == "completed"
    return seen


async def test_two_runs_share_a_socket(serve_model: ServeModel) -> None:
    """Given a model with two slots, when two runs are started over one socket and a third, then the two stream side by
    side, the third is refused with 409, and all events are there in order."""
    with trio.fail_after(60):
        async with serve_model("tokens_async.py") as server, server.socket() as talk:
            for id in ("a", "b", "c"):
                await say(talk, id=id, input={"count": 10, "delay": 0.02})
            seen = await until_end(talk, 2)
            assert [(event["event"], event["data"]["status"]) for event in seen.pop("c")] == [("error", 409)]
            for id, events in seen.items():
                assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), id
                chunks = [event["data"]["chunk"] for event in events if event["event"] == "output"]
                assert events[-1]["data"]["output"] == chunks
                assert len(chunks) == 10


async def test_a_plain_model_is_served_too_and_joined_from_another_socket(serve_model: ServeModel) -> None:
    """Given a model that does not offer server-sent events, then a WebSocket has its events, on every socket."""
    with trio.fail_after(60):
        async with (
            serve_model("waits.py") as server,
            server.socket() as first,
            server.socket() as second,
        ):
            await say(first, id="a", input={"name": "it", "yields": 3, "seconds": 0.3})
            assert (await hear(first))["event"] == "start"
            await say(second, id="a")
            (mine,) = (await until_end(first)).values()
            (theirs,) = (await until_end(second)).values()
            assert mine == theirs[1:]
            assert mine[-1]["data"]["status"] == "succeeded"


async def test_closing_the_socket_cancels_and_so_does_a_message(serve_model: ServeModel) -> None:
    """Given a run of 30 s, when it is cancelled by message, and another one by closing, then both end canceled."""
    with trio.fail_after(60):
        async with serve_model("waits.py") as server:
            async with server.socket() as talk:
                await say(talk, id="a", input={"seconds": 30})
                assert [(await hear(talk))["event"] for _ in range(2)] == ["start", "log"]
                await say(talk, cancel="a")
                (events,) = (await until_end(talk)).values()
                assert events[-1]["data"]["status"] == "canceled"
                assert "cleaned up" in events[-1]["data"]["logs"]
                await say(talk, id="b", input={"seconds": 30})
                assert (await hear(talk))["event"] == "start"
            assert (await server.finished("b"))["status"] == "canceled"
            assert (await server.health())["status"] == "READY"


async def test_many_events_arrive_whole_and_a_stop_closes_the_socket(serve_model: ServeModel) -> None:
    """Given 20,000 yields, then all arrive; when the server stops, the socket is closed with 1001 at once."""
    with trio.fail_after(60):
        async with serve_model("tokens.py") as server, server.socket() as talk:
            await say(talk, id="a", input={"count": 20_000})
            (events,) = (await until_end(talk)).values()
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
            assert sum(event["event"] == "output" for event in events) == 20_000, events[-1]
            server.process.terminate()
            with pytest.raises(ConnectionClosed) as closed:
                await hear(talk)
            assert closed.value.reason is not None
            assert closed.value.reason.code == 1001
            assert await server.ended(5) == 0
