"""The sending of webhooks, on a fake clock and a fake network: order, times, counts, and what ends it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

import httpx
import msgspec
import pytest
import trio
import trio.testing
from standardwebhooks import Webhook

from cog_trio import __version__
from cog_trio.bridge.protocol import MetricMode
from cog_trio.service import webhook_sender
from cog_trio.service.webhook_sender import TOO_MUCH, TRY_LIMIT, Webhooks
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Bounds, Prediction
from cog_trio.state.snapshot import ALL_EVENTS, WebhookEvent
from cog_trio.state.status import Fact, Outcome

Clock = trio.testing.MockClock
START, OUTPUT, LOGS, COMPLETED = WebhookEvent
URL = "http://receiver.example/hook?key=s3cret"
RETURNED = Outcome(Fact.RETURNED)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@dataclass
class Call:
    """One request that came."""

    at: float
    request: httpx.Request

    @property
    def body(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.request.content)
        return value

    @property
    def status(self) -> str:
        return str(self.body["status"])


@dataclass
class Receiver:
    """Answers with ``replies``, each once, then 200; ``delay`` seconds after the request."""

    delay: float = 0.0
    replies: list[httpx.Response | Exception] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    open: int = 0
    most: int = 0  # requests that were open at once

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(Call(trio.current_time(), request))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await trio.sleep(self.delay)
        finally:
            self.open -= 1
        reply = self.replies.pop(0) if self.replies else httpx.Response(200)
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def statuses(self) -> list[str]:
        return [call.status for call in self.calls]

    @property
    def times(self) -> list[Any]:
        return [pytest.approx(call.at, abs=1e-9) for call in self.calls]

    @property
    def outputs(self) -> list[Any]:
        return [call.body.get("output") for call in self.calls]


@asynccontextmanager
async def sending(
    handler: Callable[[httpx.Request], Coroutine[None, None, httpx.Response]], *, interval: float = 0.5, **options: Any
) -> AsyncIterator[Webhooks]:
    """Webhooks over a fake network; leaving the block waits for all of them."""
    async with trio.open_nursery() as nursery:
        webhooks = Webhooks(
            nursery.start_soon,
            interval=interval,
            now=lambda: NOW,
            chance=lambda: 0.0,
            transport=httpx.MockTransport(handler),
            **options,
        )
        yield webhooks
        await webhooks.wait_idle()
        webhooks.close()


def make(
    *events: WebhookEvent,
    url: str | None = URL,
    trace: tuple[tuple[bytes, bytes], ...] = (),
    log_limit: int = 2**25,
    **options: Any,
) -> Prediction:
    new = NewPrediction(webhook=url, events=frozenset(events) or ALL_EVENTS, trace=trace)
    return Prediction("p", new, output_is_array=True, bounds=Bounds(logs=log_limit), **options)


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


async def run(webhooks: Webhooks, prediction: Prediction, *, outputs: int = 0, every: float = 0.0) -> None:
    """A run that yields numbers at regular times, from time 0 of the run on."""
    webhooks.follow(prediction)
    prediction.dispatched()
    for number in range(outputs):
        prediction.add_output(raw(number))
        await trio.sleep(every)
    prediction.finish(RETURNED)


# What is sent


async def test_a_run_without_output_is_told_of_twice(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, make())
    assert receiver.statuses == ["processing", "succeeded"]


async def test_start_says_what_was_so_at_the_start(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        prediction = make()
        webhooks.follow(prediction)
        prediction.dispatched()
        prediction.append_log("hello\n")
        prediction.add_output(raw(1))
        prediction.record_metric("steps", raw(3), MetricMode.REPLACE)
        prediction.finish(RETURNED)
    start, update, last = (call.body for call in receiver.calls)
    assert {"logs": "", "metrics": {}, "status": "processing", "id": "p"}.items() <= start.items()
    assert "output" not in start
    assert "input" not in start
    assert {"logs": "hello\n", "metrics": {"steps": 3}, "status": "processing", "output": [1]}.items() <= update.items()
    assert "completed_at" not in update
    assert last["metrics"]["predict_time"] == prediction.predict_time


@pytest.mark.covers("http:W22")
async def test_W22_terminal_payload_is_the_sync_reply(autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[httpx.Response(500), httpx.Response(500)])
    async with sending(receiver) as webhooks:
        prediction = make(COMPLETED)
        webhooks.follow(prediction)
        prediction.dispatched()
        prediction.append_log("x\n")
        prediction.add_output(raw({"a": [1, "ä"]}))
        prediction.record_metric("steps", raw(3), MetricMode.REPLACE)
        prediction.finish(Outcome(Fact.RAISED, "ValueError: boom"))
    assert [call.request.content for call in receiver.calls] == [prediction.snapshot()] * 3
    assert receiver.calls[0].body["error"] == "ValueError: boom"


@pytest.mark.covers("http:W42")
async def test_W42_scalar_stays_a_scalar(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, Prediction("p", NewPrediction(webhook=URL)), outputs=1)
    assert receiver.outputs == [None, 0, 0]


async def test_a_run_that_never_began_has_no_start(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        prediction = make()
        webhooks.follow(prediction)
        prediction.finish(Outcome(Fact.CUT))
    assert receiver.statuses == ["canceled"]


@pytest.mark.parametrize(
    ("events", "statuses"),
    [
        ([START], ["processing"]),
        ([OUTPUT], ["processing", "processing"]),
        ([LOGS], ["processing", "processing"]),
        ([COMPLETED], ["succeeded"]),
        ([START, COMPLETED], ["processing", "succeeded"]),
        ([OUTPUT, LOGS], ["processing", "processing"]),
    ],
    ids=lambda value: "+".join(value),
)
async def test_filter(events: list[WebhookEvent], statuses: list[str], autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        prediction = make(*events)
        webhooks.follow(prediction)
        prediction.dispatched()
        for number in range(3):
            prediction.add_output(raw(number))
            prediction.append_log(f"{number}\n")
            await trio.sleep(0.1)
        prediction.finish(RETURNED)
    assert receiver.statuses == statuses


@pytest.mark.covers("lesson:41")
async def test_filter_is_decided_before_anything_is_built(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    snapshot = Prediction.snapshot

    def counted(self: Prediction, *args: Any, **options: Any) -> bytes:
        built.append(options)
        return snapshot(self, *args, **options)

    monkeypatch.setattr(Prediction, "snapshot", counted)
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, make(START, LOGS), outputs=100, every=0.1)
        assert built == []
        await run(webhooks, make(), outputs=100, every=0.01)
    assert len(built) == len(receiver.calls) - 2  # all but the two starts


async def test_nobody_is_told_without_url_or_events(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, Prediction("p", NewPrediction(webhook=None)), outputs=1)
        await run(webhooks, Prediction("p", NewPrediction(webhook=URL, events=frozenset())), outputs=1)
    assert receiver.calls == []


# When


@pytest.mark.covers("D13")
async def test_D13_first_output_at_once_then_one_an_interval_and_the_rest_before_the_end(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, make(), outputs=11, every=0.1)
    assert receiver.times == [0.0, 0.0, 0.5, 1.0, 1.1]
    assert [len(output or []) for output in receiver.outputs] == [0, 1, 6, 11, 11]
    assert receiver.statuses == ["processing"] * 4 + ["succeeded"]


@pytest.mark.covers("D13")
async def test_D13_what_the_last_update_lacked_is_told_before_the_end(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, make(), outputs=3, every=0.1)
    assert receiver.times == [0.0, 0.0, 0.3, 0.3]
    assert receiver.outputs == [None, [0], [0, 1, 2], [0, 1, 2]]
    assert receiver.statuses == ["processing"] * 3 + ["succeeded"]


@pytest.mark.covers("http:W37")
async def test_W37_a_log_line_within_the_interval_is_sent_when_it_ends(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        prediction = make()
        webhooks.follow(prediction)
        prediction.dispatched()
        prediction.append_log("one\n")
        await trio.sleep(0.1)
        prediction.append_log("two\n")
        await trio.sleep(5)
        prediction.finish(RETURNED)
    assert receiver.times == [0.0, 0.0, 0.5, 5.1]
    assert [call.body["logs"] for call in receiver.calls] == ["", "one\n", "one\ntwo\n", "one\ntwo\n"]


@pytest.mark.covers("D13")
async def test_D13_first_output_is_not_kept_back_by_a_log_line(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        prediction = make()
        webhooks.follow(prediction)
        prediction.dispatched()
        prediction.append_log("one\n")
        await trio.sleep(0.1)
        prediction.append_log("two\n")
        await trio.sleep(0.1)
        prediction.add_output(raw(1))
        await trio.sleep(1)
        prediction.finish(RETURNED)
    assert receiver.times == [0.0, 0.0, 0.2, 1.2]


@pytest.mark.covers("http:W38")
async def test_W38_start_is_sent_whatever_the_interval(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver, interval=1e6) as webhooks:
        await run(webhooks, make(), outputs=100, every=0.1)
    assert receiver.statuses == ["processing"] * 3 + ["succeeded"]
    assert receiver.times == [0.0, 0.0, 10.0, 10.0]


async def test_without_an_interval_each_output_is_sent(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver, interval=0.0) as webhooks:
        await run(webhooks, make(OUTPUT), outputs=20, every=0.1)
    assert [len(output) for output in receiver.outputs] == list(range(1, 21))


@pytest.mark.covers("http:W36")
async def test_W36_slow_receiver_gets_one_request_at_a_time_with_all_there_is(autojump_clock: Clock) -> None:
    receiver = Receiver(delay=3.04)
    async with sending(receiver) as webhooks:
        await run(webhooks, make(), outputs=100, every=0.1)
        assert trio.current_time() == pytest.approx(10.0)  # the run did not wait for it
    assert receiver.most == 1
    assert receiver.times == [0.0, 3.04, 6.08, 9.12, 12.16, 15.2]
    assert [len(output or []) for output in receiver.outputs] == [0, 31, 61, 92, 100, 100]
    assert receiver.statuses == ["processing"] * 5 + ["succeeded"]


@pytest.mark.covers("lesson:38")
@pytest.mark.exhaustive
async def test_traffic_grows_with_time_and_size_not_with_chunks(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, make(), outputs=20_000, every=0.0001)
    assert len(receiver.calls) == 7


async def test_receivers_do_not_wait_for_each_other(autojump_clock: Clock) -> None:
    ends: dict[str, float] = {}

    async def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "slow":
            await trio.sleep(20)
        ends[request.url.host] = trio.current_time()
        return httpx.Response(200)

    async with sending(handler) as webhooks:
        await run(webhooks, make(url="http://slow/"))
        await run(webhooks, make(url="http://quick/"))
    assert ends == {"quick": 0.0, "slow": 40.0}


# Headers


@pytest.mark.covers("lesson:42")
async def test_headers(autojump_clock: Clock) -> None:
    receiver = Receiver()
    trace = ((b"traceparent", b"00-0AF7-b7ad-01"), (b"tracestate", b"congo=t61rcWkgMzE, x=y"))
    async with sending(receiver, token="t0k3n") as webhooks:
        await run(webhooks, make(trace=trace))
    for call in receiver.calls:
        assert call.request.method == "POST"
        assert str(call.request.url) == URL
        names = ("content-type", "user-agent", "accept", "authorization", "traceparent", "tracestate")
        assert [call.request.headers.get_list(name) for name in names] == [
            ["application/json"],
            [f"cog-trio/{__version__}"],
            ["*/*"],
            ["Bearer t0k3n"],
            ["00-0AF7-b7ad-01"],
            ["congo=t61rcWkgMzE, x=y"],
        ]


async def test_without_token_secret_or_trace_their_headers_are_absent(autojump_clock: Clock) -> None:
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, make())
    sent = set(receiver.calls[0].request.headers)
    assert sent.isdisjoint({"authorization", "traceparent", "tracestate", "cookie", "webhook-id", "webhook-signature"})


async def test_cookies_of_one_receiver_are_not_sent_to_another(autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[httpx.Response(200, headers={"set-cookie": "who=you"})])
    async with sending(receiver) as webhooks:
        await run(webhooks, make())
    assert "cookie" not in receiver.calls[1].request.headers


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def test_signature(autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[httpx.Response(200), httpx.Response(500)])
    async with sending(receiver, secret=SECRET) as webhooks:
        webhooks.now = lambda: datetime.now(timezone.utc)
        await run(webhooks, make())
    for call in receiver.calls:
        assert Webhook(SECRET).verify(call.request.content, dict(call.request.headers)) == call.body
    start, first, second = (call.request.headers["webhook-id"] for call in receiver.calls)
    assert start != first == second


# Failures


@pytest.mark.covers("http:W41")
async def test_W41_completed_is_tried_13_times(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(replies=[httpx.Response(500)] * 20)
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    waits = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 102.4, 102.4]
    assert receiver.times == [sum(waits[:number]) for number in range(13)]
    last = caplog.records[-1]
    assert last.levelno == logging.ERROR
    assert last.__dict__["id"] == "p"
    assert last.getMessage() == (
        "the terminal webhook to http://receiver.example was given up after 13 tries: HTTP 500"
    )
    assert (webhooks.failed, webhooks.lost) == (1, 0)
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_status_that_is_tried_again(status: int, autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[httpx.Response(status)])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert receiver.times == [0.0, 0.2]


@pytest.mark.covers("http:W39")
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 400, 401, 404, 408, 409, 410, 422, 501, 505])
async def test_status_that_is_final(status: int, autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(replies=[httpx.Response(status, headers={"location": "http://receiver.example/other"})])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert len(receiver.calls) == 1
    assert f"given up after 1 tries: HTTP {status}" in caplog.text


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_delivered(status: int, autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(replies=[httpx.Response(status)])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert len(receiver.calls) == 1
    assert caplog.records == []


@pytest.mark.covers("lesson:39")
@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ReadError("cut"), httpx.RemoteProtocolError("bad"), OSError("odd")]
)
async def test_transport_errors_are_tried_again(error: Exception, autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[error, error])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert receiver.times == [0.0, 0.2, pytest.approx(0.6)]


async def test_no_answer_within_30_s_is_a_transport_error(autojump_clock: Clock) -> None:
    receiver = Receiver(delay=31.0)
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
        with trio.move_on_after(30.1):
            await webhooks.wait_idle()
        receiver.delay = 29.0
    assert receiver.times == [0.0, TRY_LIMIT + 0.2]
    assert trio.current_time() == pytest.approx(TRY_LIMIT + 0.2 + 29.0)


async def test_updates_are_never_tried_again(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(replies=[httpx.Response(500)] * 4)
    async with sending(receiver) as webhooks:
        await run(webhooks, make(), outputs=11, every=0.1)
    assert receiver.times == [0.0, 0.0, 0.5, 1.0, 1.1]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert (webhooks.failed, webhooks.lost) == (0, 4)


@pytest.mark.covers("http:W41")
@pytest.mark.parametrize(("status", "after"), [(429, 7.0), (503, 7.0), (500, 0.2)])
async def test_W41_retry_after(status: int, after: float, autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[httpx.Response(status, headers={"retry-after": "7"})])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert receiver.times == [0.0, after]


# What may be on its way at once


OTHER: Final = "http://other.example/hook"
BIG: Final = 100_000  # bytes of an output


async def test_the_oldest_that_waits_for_a_retry_makes_room_for_a_first_try(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook_sender, "RECEIVER_NUMBER", 1)
    receiver = Receiver(replies=[httpx.Response(500)])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
        await trio.sleep(0.1)
        await run(webhooks, make(COMPLETED))
        await webhooks.wait_idle()
    assert receiver.times == [0.0, 0.1]
    assert f"webhooks to http://receiver.example were given up: {TOO_MUCH}" in caplog.text
    assert webhooks.failed == 1


async def test_first_tries_are_bounded_in_bytes_too(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A silent receiver, for which each try takes 30 s: what does not fit is given up before its payload is kept."""
    monkeypatch.setattr(webhook_sender, "RECEIVER_BYTES", 3.5 * BIG)
    receiver = Receiver(delay=1000.0)
    async with sending(receiver) as webhooks:
        for _ in range(10):
            await run(webhooks, big(URL))
        await trio.testing.wait_all_tasks_blocked()
        assert 3 * BIG < webhooks.backlog.size <= 3.5 * BIG
        assert (webhooks.pending, webhooks.failed) == (3, 7)
        await run(webhooks, big(OTHER))
        await trio.testing.wait_all_tasks_blocked()
        assert webhooks.pending == 4, "another receiver has room of its own"
        webhooks.close()
        await webhooks.wait_idle()
        assert (webhooks.backlog.size, webhooks.backlog.number) == (0, 0)


