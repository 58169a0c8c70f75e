"""Predictions over a WebSocket, spoken to by trio-websocket over memory streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from cog_trio.bridge.protocol import LogSource, MetricMode, Mode
from cog_trio.config.settings import Settings
from cog_trio.inputs.validation import InvalidInput
from cog_trio.state.event_log import MAX_FOLLOWERS
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.transport.http.protocol.connection import App, serve_connection
from cog_trio.transport.http.protocol.server_state import ServerState
from cog_trio.transport.http.protocol.websocket import PING, PONG_TIME
from cog_trio.transport.websocket.conversation import Conversation
from tests.transport.http.support import FakeService, app_of, connect, request

Event = dict[str, Any]


@pytest.fixture
async def service() -> FakeService:
    return FakeService(slots=2)


@asynccontextmanager
async def talking(
    app: App, settings: Settings | None = None, path: str = "/predictions/ws", **headers: str
) -> AsyncIterator[Talk]:
    """A WebSocket to the app; its connection has ended when the block is left."""
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, app, ServerState(settings or Settings()), theirs)
            extra = [(name.encode(), value.encode()) for name, value in headers.items()]
            socket = await wrap_client_stream(nursery, cast(Any, ours), "localhost", path, extra_headers=extra)
            yield Talk(socket)
            await socket.aclose()


def handshake(path: str = "/predictions/ws", *headers: str) -> bytes:
    """A request to become a WebSocket."""
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = ("upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13", key)
    return request("GET", path, b"", *upgrade, *headers)


class Talk:
    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket

    async def say(self, message: Any) -> None:
        await self.socket.send_message(message if isinstance(message, str | bytes) else json.dumps(message))

    async def event(self) -> Event:
        event: Event = json.loads(await self.socket.get_message())
        assert list(event) == ["event", "id", "seq", "data"]
        return event

    async def closed(self) -> int:
        """Wait for the server's close; its code."""
        with pytest.raises(ConnectionClosed) as closed:
            await self.event()
        assert closed.value.reason is not None
        return closed.value.reason.code

    async def refusal(self, message: Any) -> Event:
        """Say something, and get the refusal."""
        await self.say(message)
        event = await self.event()
        assert event["event"] == "error"
        assert event["seq"] is None
        return event

    async def start(self, service: FakeService, **message: Any) -> Prediction:
        """Start a prediction that is dispatched at once; its start event has been read."""
        await self.say(message)
        service.created = trio.Event()
        await service.created.wait()
        prediction = list(service.open.values())[-1]
        prediction.dispatched()
        event = await self.event()
        assert (event["event"], event["data"]) == ("start", {"id": prediction.id, "status": "processing"})
        return prediction


async def test_a_message_starts_a_prediction_and_its_events_come_back(service: FakeService) -> None:
    async with talking(app_of(service)) as talk:
        prediction = await talk.start(service, id="a", input={"n": 1}, context={"k": "v"}, webhook="http://h/x")
        assert service.calls[0]["id"] == "a"
        assert service.calls[0]["input"] == b'{"n": 1}'
        assert service.calls[0]["context"] == {"k": "v"}
        assert service.calls[0]["webhook"] == "http://h/x"
        assert prediction.streamed
        assert prediction.watched
        prediction.append_log("hm\n", LogSource.STDOUT)
        prediction.add_output(msgspec.Raw(b'"tok"'))
        prediction.record_metric("m", msgspec.Raw(b"1"), MetricMode.INCREMENT)
        service.finish("a")
        assert [await talk.event() for _ in range(3)] == [
            {"event": "log", "id": "a", "seq": 2, "data": {"source": "stdout", "data": "hm\n"}},
            {"event": "output", "id": "a", "seq": 3, "data": {"chunk": "tok", "index": 0}},
            {"event": "metric", "id": "a", "seq": 4, "data": {"name": "m", "value": 1, "mode": "increment"}},
        ]
        last = await talk.event()
        assert (last["event"], last["seq"], last["data"]) == ("completed", 5, json.loads(prediction.snapshot()))


async def test_an_id_that_runs_is_joined_from_its_beginning(service: FakeService) -> None:
    running = service.create(NewPrediction(id="a"))
    running.dispatched()
    async with talking(app_of(service)) as talk:
        await talk.say({"id": "a", "input": {"ignored": True}})
        assert (await talk.event())["event"] == "start"
        service.finish("a")
        assert (await talk.event())["event"] == "completed"
    assert len(service.calls) == 1


