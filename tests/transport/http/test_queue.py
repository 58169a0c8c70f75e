"""Requests whose predictions wait for a slot (D5), over raw HTTP, on a service with a fake worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.observe.prometheus import Metrics
from cog_trio.service.open_service import open_service
from cog_trio.service.service import PredictionService
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.testing.fakes import deaf, open_fake_worker, stall
from cog_trio.transport.http.routes import make_app
from tests.service.test_service import Clock, no_threads, temporary_folder
from tests.transport.http.support import Client, connect, request

__all__ = ["no_threads", "temporary_folder"]
SSE = "accept: text/event-stream"
ASYNC = "prefer: respond-async"
TIMED_OUT = {"error": "No prediction slot became free within 7 s", "status": "failed", "id": "a"}
SHUTTING_DOWN = {"error": "Server is shutting down", "status": "failed", "id": "a"}
SETTINGS = Settings(queue=1, queue_timeout=7.0)


@pytest.fixture
async def service() -> AsyncIterator[PredictionService]:
    """One slot, which is taken by the prediction ``runs``, and one place to wait."""
    async with open_fake_worker(stall) as worker:
        worker.inputs = None
        worker.streaming = True
        async with open_service("m.py", worker=worker, settings=SETTINGS) as service:
            await service.wait_started()
            service.create(NewPrediction(id="runs"))
            yield service


@pytest.fixture
async def client(nursery: trio.Nursery, service: PredictionService) -> Client:
    return connect(nursery, make_app(service, SETTINGS, Metrics(service), loopback=True))


@pytest.mark.covers("D5")
async def test_a_request_that_waits_gets_409_when_its_time_is_over(
    autojump_clock: Clock, client: Client, service: PredictionService
) -> None:
    start = trio.current_time()
    response = await client.request("PUT", "/predictions/a")
    assert (response.status, response.json) == (409, TIMED_OUT)
    assert trio.current_time() - start == 7.0
    assert (await client.request("GET", "/predictions/a")).json["status"] == "failed"


@pytest.mark.covers("D5")
async def test_a_stream_gets_409_when_its_time_is_over(autojump_clock: Clock, client: Client) -> None:
    response = await client.request("PUT", "/predictions/a", b"", SSE)
    assert (response.status, response.json) == (409, TIMED_OUT)


@pytest.mark.covers("D5", "lesson:43")
async def test_async_is_accepted_and_fails_when_its_time_is_over(autojump_clock: Clock, client: Client) -> None:
    response = await client.request("PUT", "/predictions/a", b"", ASYNC)
    assert (response.status, response.json) == (202, {"id": "a", "status": "starting"})
    assert (await client.request("GET", "/predictions/a")).json["status"] == "starting"
    seen = (await client.request("GET", "/predictions/a", b"", "prefer: wait=60")).json
    assert (seen["status"], seen["error"]) == ("failed", TIMED_OUT["error"])


async def test_one_too_many_is_refused_at_once(autojump_clock: Clock, client: Client) -> None:
    assert (await client.request("PUT", "/predictions/a", b"", ASYNC)).status == 202
    start = trio.current_time()
    response = await client.request("PUT", "/predictions/b")
    assert (response.status, response.json["error"]) == (409, "At capacity - all prediction slots busy")
    assert trio.current_time() == start


@pytest.mark.covers("D5")
async def test_who_waits_for_one_that_is_refused_after_a_moment_finds_none(
    autojump_clock: Clock, nursery: trio.Nursery
) -> None:
    """Its create waits for a slot that is being freed, in vain: no prediction has failed, there was none."""
    settings = Settings()
    async with open_fake_worker(deaf) as worker:
        worker.inputs = None
        async with open_service("m.py", worker=worker, settings=settings) as service:
            await service.wait_started()
            service.create(NewPrediction(id="runs"))
            await trio.testing.wait_all_tasks_blocked()
            service.cancel("runs")
            app = make_app(service, settings, Metrics(service), loopback=True)
            creates, waits = connect(nursery, app), connect(nursery, app)
            await creates.send(request("PUT", "/predictions/a"))
            await trio.testing.wait_all_tasks_blocked()
            await waits.send(request("GET", "/predictions/a", b"", "prefer: wait=60"))
            await trio.testing.wait_all_tasks_blocked()
            assert service.running("a") is not None
            assert ((await creates.response()).status, (await waits.response()).status) == (409, 404)
            worker.exit(-9)


@pytest.mark.covers("D5")
async def test_a_join_of_a_queued_one_waits_with_it(
    autojump_clock: Clock, client: Client, service: PredictionService
) -> None:
    await client.request("PUT", "/predictions/a", b"", ASYNC)
    again = await client.request("PUT", "/predictions/a", b"", ASYNC)
    assert (again.status, again.json["status"]) == (202, "starting")
    response = await client.request("PUT", "/predictions/a")
    assert (response.status, response.json) == (409, TIMED_OUT)


@pytest.mark.parametrize("accept", ["accept: application/json", SSE])
async def test_a_drain_refuses_who_waits(
    autojump_clock: Clock, client: Client, service: PredictionService, nursery: trio.Nursery, accept: str
) -> None:
    await client.send(request("PUT", "/predictions/a", b"", accept))
    await trio.testing.wait_all_tasks_blocked()
    service.shutdown()
    response = await client.response()
    assert (response.status, response.json) == (503, SHUTTING_DOWN)


@pytest.mark.parametrize("accept", ["accept: application/json", SSE])
async def test_who_leaves_has_left_the_queue(
    autojump_clock: Clock, client: Client, service: PredictionService, accept: str
) -> None:
    await client.send(request("PUT", "/predictions/a", b"", accept))
    await trio.testing.wait_all_tasks_blocked()
    prediction = service.running("a")
    assert prediction is not None
    assert prediction.queued
    await client.stream.aclose()
    await prediction.wait_finished()
    assert prediction.status.value == "canceled"
    assert service.health().queued == 0


async def test_a_stream_begins_with_its_run(autojump_clock: Clock, client: Client, service: PredictionService) -> None:
    await client.send(request("PUT", "/predictions/a", b"", SSE))
    await trio.sleep(5)
    service.cancel("runs")
    response = await client.response()
    assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")
    while b"event: start" not in client.buffer:
        await client._more()


async def test_a_stream_that_is_cancelled_while_it_waits_says_so(
    autojump_clock: Clock, client: Client, service: PredictionService
) -> None:
    await client.send(request("PUT", "/predictions/a", b"", SSE))
    await trio.testing.wait_all_tasks_blocked()
    service.cancel("a")
    assert (await client.response()).status == 200
    while b"event: completed" not in client.buffer:
        await client._more()
    assert b'"status":"canceled"' in client.buffer
