"""Webhooks as the service sends them: after the slot is free, beside everything else, and within a grace at its end."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.net import http_client
from cog_trio.service import webhook_sender
from cog_trio.service.open_service import open_service
from cog_trio.service.service import PredictionService
from cog_trio.service.shutdown import STOP_GRACE
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import AlreadyRunning, AtCapacity
from cog_trio.state.snapshot import WebhookEvent
from cog_trio.testing.fakes import echo, exit_9, open_fake_worker, stall

Clock = trio.testing.MockClock
COMPLETED = frozenset({WebhookEvent.COMPLETED})
URL = "http://receiver.example/hook"


class Receiver:
    """Notes time, status and what the service says of itself when a webhook comes."""

    def __init__(self) -> None:
        self.came: list[tuple[Any, str, str]] = []
        self.service: PredictionService | None = None
        self.status = 200
        self.delay = 0.0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        assert self.service is not None
        status = json.loads(request.content)["status"]
        self.came.append((pytest.approx(trio.current_time()), status, self.service.health().status))
        await trio.sleep(self.delay)
        return httpx.Response(self.status)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Receiver:
    async def run_sync(function: Callable[..., Any], *args: Any, **_: Any) -> Any:  # threads know no fake clock
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = Receiver()

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
        async with http_client.open_client(**{**options, "transport": httpx.MockTransport(mine)}) as real:
            yield real

    monkeypatch.setattr(webhook_sender, "open_client", opened)
    return mine


@asynccontextmanager
async def serving(
    receiver: Receiver, behaviour: Any = echo, *, slots: int = 1, **settings: Any
) -> AsyncIterator[PredictionService]:
    async with open_fake_worker(behaviour, concurrency=slots) as fake:
        fake.inputs = None
        async with open_service("m.py", worker=fake, settings=Settings(**settings)) as service:
            receiver.service = service
            await service.wait_started()
            yield service


@pytest.mark.covers("http:W1")
async def test_W1_the_slot_is_free_when_the_terminal_webhook_comes(receiver: Receiver, autojump_clock: Clock) -> None:
    async with serving(receiver) as service:
        prediction = service.create(NewPrediction(webhook=URL))
        await prediction.wait_finished()
    assert receiver.came[0][1] == "processing"
    assert receiver.came[-1] == (0.0, "succeeded", "READY")


async def test_slot_and_health_do_not_wait_for_a_receiver(receiver: Receiver, autojump_clock: Clock) -> None:
    receiver.delay = 29.0
    async with serving(receiver, webhook_grace=100.0) as service:
        for _ in range(5):
            await service.create(NewPrediction(webhook=URL)).wait_finished()
            assert service.health().status == "READY"
        assert trio.current_time() == 0.0
    assert [status for _, status, _ in receiver.came].count("succeeded") == 5


async def test_refused_creates_have_no_webhook(receiver: Receiver, autojump_clock: Clock) -> None:
    async with serving(receiver, stall) as service:
        running = service.create(NewPrediction(id="a"))
        with pytest.raises(AlreadyRunning):
            service.create(NewPrediction(id="a", webhook=URL))
        with pytest.raises(AtCapacity):
            service.create(NewPrediction(id="b", webhook=URL))
        running.cancel()
    assert receiver.came == []


async def test_drain_says_for_how_many_it_waits(
    receiver: Receiver, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 503
    caplog.set_level("INFO", "cog_trio.service")
    async with serving(receiver, webhook_grace=1.0) as service:
        await service.create(NewPrediction(webhook=URL)).wait_finished()
    assert "shutdown: up to 1 s for the last webhooks of 1 predictions" in caplog.messages


@pytest.mark.covers("http:W13")
async def test_W13_drain_delivers_within_the_grace(receiver: Receiver, autojump_clock: Clock) -> None:
    """The receiver fails for a while after the prediction is done; the drain waits for its recovery."""
    receiver.status = 503
    async with serving(receiver, webhook_grace=10.0) as service, trio.open_nursery() as nursery:

        async def recover() -> None:
            await trio.sleep(3)
            receiver.status = 200

        nursery.start_soon(recover)
        await service.create(NewPrediction(webhook=URL, events=COMPLETED)).wait_finished()
        service.shutdown()
        await service.wait_stopped()
        assert 3.0 < trio.current_time() < 10.0
    assert len(receiver.came) > 3


@pytest.mark.covers("http:W13")
async def test_W13_what_is_not_delivered_within_the_grace_is_told(
    receiver: Receiver, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 503
    async with serving(receiver, webhook_grace=4.0) as service:
        await service.create(NewPrediction(id="p", webhook=URL, events=COMPLETED)).wait_finished()
    assert trio.current_time() == pytest.approx(4.0)
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in told] == [
        "webhooks to http://receiver.example were given up: the service ends"
    ]
    assert told[0].__dict__["id"] == "p"


@pytest.mark.covers("http:W13")
async def test_W13_the_grace_counts_from_the_end_of_the_work(receiver: Receiver, autojump_clock: Clock) -> None:
    """What the drain had to cancel is told like everything else."""
    receiver.delay = 1.0
    async with serving(receiver, stall, drain_grace=20.0, webhook_grace=2.0) as service:
        service.create(NewPrediction(webhook=URL, events=COMPLETED))
        await trio.testing.wait_all_tasks_blocked()
    assert receiver.came == [(20.0, "canceled", "READY")]
    assert trio.current_time() == pytest.approx(21.0)


async def test_a_third_shutdown_gives_webhooks_up(receiver: Receiver, autojump_clock: Clock) -> None:
    receiver.status = 503
    async with serving(receiver, webhook_grace=1000.0) as service:
        await service.create(NewPrediction(webhook=URL, events=COMPLETED)).wait_finished()
        service.shutdown()
        await trio.sleep(5)
        service.shutdown()
        await service.wait_stopped()
    assert trio.current_time() == pytest.approx(5.0)


@pytest.mark.covers("http:W13")
async def test_W13_a_cancelled_embedder_still_tells(receiver: Receiver, autojump_clock: Clock) -> None:
    receiver.delay = 0.5
    async with open_fake_worker(stall) as fake:
        fake.inputs = None
        with trio.move_on_after(1) as scope:
            async with open_service("m.py", worker=fake) as service:
                receiver.service = service
                await service.wait_started()
                service.create(NewPrediction(webhook=URL, events=COMPLETED))
                await trio.sleep_forever()
    assert scope.cancelled_caught
    assert [status for _, status, _ in receiver.came] == ["canceled"]
    assert trio.current_time() < 1 + STOP_GRACE


async def test_a_crash_is_told(receiver: Receiver, autojump_clock: Clock) -> None:
    async with serving(receiver, exit_9) as service:
        prediction = service.create(NewPrediction(webhook=URL))
        await prediction.wait_finished()
        assert prediction.status.value == "failed"
    assert receiver.came[-1][1:] == ("failed", "DEFUNCT")


async def test_settings_reach_the_wire(
    receiver: Receiver, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[httpx.Request] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200)

    monkeypatch.setattr(Receiver, "__call__", lambda self, request: handler(request))
    async with serving(receiver, webhook_auth_token="t0k3n", webhook_secret="whsec_c2VjcmV0") as service:
        await service.create(NewPrediction(webhook=URL, trace=((b"traceparent", b"00-1-2-01"),))).wait_finished()
    for request in seen:
        assert request.headers["authorization"] == "Bearer t0k3n"
        assert request.headers["traceparent"] == "00-1-2-01"
        assert request.headers["webhook-signature"].startswith("v1,")