async def test_two_predictions_share_a_socket(service: FakeService) -> None:
    async with talking(app_of(service)) as talk:
        first = await talk.start(service, id="a")
        second = await talk.start(service, id="b")
        second.add_output(msgspec.Raw(b"2"))
        assert (await talk.event())["id"] == "b"
        first.add_output(msgspec.Raw(b"1"))
        assert (await talk.event())["id"] == "a"
        service.finish("b")
        assert (await talk.event())["event"] == "completed"
        assert not first.cancel_requested


async def test_cancel(service: FakeService) -> None:
    async with talking(app_of(service)) as talk:
        prediction = await talk.start(service, id="a")
        await talk.say({"cancel": "a"})
        assert (await talk.refusal({"cancel": "b"}))["data"] == {"error": "Prediction not found", "status": 404}
        assert prediction.cancel_requested


@pytest.mark.covers("D4")
async def test_D4_closing_the_socket_cancels_what_it_started_and_nothing_else(service: FakeService) -> None:
    other = service.create(NewPrediction(id="other", watched=False))
    async with talking(app_of(service)) as talk:
        mine = await talk.start(service, id="mine")
        await talk.say({"id": "other"})
        other.dispatched()
        assert (await talk.event())["id"] == "other"
    assert mine.cancel_requested
    assert not other.cancel_requested
    assert other.event_log.followers == 0


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("{", 400),
        ("", 400),
        (b"\xff", 400),
        ('{"input": ' + "[" * 500 + "]" * 500 + "}", 400),
        ("[]", 422),
        ('"a"', 422),
        ('{"id": 5}', 422),
        ('{"id": ""}', 422),
        ('{"webhook": "nonsense"}', 422),
        ('{"cancel": 5}', 422),
        ('{"cancel": null}', 422),
    ],
)
async def test_a_bad_message_is_an_error_event_and_not_a_close(
    service: FakeService, message: str | bytes, status: int
) -> None:
    async with talking(app_of(service)) as talk:
        event = await talk.refusal(message)
        assert event["data"]["status"] == status
        assert event["data"]["detail"][0]["loc"][0] == "body"
        assert service.calls == []
        await talk.start(service, id="a")


async def test_bytes_are_as_good_as_text(service: FakeService) -> None:
    async with talking(app_of(service)) as talk:
        await talk.say(b'{"cancel": "x"}')
        assert (await talk.event())["data"]["status"] == 404


async def test_refusals_have_the_status_of_http(service: FakeService) -> None:
    async with talking(app_of(service)) as talk:
        service.ready = False
        refusal = await talk.refusal({"id": "a"})
        assert refusal["id"] == "a"
        assert refusal["data"]["status"] == 503
        assert refusal["data"]["error"].startswith("Setup has not finished yet")
        service.ready = True
        service.refusal = InvalidInput([{"loc": ["body", "input", "n"], "msg": "Field required", "type": "x"}])
        assert (await talk.refusal({}))["data"] == {
            "status": 422,
            "detail": [{"loc": ["body", "input", "n"], "msg": "Field required", "type": "x"}],
        }
        service.refusal = None
        service.slots = 0
        refusal = await talk.refusal({})
        assert refusal["data"] == {"status": 409, "error": "At capacity - all prediction slots busy"}
        service.slots = 1
        await talk.start(service, id="a")
        assert (await talk.refusal({"id": "a"}))["data"]["status"] == 409
        assert len(service.calls) == 1


async def test_a_training_is_not_followed(service: FakeService) -> None:
    service.create(NewPrediction(id="t", mode=Mode.TRAIN))
    async with talking(app_of(service)) as talk:
        assert (await talk.refusal({"id": "t"}))["data"]["status"] == 406


async def test_one_follower_too_many(service: FakeService) -> None:
    prediction = service.create(NewPrediction(id="a"))
    for _ in range(MAX_FOLLOWERS):
        prediction.event_log.follow()
    async with talking(app_of(service)) as talk:
        assert (await talk.refusal({"id": "a"}))["data"]["status"] == 429


@pytest.mark.covers("http:W33")
async def test_W33_what_was_lost_is_told(service: FakeService) -> None:
    service.event_log = 3
    prediction = service.create(NewPrediction(id="a"))
    prediction.dispatched()
    for number in range(10):
        prediction.add_output(msgspec.Raw(b"%d" % number))
    async with talking(app_of(service)) as talk:
        await talk.say({"id": "a"})
        event = await talk.event()
        text = "WebSocket stream replay truncated; events were dropped"
        assert event == {"event": "error", "id": "a", "seq": 8, "data": {"error": text, "skipped": 8}}
        assert [(await talk.event())["seq"] for _ in range(3)] == [9, 10, 11]


