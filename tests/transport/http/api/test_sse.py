"""Server-sent events over raw HTTP: rows W12, W21, W31 to W34 of the HTTP checklist, D4, D7, D11."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import LogSource, MetricMode, Mode
from cog_trio.config.settings import Settings
from cog_trio.inputs.validation import InvalidInput
from cog_trio.state.event_log import MAX_FOLLOWERS
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.status import Fact
from cog_trio.transport.http.api.sse import SILENCE
from cog_trio.transport.http.protocol.connection import serve_connection
from cog_trio.transport.http.protocol.server_state import ServerState
from tests.transport.http.support import Client, FakeService, Response, app_of, connect, request

SSE = "accept: text/event-stream"
Clock = trio.testing.MockClock


@pytest.fixture
async def service() -> FakeService:
    return FakeService(streaming=True, slots=2)


@pytest.fixture
async def client(nursery: trio.Nursery, service: FakeService) -> Client:
    return connect(nursery, app_of(service))


@dataclass(frozen=True)
class Event:
    id: str
    name: str
    data: Any


class Stream:
    """A reply that lasts, read frame by frame."""

    def __init__(self, client: Client, head: Response) -> None:
        self.client = client
        self.headers = head.headers
        self.text = b""
        self.ended = False

    async def frame(self) -> bytes:
        while b"\n\n" not in self.text:
            if not await self.more():
                raise EOFError(self.text)
        frame, _, self.text = self.text.partition(b"\n\n")
        return frame

    async def more(self) -> bool:
        """One more chunk; False at the end."""
        client = self.client
        while b"\r\n" not in client.buffer:
            await client._more()
        size, _, rest = client.buffer.partition(b"\r\n")
        while len(rest) < int(size, 16) + 2:
            await client._more()
            _, _, rest = client.buffer.partition(b"\r\n")
        self.text += rest[: int(size, 16)]
        client.buffer = rest[int(size, 16) + 2 :]
        self.ended = size == b"0"
        return not self.ended

    async def event(self) -> Event:
        return parsed((await self.frame()).decode())

    async def rest(self) -> list[Event]:
        """All events up to the end."""
        while await self.more():
            pass
        return [parsed(frame) for frame in self.text.decode().split("\n\n")[:-1]]


def parsed(frame: str) -> Event:
    fields = dict(line.split(": ", 1) for line in frame.split("\n"))
    assert list(fields) == ["id", "event", "data"]
    return Event(fields["id"], fields["event"], json.loads(fields["data"]))


async def opened(client: Client, method: str, path: str, *headers: str, body: bytes = b"{}") -> Stream:
    await client.send(request(method, path, body if method != "GET" else b"", SSE, *headers))
    head = await client.response(head=True)
    assert head.status == 200, head
    assert head.headers["content-type"] == "text/event-stream"
    return Stream(client, head)


async def created(service: FakeService, client: Client, id: str = "a") -> tuple[Prediction, Stream]:
    """A prediction that was created by a stream and is dispatched."""
    service.created = trio.Event()
    await client.send(request("PUT", f"/predictions/{id}", b"{}", SSE))
    await service.created.wait()
    prediction = service.open[id]
    prediction.dispatched()
    stream = Stream(client, await client.response(head=True))
    return prediction, stream


def running(service: FakeService, id: str = "a", **options: Any) -> Prediction:
    prediction = service.create(NewPrediction(id=id, **options))
    prediction.dispatched()
    return prediction


# What is sent.


@pytest.mark.covers("http:W32", "lesson:47")
async def test_each_event_as_the_specification_has_it(service: FakeService, client: Client) -> None:
    prediction, stream = await created(service, client)
    assert {name: stream.headers.get(name) for name in ("cache-control", "x-accel-buffering", "vary")} == {
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "vary": "accept, prefer",
    }
    prediction.append_log("out\n", LogSource.STDOUT)
    prediction.append_log("err\r", LogSource.STDERR)
    prediction.record_metric("m.n", msgspec.Raw(b"[1]"), MetricMode.APPEND)
    prediction.add_output(msgspec.Raw(b'{"a":"\\n"}'))
    prediction.add_output(msgspec.Raw(b"null"))
    service.finish("a")
    assert await stream.rest() == [
        Event("run1-1", "start", {"id": "a", "status": "processing"}),
        Event("run1-2", "log", {"source": "stdout", "data": "out\n"}),
        Event("run1-3", "log", {"source": "stderr", "data": "err\r"}),
        Event("run1-4", "metric", {"name": "m.n", "value": [1], "mode": "append"}),
        Event("run1-5", "output", {"chunk": {"a": "\n"}, "index": 0}),
        Event("run1-6", "output", {"chunk": None, "index": 1}),
        Event("run1-7", "completed", json.loads(prediction.snapshot())),
    ]
    assert (await client.request("GET", "/health-check")).status == 200  # the connection goes on


async def test_post_creates_too_and_keeps_what_the_body_says(service: FakeService, client: Client) -> None:
    body = b'{"id":"x","input":{"n":1},"webhook":"http://h/x"}'
    await client.send(request("POST", "/predictions", body, SSE, "prefer: respond-async"))
    await service.created.wait()
    call = service.calls[0]
    assert (call["id"], call["input"], call["webhook"]) == ("x", b'{"n":1}', "http://h/x")
    assert call["watched"], "server-sent events win over Prefer"
    assert service.open["x"].streamed
    service.finish("x")
    stream = Stream(client, await client.response(head=True))
    assert [event.name for event in await stream.rest()] == ["start", "completed"]


@pytest.mark.parametrize("fact", [Fact.RAISED, Fact.CUT])
async def test_a_run_that_does_not_succeed_ends_in_completed_too(
    service: FakeService, client: Client, fact: Fact
) -> None:
    prediction, stream = await created(service, client)
    prediction.add_output(msgspec.Raw(b"1"))
    service.finish("a", fact)
    last = (await stream.rest())[-1]
    assert last.name == "completed"
    assert last.data["status"] == prediction.status
    assert last.data["output"] == 1


async def test_the_first_event_leaves_with_the_head_and_all_that_waits_with_one_send(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    whole = trio.testing.MemorySendStream.send_all

    async def counted(self: Any, data: bytes) -> None:
        sent.append(data)
        await whole(self, data)

    prediction, stream = await created(service, client)
    monkeypatch.setattr(trio.testing.MemorySendStream, "send_all", counted)
    assert stream.client.buffer.count(b"event: start") == 1
    for number in range(500):
        prediction.add_output(msgspec.Raw(b"%d" % number))
    assert (await stream.event()).name == "start"
    assert [(await stream.event()).data["chunk"] for _ in range(500)] == list(range(500))
    assert len(sent) == 1


@pytest.mark.covers("lesson:47")
async def test_silence_is_filled_with_comments(service: FakeService, client: Client, autojump_clock: Clock) -> None:
    prediction, stream = await created(service, client)
    assert (await stream.event()).name == "start"
    began = trio.current_time()
    assert [await stream.frame() for _ in range(2)] == [b": keep-alive"] * 2
    assert trio.current_time() - began == 2 * SILENCE
    await trio.sleep(SILENCE - 1)
    prediction.add_output(msgspec.Raw(b"1"))
    assert (await stream.event()).name == "output"


async def test_the_head_does_not_wait_for_a_run_that_is_slow_to_begin(client: Client, autojump_clock: Clock) -> None:
    stream = await opened(client, "PUT", "/predictions/a")
    assert trio.current_time() < 1
    assert await stream.frame() == b": keep-alive"


# Refusals come before the stream's head (D7, field lesson 46).


async def refused(client: Client, method: str = "PUT", path: str = "/predictions/a", *headers: str) -> Response:
    response = await client.request(method, path, b"{}" if method != "GET" else b"", SSE, *headers)
    assert response.headers["content-type"] == "application/json"
    return response


@pytest.mark.covers("http:W12")
async def test_W12_not_ready_comes_before_not_offered(service: FakeService, client: Client) -> None:
    service.ready = service.streaming = False
    service.method = "run"
    assert (await refused(client)).status == 503
    service.ready = True
    response = await refused(client)
    text = "This model does not support streaming responses. Add @cog.streaming to run() to enable SSE."
    assert (response.status, response.json) == (406, {"error": text, "id": "a"})
    running(service)
    assert (await refused(client)).status == 406
    assert (await refused(client, "GET")).status == 406


@pytest.mark.covers("lesson:46")
async def test_other_refusals(service: FakeService, client: Client) -> None:
    service.refusal = InvalidInput([{"loc": ["body", "input", "n"], "msg": "Field required", "type": "x"}])
    assert (await refused(client)).status == 422
    service.refusal = None
    service.slots = 0
    assert (await refused(client)).status == 409
    service.draining = True
    assert (await refused(client)).status == 503
    assert service.calls == []


@pytest.mark.covers("D18")
async def test_trainings_do_not_stream(service: FakeService, client: Client) -> None:
    service.modes = {Mode.PREDICT, Mode.TRAIN}
    text = "Training endpoints do not support streaming responses."
    response = await refused(client, "PUT", "/trainings/t")
    assert (response.status, response.json["error"]) == (406, text)
    assert service.asked is Mode.TRAIN  # what is counted as refused has its kind
    running(service, "t", mode=Mode.TRAIN)
    assert (await refused(client, "PUT", "/trainings/t")).status == 406
    assert (await refused(client, "PUT", "/predictions/t")).status == 406


@pytest.mark.covers("http:W21")
async def test_W21_accept_with_q_0_is_no_stream(nursery: trio.Nursery, service: FakeService, client: Client) -> None:
    await client.send(request("PUT", "/predictions/a", b"{}", "accept: text/event-stream;q=0"))
    await service.created.wait()
    assert not service.open["a"].streamed
    service.finish("a")
    assert (await client.response()).headers["content-type"] == "application/json"


# Joining and going on.


@pytest.mark.covers("D2")
async def test_D2_put_of_a_running_id_replays_and_follows(service: FakeService, client: Client) -> None:
    prediction = running(service)
    prediction.add_output(msgspec.Raw(b"0"))
    service.draining = True
    stream = await opened(client, "PUT", "/predictions/a")
    assert [(await stream.event()).name for _ in range(2)] == ["start", "output"]
    prediction.add_output(msgspec.Raw(b"1"))
    assert (await stream.event()).data == {"chunk": 1, "index": 1}
    assert len(service.calls) == 1


@pytest.mark.covers("D11")
async def test_D11_get_follows_and_never_creates(service: FakeService, client: Client) -> None:
    response = await refused(client, "GET")
    assert (response.status, response.json) == (404, {"error": "Prediction not found", "id": "a"})
    running(service)
    stream = await opened(client, "GET", "/predictions/a")
    assert (await stream.event()).name == "start"
    service.finish("a")
    assert (await stream.event()).name == "completed"


async def test_head_is_no_stream(service: FakeService, client: Client) -> None:
    running(service)
    response = await client.request("HEAD", "/predictions/a", b"", SSE)
    assert response.headers["content-type"] == "application/json"
    assert service.open["a"].event_log.followers == 0


@pytest.mark.covers("http:W32")
@pytest.mark.parametrize("method", ["PUT", "GET"])
@pytest.mark.parametrize("finished", [False, True])
async def test_W32_last_event_id_goes_on_without_gap_or_repeat(
    service: FakeService, client: Client, method: str, finished: bool
) -> None:
    prediction = running(service)
    for number in range(5):
        prediction.add_output(msgspec.Raw(b"%d" % number))
    if finished:
        service.finish("a")
    stream = await opened(client, method, "/predictions/a", "last-event-id: run1-3")
    if not finished:
        service.finish("a")
    assert [event.id for event in await stream.rest()] == ["run1-4", "run1-5", "run1-6", "run1-7"]
    assert len(service.calls) == 1


@pytest.mark.covers("D6")
async def test_D6_put_of_a_finished_id_without_it_runs_anew(service: FakeService, client: Client) -> None:
    running(service)
    service.finish("a")
    _, stream = await created(service, client)
    assert (await stream.event()).id == "run2-1"


@pytest.mark.covers("D11")
@pytest.mark.parametrize("last", ["run1-1", "run2-9", "x", "run2-"])
async def test_D11_an_id_of_another_run_is_409(service: FakeService, client: Client, last: str) -> None:
    running(service)
    service.finish("a")
    running(service)
    for method in ("PUT", "GET"):
        response = await refused(client, method, "/predictions/a", f"last-event-id: {last}")
        assert (response.status, response.json) == (409, {"error": "Last-Event-ID names no event of this run"})


@pytest.mark.covers("D11")
async def test_D11_last_event_id_never_starts_a_run(service: FakeService, client: Client) -> None:
    assert (await refused(client, "PUT", "/predictions/a", "last-event-id: run1-1")).status == 404
    assert service.calls == []


async def test_who_has_had_everything_is_told_not_to_come_again(service: FakeService, client: Client) -> None:
    running(service)
    service.finish("a")
    response = await client.request("GET", "/predictions/a", b"", SSE, "last-event-id: run1-2")
    assert (response.status, response.body) == (204, b"")
    assert service.finished["a"].event_log.followers == 0
    assert (await client.request("GET", "/predictions/a", b"", SSE, "last-event-id: run1-3")).status == 409


async def test_one_follower_too_many_is_429(service: FakeService, client: Client) -> None:
    prediction = running(service)
    for _ in range(MAX_FOLLOWERS):
        prediction.event_log.follow()
    response = await refused(client, "GET")
    assert (response.status, response.json) == (429, {"error": "Too many stream subscribers"})


@pytest.mark.covers("http:W33", "lesson:48")
async def test_W33_a_late_reader_gets_one_error_and_then_what_is_kept(service: FakeService, client: Client) -> None:
    service.event_log = 2
    prediction = running(service)
    for number in range(5):
        prediction.add_output(msgspec.Raw(b"%d" % number))
    stream = await opened(client, "GET", "/predictions/a")
    service.finish("a")
    text = "SSE stream replay truncated; events were dropped"
    events = await stream.rest()
    assert events[0] == Event("run1-4", "error", {"error": text, "skipped": 4})
    assert [event.id for event in events[1:]] == ["run1-5", "run1-6", "run1-7"]
    assert events[-1].name == "completed"


@pytest.mark.covers("lesson:48")
async def test_without_history_attaching_starts_live(
    service: FakeService, client: Client, autojump_clock: Clock
) -> None:
    service.event_log = 0
    running(service)
    stream = await opened(client, "GET", "/predictions/a")
    assert await stream.frame() == b": keep-alive"
    service.finish("a")
    assert [event.name for event in await stream.rest()] == ["completed"]


# Who leaves (D4).


@pytest.mark.covers("D4")
async def test_D4_the_last_follower_of_a_stream_cancels(nursery: trio.Nursery, service: FakeService) -> None:
    first, second = (connect(nursery, app_of(service)) for _ in range(2))
    prediction, _ = await created(service, first)
    await opened(second, "GET", "/predictions/a")
    await first.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert "a" in service.open
    await second.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert prediction.cancel_requested
    assert prediction.event_log.followers == 0


@pytest.mark.covers("D4")
async def test_D4_a_waiter_keeps_it_alive_too(nursery: trio.Nursery, service: FakeService) -> None:
    first, second = (connect(nursery, app_of(service)) for _ in range(2))
    prediction, _ = await created(service, first)
    await second.send(request("PUT", "/predictions/a", b"{}"))
    await trio.testing.wait_all_tasks_blocked()
    await first.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert not prediction.cancel_requested
    service.finish("a")
    assert (await second.response()).status == 200


@pytest.mark.covers("D4")
async def test_D4_followers_of_other_runs_come_and_go(service: FakeService, client: Client) -> None:
    prediction = running(service)
    await opened(client, "GET", "/predictions/a")
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert prediction.event_log.followers == 0
    assert not prediction.cancel_requested


@pytest.mark.covers("D12")
async def test_a_reader_that_takes_nothing_is_closed_which_counts_as_leaving(
    nursery: trio.Nursery, service: FakeService, autojump_clock: Clock
) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    settings = Settings(write_timeout=5)
    nursery.start_soon(serve_connection, app_of(service, settings), ServerState(settings), theirs)
    await ours.send_all(request("PUT", "/predictions/a", b"{}", SSE))
    await service.created.wait()
    prediction = service.open["a"]
    prediction.dispatched()
    with trio.fail_after(10):
        await prediction.wait_finished()
    assert prediction.cancel_requested
    assert trio.current_time() == 5


async def test_http_1_0_gets_the_stream_until_the_connection_closes(service: FakeService, client: Client) -> None:
    running(service)
    service.finish("a")
    await client.send(b"GET /predictions/a HTTP/1.0\r\naccept: text/event-stream\r\n\r\n")
    text = await client.eof()
    assert b"transfer-encoding" not in text.lower()
    assert text.count(b"event: ") == 2
