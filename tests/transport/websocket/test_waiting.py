"""Predictions that wait for a slot (D5), over a WebSocket, on a service with a fake worker."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio.testing

from cog_trio.service.service import PredictionService
from tests.service.test_service import Clock, no_threads, temporary_folder
from tests.transport.http.support import app_of
from tests.transport.http.test_queue import SETTINGS, service
from tests.transport.websocket.test_conversation import talking

__all__ = ["no_threads", "service", "temporary_folder"]
TEXT = "No prediction slot became free within 7 s"


def app(service: PredictionService) -> Any:
    return app_of(cast(Any, service), SETTINGS)


@pytest.mark.covers("D5")
async def test_D5_who_waits_too_long_gets_an_error_with_the_status_of_http(
    autojump_clock: Clock, service: PredictionService
) -> None:
    async with talking(app(service), SETTINGS) as talk:
        start = trio.current_time()
        await talk.say({"id": "a"})
        event = await talk.event()
        assert trio.current_time() - start == pytest.approx(7.0)
        assert (event["event"], event["id"], event["seq"]) == ("error", "a", None)
        assert event["data"] == {"error": TEXT, "status": 409, "id": "a"}
        refused = await talk.refusal({"id": "runs", "cancel": 5})
        assert refused["data"]["status"] == 422, "the conversation goes on"


@pytest.mark.covers("D5")
async def test_D5_one_too_many_is_refused_at_once_and_the_first_goes_on(
    autojump_clock: Clock, service: PredictionService
) -> None:
    async with talking(app(service), SETTINGS) as talk:
        await talk.say({"id": "a"})
        event = await talk.refusal({"id": "b"})
        assert (event["id"], event["data"]["status"]) == ("b", 409)
        assert service.health().queued == 1
        service.cancel("runs")
        started = await talk.event()
        assert (started["event"], started["id"]) == ("start", "a")
        assert service.health().queued == 0


@pytest.mark.covers("D5")
async def test_D5_a_drain_refuses_who_waits_and_the_socket_closes(
    autojump_clock: Clock, service: PredictionService
) -> None:
    async with talking(app(service), SETTINGS) as talk:
        await talk.say({"id": "a"})
        await trio.testing.wait_all_tasks_blocked()
        service.shutdown()
        event = await talk.event()
        assert event["event"] == "error"
        assert event["data"] == {"error": "Server is shutting down", "status": 503, "id": "a"}
        assert service.health().draining
        assert await talk.closed() == 1001


@pytest.mark.covers("D5")
async def test_D5_who_leaves_has_left_the_queue(autojump_clock: Clock, service: PredictionService) -> None:
    async with talking(app(service), SETTINGS) as talk:
        await talk.say({"id": "a"})
        await trio.testing.wait_all_tasks_blocked()
        prediction = service.running("a")
        assert prediction is not None
        assert prediction.queued
    await prediction.wait_finished()
    assert prediction.status.value == "canceled"
    assert service.health().queued == 0