async def test_all_that_waits_leaves_with_one_send(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking(app_of(service)) as talk:
        prediction = await talk.start(service, id="a")
        sent: list[int] = []
        whole = trio.testing.MemorySendStream.send_all

        async def counted(self: Any, data: bytes) -> None:
            sent.append(len(data))
            await whole(self, data)

        monkeypatch.setattr(trio.testing.MemorySendStream, "send_all", counted)
        for number in range(100):
            prediction.add_output(msgspec.Raw(b"%d" % number))
        assert [(await talk.event())["data"]["index"] for _ in range(100)] == list(range(100))
        assert len(sent) == 1


async def test_a_ping_is_answered_although_nothing_is_sent(service: FakeService) -> None:
    async with talking(app_of(service)) as talk:
        with trio.fail_after(5):
            await talk.socket.ping(b"x")


async def test_the_server_pings(service: FakeService, autojump_clock: trio.testing.MockClock) -> None:
    async with talking(app_of(service)) as talk:
        began = trio.current_time()
        await trio.sleep(3 * PING + 1)
        await talk.start(service, id="a")  # nobody has given up on the other
        assert trio.current_time() - began == 3 * PING + 1
    assert trio.current_time() - began < 4 * PING  # and no ping is waited for at the end


async def test_a_client_that_answers_no_ping_is_given_up(
    nursery: trio.Nursery, service: FakeService, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, app_of(service))
    await client.send(handshake())
    assert (await client.response()).status == 101
    began = trio.current_time()
    await client.eof()
    assert PONG_TIME <= trio.current_time() - began < PONG_TIME + PING


async def test_nothing_is_compressed(nursery: trio.Nursery, service: FakeService) -> None:
    """So that a few bytes can't become many in our memory."""
    client = connect(nursery, app_of(service))
    await client.send(handshake("/predictions/ws", "sec-websocket-extensions: permessage-deflate"))
    response = await client.response()
    assert response.status == 101
    assert "sec-websocket-extensions" not in response.headers


async def test_a_message_over_the_limit_closes_with_1009(
    service: FakeService, autojump_clock: trio.testing.MockClock
) -> None:
    settings = Settings(body_limit=1000)
    async with talking(app_of(service, settings), settings) as talk:
        prediction = await talk.start(service, id="a")
        await talk.say("x" * 1001)
        assert await talk.closed() == 1009
        with trio.fail_after(5):
            await prediction.wait_finished()
    assert prediction.cancel_requested


async def test_drain_closes_a_socket_when_nothing_is_followed_on_it(
    service: FakeService, autojump_clock: trio.testing.MockClock
) -> None:
    async with talking(app_of(service)) as talk:
        await talk.start(service, id="a")
        service.shutdown()
        refusal = await talk.refusal({"id": "b"})
        assert (refusal["data"]["status"], refusal["data"]["error"]) == (503, "Server is shutting down")
        service.finish("a")
        assert (await talk.event())["event"] == "completed"
        assert await talk.closed() == 1001


async def test_what_comes_while_we_close_gets_no_answer(
    service: FakeService, autojump_clock: trio.testing.MockClock
) -> None:
    """Nothing may be sent behind the close, and its sending can take a while."""
    closing, sent = trio.Event(), list[str]()
    coming: Iterator[dict[str, Any]] = iter(
        [{"type": "websocket.connect"}, {"type": "websocket.receive", "bytes": b"{", "text": None}]
    )

    async def receive() -> dict[str, Any]:
        message = next(coming, None)
        if message is None or "text" in message:
            await closing.wait()
        return message or {"type": "websocket.disconnect", "code": 1001}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "websocket.close":
            closing.set()
            await trio.sleep(1)

    service.shutdown()
    await Conversation(service, (), receive, send).run()
    assert sent == ["websocket.accept", "websocket.close"]


@pytest.mark.covers("D41")
@pytest.mark.parametrize("origin", ["http://localhost", "http://page.example"])
async def test_D41_our_own_pages_and_allowed_ones_may_open_it(service: FakeService, origin: str) -> None:
    settings = Settings(cors_origins=("http://page.example",))
    async with talking(app_of(service, settings), settings, origin=origin) as talk:
        await talk.start(service, id="a")


@pytest.mark.covers("D41")
@pytest.mark.parametrize(
    ("path", "origin", "status"),
    [
        ("/predictions/ws", "http://evil.example", 403),
        ("/predictions/x", "http://localhost", 404),
        ("/predictions/ws/", "http://localhost", 404),
    ],
)
async def test_D41_other_pages_may_not_open_it_and_other_paths_are_none(
    nursery: trio.Nursery, service: FakeService, path: str, origin: str, status: int
) -> None:
    client = connect(nursery, app_of(service))
    await client.send(handshake(path, f"origin: {origin}"))
    response = await client.response()
    assert response.status == status
    assert response.json["detail"]