async def test_updates_to_a_silent_receiver_are_bounded_and_leave_room_for_the_end(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "RECEIVER_BYTES", 5 * BIG)
    receiver = Receiver(delay=1000.0)
    async with sending(receiver) as webhooks:
        for _ in range(10):
            await run(webhooks, big(URL, OUTPUT), outputs=1)
        await trio.testing.wait_all_tasks_blocked()
        assert webhooks.backlog.size <= 2.5 * BIG
        assert webhooks.lost == 8
        webhooks.close()


async def test_one_dead_receiver_leaves_the_retries_of_others(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "RECEIVER_BYTES", 3.5 * BIG)
    monkeypatch.setattr(webhook_sender, "TOTAL_BYTES", 4.5 * BIG)
    times: dict[str, list[float]] = {"other.example": [], "receiver.example": []}

    async def answer(request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        calls = times[request.url.host]
        calls.append(trio.current_time())
        healed = request.url.host == "other.example" and len(calls) > 4
        return httpx.Response(200 if healed else 500)

    async with sending(answer) as webhooks:
        for _ in range(20):
            await run(webhooks, big(URL))
        await trio.sleep(10.0)
        for _ in range(2):
            await run(webhooks, big(OTHER))
        await trio.sleep(10.0)
        assert [round(time, 1) for time in times["other.example"]] == [10.0, 10.0, 10.2, 10.2, 10.6, 10.6]
        assert webhooks.failed == 18, "17 had no share, one made room for the other receiver"
        webhooks.close()


async def test_a_payload_over_all_bounds_is_sent_when_it_is_alone(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "RECEIVER_BYTES", BIG / 2)
    monkeypatch.setattr(webhook_sender, "TOTAL_BYTES", BIG / 2)
    receiver = Receiver()
    async with sending(receiver) as webhooks:
        await run(webhooks, big(URL))
    assert receiver.statuses == ["succeeded"]


def big(url: str, *events: WebhookEvent) -> Prediction:
    prediction = make(*(events or (COMPLETED,)), url=url, log_limit=2 * BIG)
    prediction.append_log("x" * BIG)
    return prediction


# Redirects


def to(location: str, status: int = 307) -> httpx.Response:
    return httpx.Response(status, headers={"location": location})


@pytest.mark.covers("http:W39")
@pytest.mark.parametrize("status", [307, 308])
async def test_W39_followed_with_method_body_and_token(status: int, autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[to("/other?x=y", status)])
    async with sending(receiver, token="t0k3n") as webhooks:
        await run(webhooks, make(COMPLETED))
    first, second = receiver.calls
    assert str(second.request.url) == "http://receiver.example/other?x=y"
    assert second.request.method == "POST"
    assert second.request.content == first.request.content
    assert second.request.headers["authorization"] == "Bearer t0k3n"
    assert receiver.times == [0.0, 0.0]


@pytest.mark.covers("http:W39")
async def test_W39_token_stays_at_home(autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[to("http://evil.example/"), to("http://receiver.example/back")])
    async with sending(receiver, token="t0k3n", secret=SECRET) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert ["authorization" in call.request.headers for call in receiver.calls] == [True, False, True]
    assert ["webhook-signature" in call.request.headers for call in receiver.calls] == [True, True, True]


async def test_a_circle_of_redirects_ends(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(replies=[to("/again") for _ in range(50)])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert len(receiver.calls) == 11
    assert "given up after 1 tries: HTTP 307" in caplog.text


async def test_redirect_to_nowhere_is_final(autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[to("ftp://receiver.example/")])
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
    assert len(receiver.calls) == 1


async def test_redirects_share_the_30_s(autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[to("/slow")], delay=20.0)
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
        with trio.move_on_after(25):
            await webhooks.wait_idle()
        receiver.delay = 1.0
    assert receiver.times == [0.0, 20.0, TRY_LIMIT + 0.2]


# Ends


@pytest.mark.covers("http:W13")
async def test_W13_close_gives_up_and_says_so(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(replies=[httpx.Response(500)] * 20)
    async with sending(receiver) as webhooks:
        await run(webhooks, make(COMPLETED))
        with trio.move_on_after(2):
            await webhooks.wait_idle()
        webhooks.close()
        webhooks.close()
    assert trio.current_time() == 2.0
    assert caplog.records[-1].getMessage() == "webhooks to http://receiver.example were given up: the service ends"
    assert (webhooks.failed, webhooks.lost) == (1, 0)
    assert caplog.records[-1].__dict__["id"] == "p"


@pytest.mark.covers("http:W13")
async def test_W13_an_outer_cancellation_leaves_the_terminal_webhook_alone(autojump_clock: Clock) -> None:
    receiver = Receiver(replies=[httpx.Response(500)])
    with trio.CancelScope() as outer:
        async with trio.open_nursery() as nursery:
            webhooks = Webhooks(
                nursery.start_soon, interval=0.5, chance=lambda: 0.0, transport=httpx.MockTransport(receiver)
            )
            await run(webhooks, make(COMPLETED))
            outer.cancel()
            with trio.CancelScope(shield=True):
                await webhooks.wait_idle()
            webhooks.close()
    assert receiver.times == [0.0, 0.2]


async def test_client_that_cant_be_made_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cog_trio.service.webhook_sender.wait_before", lambda *args, **options: 0.0)
    monkeypatch.setenv("ALL_PROXY", "nonsense://x")
    async with trio.open_nursery() as nursery:
        webhooks = Webhooks(nursery.start_soon, interval=0.5)
        await run(webhooks, make())
        await webhooks.wait_idle()
        webhooks.close()
    assert "given up after 13 tries: the HTTP client can't be set up" in caplog.text


async def test_no_client_and_no_task_without_webhooks() -> None:
    started: list[Any] = []
    webhooks = Webhooks(lambda *args: started.append(args), interval=0.5)
    webhooks.follow(Prediction("p"))
    await webhooks.wait_idle()
    webhooks.close()
    assert started == []


async def test_a_proxy_that_needs_a_missing_package_fails_the_webhook(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setattr(webhook_sender, "RETRIES", 0)
    async with trio.open_nursery() as nursery:
        webhooks = Webhooks(nursery.start_soon, interval=0.5)
        await run(webhooks, make(COMPLETED, url="http://127.0.0.1:1/"))
        await webhooks.wait_idle()
        webhooks.close()
    assert webhooks.failed == 1
    assert "the HTTP client can't be set up" in caplog.text
    assert "socksio" in caplog.text
