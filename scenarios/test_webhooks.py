"""Webhooks to a real receiver: quick, slow, failing, rude and absent. Order and counts are exact, and neither the slot
nor health ever waits for it."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from standardwebhooks import Webhook as Verifier

from cog_trio.testing import Reply, ServeModel, Server, WebhookReceiver, open_webhook_receiver
from cog_trio.testing.server_process import ENDS
from scenarios.processes import worker_of

ASYNC = {"prefer": "respond-async"}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FAST = {"COG_THROTTLE_RESPONSE_INTERVAL": "0.2"}


async def begin(server: Server, id: str, receiver: WebhookReceiver | str, input: Any = None, **fields: Any) -> None:
    """An async prediction with a webhook."""
    url = receiver if isinstance(receiver, str) else f"{receiver.url}/hook"
    body = {"input": {"name": id, **(input or {})}, "webhook": url, **fields}
    reply = await server.client.put(f"/predictions/{id}", json=body, headers=ASYNC)
    assert reply.status_code == 202, reply.text


def check_order(receiver: WebhookReceiver, id: str) -> None:
    """One after the other, each at least as far as the one before, the terminal one once and last."""
    bodies = [webhook.json() for webhook in receiver.of(id) if not webhook.reply.closes]
    assert bodies[0]["status"] == "processing"
    assert receiver.ends(id) == receiver.of(id)[-1:]
    for before, after in pairwise(bodies):
        if "output" in before:
            assert after["output"][: len(before["output"])] == before["output"]
        assert after["logs"].startswith(before["logs"])
    assert all("input" not in body for body in bodies)


@pytest.mark.covers("http:W36", "http:W37", "lesson:37")
async def test_W36_W37_quick_receiver(serve_model: ServeModel, webhook_receiver: WebhookReceiver) -> None:
    """Given a run that yields 250 times in 3 seconds, when it is told to a quick receiver every 0.2 s, then start,
    the first output at once, some more, all of it, and the terminal state come in order, one at a time."""
    with trio.fail_after(60):
        async with serve_model("waits.py", env=FAST) as server:
            began = trio.current_time()
            await begin(server, "p", webhook_receiver, {"yields": 250, "seconds": 0.1})
            webhooks = await webhook_receiver.until("p")
            took = trio.current_time() - began
            check_order(webhook_receiver, "p")
            assert webhook_receiver.most == 1
            start, first, *updates, whole, last = (webhook.json() for webhook in webhooks)
            assert "output" not in start
            assert len(first["output"]) < len(last["output"])
            assert updates
            assert whole["output"] == last["output"]
            assert len(last["output"]) == 251
            assert whole["logs"] == last["logs"]
            assert whole["status"] == "processing"
            assert len([first, *updates]) <= took / 0.2 + 1  # each pair could be close, where the receiver was held up
            state = await server.look("p")
            state.pop("input")
            assert last == state


@pytest.mark.covers("http:W22", "lesson:40")
async def test_W22_sync_reply_is_the_terminal_webhook(
    serve_model: ServeModel, webhook_receiver: WebhookReceiver
) -> None:
    """Given a model that fails after printing and recording, when it is asked synchronously, then the reply and the
    terminal webhook are the same bytes."""
    with trio.fail_after(60):
        async with serve_model("state.py") as server:
            reply = await server.predict({"fail": True}, id="p", webhook=webhook_receiver.url)
            assert reply.status_code == 200
            assert reply.json()["metrics"]["name"] == "?"
            webhooks = await webhook_receiver.until("p")
            assert webhooks[-1].content == reply.content
            check_order(webhook_receiver, "p")


async def test_filter(serve_model: ServeModel, webhook_receiver: WebhookReceiver) -> None:
    """Given filters, when runs end, then only what was asked for came, and nothing for an empty filter."""
    with trio.fail_after(60):
        async with serve_model("waits.py", env=FAST) as server:
            input = {"yields": 40}
            await begin(server, "none", webhook_receiver, input, webhook_events_filter=[])
            await begin(server, "end", webhook_receiver, input, webhook_events_filter=["completed"])
            await begin(server, "both", webhook_receiver, input, webhook_events_filter=["start", "completed"])
            for id in ("none", "end", "both"):
                await server.finished(id)
            await webhook_receiver.until("end")
            await webhook_receiver.until("both")
            assert [len(webhook_receiver.of(id)) for id in ("none", "end", "both")] == [0, 1, 2]


@pytest.mark.covers("lesson:39")
async def test_slow_receiver_costs_neither_slot_nor_health(
    serve_model: ServeModel, webhook_receiver: WebhookReceiver
) -> None:
    """Given a receiver that takes 0.5 s for each request, when a run of half a second is told to it, then its slot is
    free long before the last webhook, and requests never overlap."""
    with trio.fail_after(60):
        webhook_receiver.usual = Reply(delay=0.5)
        async with serve_model("echo.py") as server:
            for number in range(3):
                id = f"p{number}"
                reply = await server.predict({"text": "x"}, id=id, webhook=webhook_receiver.url)
                assert reply.json()["status"] == "succeeded"  # no 409: the slot came back at once
                assert (await server.health())["status"] == "READY"
            assert not any(webhook.json()["status"] in ENDS for webhook in webhook_receiver.came)
            for number in range(3):
                await webhook_receiver.until(f"p{number}")
                check_order(webhook_receiver, f"p{number}")
                assert len(webhook_receiver.of(f"p{number}")) == 3


@pytest.mark.covers("http:W41")
async def test_W41_failures_are_tried_again_and_retry_after_is_heard(
    serve_model: ServeModel, webhook_receiver: WebhookReceiver
) -> None:
    """Given a receiver that answers 500, then 429 with Retry-After 1, then hangs up, when a run ends, then its
    terminal webhook comes four times with the same bytes, with the waits that were asked for."""
    with trio.fail_after(60):
        webhook_receiver.script = [Reply(500), Reply(429, (("retry-after", "1"),)), Reply(closes=True)]
        async with serve_model("waits.py") as server:
            await begin(server, "p", webhook_receiver, webhook_events_filter=["completed"])
            webhooks = await webhook_receiver.until("p", 4)
            assert len({webhook.content for webhook in webhooks}) == 1
            waits = [after.at - before.at for before, after in pairwise(webhooks)]
            assert waits[0] >= 0.19
            assert waits[1] >= 0.99
            assert waits[2] >= 0.79
            await server.until("READY")


async def test_updates_are_not_tried_again(serve_model: ServeModel, webhook_receiver: WebhookReceiver) -> None:
    """Given a receiver that refuses everything, when a run is told to it, then each of its states came once."""
    with trio.fail_after(60):
        webhook_receiver.usual = Reply(500)
        async with serve_model("waits.py") as server:
            events = ["start", "output", "logs"]
            await begin(server, "p", webhook_receiver, {"yields": 3, "seconds": 1}, webhook_events_filter=events)
            assert (await server.finished("p"))["status"] == "succeeded"
            assert await server.stop() == 0
            states = [webhook.content for webhook in webhook_receiver.of("p")]
            assert 2 <= len(states) <= 5  # a slow machine sends fewer
            assert len(set(states)) == len(states)


@pytest.mark.covers("http:W39")
async def test_W39_other_redirects_are_failures(serve_model: ServeModel, webhook_receiver: WebhookReceiver) -> None:
    """Given a receiver that answers 302, when a run ends, then the redirect is not followed and not tried again."""
    with trio.fail_after(60):
        async with open_webhook_receiver() as target, serve_model("waits.py") as server:
            webhook_receiver.usual = Reply(302, (("location", f"{target.url}/other"),))
            await begin(server, "p", webhook_receiver, webhook_events_filter=["completed"])
            await webhook_receiver.until("p")
            await until_logged(server, "given up after 1 tries: HTTP 302", "p")
            assert len(webhook_receiver.came) == 1
            assert target.came == []


@pytest.mark.covers("http:W39")
async def test_W39_redirect_to_another_host_goes_without_the_token(
    serve_model: ServeModel, webhook_receiver: WebhookReceiver
) -> None:
    """Given a token and a receiver that answers 307 to another host, when a run ends, then the other gets the same
    POST without the token."""
    with trio.fail_after(60):
        env = {"WEBHOOK_AUTH_TOKEN": "t0k3n"}
        async with open_webhook_receiver() as target, serve_model("waits.py", env=env) as server:
            webhook_receiver.usual = Reply(307, (("location", f"{target.url}/other"),))
            await begin(server, "p", webhook_receiver)
            await target.until("p")
            assert len(webhook_receiver.came) == len(target.came)
            for first, second in zip(webhook_receiver.came, target.came, strict=True):
                assert first.headers["authorization"] == "Bearer t0k3n"
                assert "authorization" not in second.headers
                assert (second.method, second.path, second.content) == ("POST", "/other", first.content)


async def test_headers_trace_and_signature(serve_model: ServeModel, webhook_receiver: WebhookReceiver) -> None:
    """Given a signing secret and a request with trace context, when a run is told, then each webhook carries the trace
    as it came, and a signature that Standard Webhooks accept."""
    with trio.fail_after(60):
        trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b, c=d"}
        async with serve_model("waits.py", "--webhook-secret", SECRET) as server:
            body = {"id": "p", "input": {"name": "ä"}, "webhook": webhook_receiver.url}
            await server.client.post("/predictions", json=body, headers=trace)
            for webhook in await webhook_receiver.until("p"):
                assert webhook.headers["content-type"] == "application/json"
                assert webhook.headers["user-agent"].startswith("cog-trio/")
                assert trace.items() <= webhook.headers.items()
                assert Verifier(SECRET).verify(webhook.content, webhook.headers) == webhook.json()
            assert "whsec" not in str(server.log)


async def test_absent_receiver(serve_model: ServeModel) -> None:
    """Given a receiver that nobody listens at, when predictions name it, then they run as ever, health is READY, and
    the server leaves within its grace and says what it gave up."""
    with trio.fail_after(60):
        async with open_webhook_receiver() as receiver:
            url = receiver.url
        async with serve_model("echo.py", "--webhook-grace", "0.5") as server:
            for number in range(20):
                reply = await server.predict({"text": "x"}, id=f"p{number}", webhook=f"{url}/?key=s3cret")
                assert reply.json()["status"] == "succeeded"
            assert (await server.health())["status"] == "READY"
            assert await server.stop() == 0
            for number in range(20):
                assert "given up" in "".join(e["message"] for e in server.log if e.get("prediction_id") == f"p{number}")
            assert "s3cret" not in str(server.log)


@pytest.mark.covers("http:W13")
async def test_W13_terminal_webhooks_are_delivered_before_the_server_leaves(
    serve_model: ServeModel, webhook_receiver: WebhookReceiver
) -> None:
    """Given an async prediction in flight, when SIGTERM comes, then it ends, its terminal webhook is delivered although
    the receiver fails first, and the server exits with 0."""
    with trio.fail_after(60):
        webhook_receiver.usual = Reply(delay=0.2)
        async with serve_model("waits.py") as server:
            await begin(server, "p", webhook_receiver, {"seconds": 1}, webhook_events_filter=["completed"])
            await server.until_logs("p", "p started")
            webhook_receiver.script = [Reply(503), Reply(closes=True)]
            assert await server.stop() == 0
            assert [webhook.json()["status"] for webhook in webhook_receiver.of("p")] == ["succeeded"] * 3


@pytest.mark.covers("http:W13")
async def test_W13_what_is_cancelled_by_the_drain_is_told_too(
    serve_model: ServeModel, webhook_receiver: WebhookReceiver
) -> None:
    """Given a prediction that outlives the drain grace, when the server stops, then it is told as canceled."""
    with trio.fail_after(60):
        async with serve_model("waits.py", "--drain-grace", "0.2") as server:
            await begin(server, "p", webhook_receiver, {"seconds": 60})
            await server.until_logs("p", "p started")
            assert await server.stop() == 0
            check_order(webhook_receiver, "p")
            assert webhook_receiver.of("p")[-1].json()["status"] == "canceled"


@pytest.mark.covers("lesson:43")
async def test_a_crash_of_the_worker_is_told(serve_model: ServeModel, webhook_receiver: WebhookReceiver) -> None:
    """Given an async prediction, when its worker is killed, then the terminal webhook says failed, and why."""
    with trio.fail_after(60):
        async with serve_model("waits.py") as server:
            await begin(server, "p", webhook_receiver, {"seconds": 60})
            await server.until_logs("p", "p started")
            worker_of(server).send_signal(signal.SIGKILL)
            last = (await webhook_receiver.until("p"))[-1].json()
            assert last["status"] == "failed"
            assert last["error"].startswith("Worker died: signal 9")
            assert "p started" in last["logs"]


@pytest.mark.covers("http:W16")
async def test_W16_token_that_no_header_can_carry(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a token with a line break, when the server is started, then it says so on one line, without the token, and
    exits with 2."""
    process = await trio.run_process(
        ["python", "-m", "cog_trio", "serve", "scenarios/models/echo.py", "--port", "0"],
        env={"PATH": f"{Path(__import__('sys').executable).parent}", "WEBHOOK_AUTH_TOKEN": "s3c\nret"},
        capture_stderr=True,
        check=False,
    )
    assert process.returncode == 2
    assert process.stderr.decode().splitlines() == [
        "cog-trio: WEBHOOK_AUTH_TOKEN: expected printable ASCII without blanks at its ends"
    ]


async def until_logged(server: Server, text: str, id: str) -> None:
    """Wait until the server has said this about a prediction."""
    with trio.fail_after(10):
        while not any(text in entry.get("message", "") and entry.get("prediction_id") == id for entry in server.log):
            await trio.sleep(0.02)
