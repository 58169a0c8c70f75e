"""``/metrics`` of a real server: what it counts, what it costs, and who may read it."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Final

import trio
from prometheus_client.parser import text_string_to_metric_families

from cog_trio.testing import ServeModel, Server
from cog_trio.testing.processes import POLL
from cog_trio.testing.server_process import SOON
from scenarios.processes import worker_of

NOBODY: Final = "http://127.0.0.1:9/"  # the port of discard, which no machine serves any more
NOW: Final = (
    "cog_slots",
    "cog_slots_idle",
    "cog_predictions_running",
    "cog_queue_waiting",
    "cog_workers_ready",
    "cog_webhooks_pending",
)


async def scrape(server: Server) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels in the order of their names."""
    reply = await server.client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


async def until(server: Server, true: Callable[[dict[tuple[str, ...], float]], bool]) -> dict[tuple[str, ...], float]:
    """Wait until the figures are so."""
    with trio.fail_after(SOON):
        while not true(figures := await scrape(server)):
            await trio.sleep(POLL)
    return figures


async def test_what_is_counted(serve_model: ServeModel) -> None:
    """Given one slot, a queue of one and --respawn, when predictions run, fail, wait, are refused and cancelled, a
    webhook has no receiver, and the worker is killed, then each is in the figures."""
    flags = ("--queue", "1", "--respawn", "--webhook-grace", "0")
    with trio.fail_after(60):
        async with serve_model("fragile.py", *flags) as server:
            assert (await server.predict(webhook=NOBODY)).json()["status"] == "succeeded"
            assert (await server.predict({"how": "raise"})).json()["status"] == "failed"
            assert (await server.predict({"how": 5})).status_code == 422
            await server.start("runs", {"seconds": 30})
            await server.start("waits")
            assert (await server.predict()).status_code == 409
            full = await until(server, lambda figures: figures["cog_webhooks_failed_total", "progress"] > 0)
            assert await server.cancel("waits") == 200
            await server.finished("waits")
            await server.until_logs("runs", "started")
            os.kill(worker_of(server).pid, signal.SIGKILL)
            after = await until(server, lambda figures: figures["cog_worker_restarts_total",] == 1)
            ready = await until(server, lambda figures: figures["cog_health", "READY"] == 1)
    assert {name: full[name,] for name in NOW} == dict(zip(NOW, (1, 0, 1, 1, 1, 1), strict=True))
    assert full["cog_health", "BUSY"] == 1
    assert full["cog_prediction_run_seconds_count", "predict", "succeeded"] == 1
    assert full["cog_prediction_queue_seconds_count", "predict"] == 3  # one waits yet
    assert {key[2]: value for key, value in after.items() if key[0] == "cog_predictions_total" and value} == {
        "succeeded": 1,
        "failed": 2,
        "canceled": 1,
    }
    for what, reasons in (("failed", {"model", "worker_died"}), ("refused", {"invalid_input", "at_capacity"})):
        counted = {key[2]: value for key, value in after.items() if key[0] == f"cog_predictions_{what}_total" and value}
        assert counted == dict.fromkeys(reasons, 1)
    assert after["cog_workers_lost_total",] == 1
    assert ready["cog_slots",] == 1
    assert 0 < ready["cog_setup_seconds",] < 30


async def test_a_scrape_under_a_flood_and_the_token(serve_model: ServeModel) -> None:
    """Given a model that prints and yields as fast as it can, and --auth-token, when it is scraped meanwhile, then it
    answers soon, and not at all without the token."""
    with trio.fail_after(60):
        async with serve_model("floods.py", "--auth-token", "secret") as server:
            refused = await server.client.get("/metrics")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            server.client.headers["authorization"] = "Bearer secret"
            await scrape(server)  # loads the library
            await server.start("floods", {"seconds": 30})
            await server.until_logs("floods", "a line")
            took: dict[str, list[float]] = {"/metrics": [], "/health-check": []}
            for _ in range(20):
                for path, times in took.items():
                    start = time.perf_counter()
                    assert (await server.client.get(path)).status_code == 200
                    times.append(time.perf_counter() - start)
            await server.cancel("floods")
            await server.finished("floods")
    middle = {path: statistics.median(times) for path, times in took.items()}
    print(", ".join(f"{path}: {1000 * seconds:.1f} ms" for path, seconds in middle.items()))
    assert min(took["/metrics"]) < 0.1  # the best of them: what other work on the machine takes is not the server's
