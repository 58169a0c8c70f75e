"""Streams of a real model: nothing is lost, items come one by one, readers that are slow or leave harm nobody."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from cog_trio.testing import ServeModel, Server
from cog_trio.testing.server_process import SOON
from cog_trio.testing.stream_clients import Event, ask, connect

COUNT = 20_000


def chunks(events: list[Event]) -> list[str]:
    return [event.data["chunk"] for event in events if event.name == "output"]


def numbered(texts: list[str]) -> list[int]:
    return [int(text.partition(":")[0]) for text in texts]


async def stuck(server: Server, id: str) -> trio.SocketStream:
    """A request for a gigabyte of events, on a socket that nobody reads."""
    stream = await connect(server.url)
    await ask(stream, id, {"count": 1_000_000, "size": 1000})
    return stream


async def everything(server: Server, id: str, input: Any = None, **options: str) -> list[Event]:
    """All events up to the end of the stream."""
    async with server.events(id, input, **options) as events:
        seen = await events.rest()
        with pytest.raises(EOFError):
            await events.next()
        return seen


async def test_20000_yields_lose_nothing_as_json_and_as_events(serve_model: ServeModel) -> None:
    """Given a model that yields 20,000 times as fast as it can, then JSON and a live reader get all of it in order."""
    with trio.fail_after(60):
        async with serve_model("tokens.py") as server:
            reply = (await server.predict({"count": COUNT})).json()
            assert numbered(reply["output"]) == list(range(COUNT))
            events = await everything(server, "s", {"count": COUNT})
            assert [event.number for event in events] == list(range(1, len(events) + 1))
            assert [event.data["index"] for event in events if event.name == "output"] == list(range(COUNT))
            assert events[-1].name == "completed"
            assert events[-1].data["output"] == chunks(events)
            assert numbered(chunks(events)) == list(range(COUNT))


@pytest.mark.covers("http:W31", "lesson:44")
@pytest.mark.parametrize("model", ["tokens.py", "tokens_async.py"])
async def test_W31_items_arrive_one_by_one(serve_model: ServeModel, model: str, tmp_path: Path) -> None:
    """Given a model that makes an item when the one before has been read, then each item comes, within a few ms."""
    with trio.fail_after(60):
        input = {"count": 8, "folder": str(tmp_path)}
        async with serve_model(model) as server, server.events("s", input) as events:
            late: list[float] = []
            while (event := await events.next()).name != "completed":
                if event.name == "output":
                    late.append(time.time() - float(event.data["chunk"].partition(":")[2]))
                    (tmp_path / str(event.data["index"])).touch()
            assert len(late) == 8
            assert min(late) < 0.02


@pytest.mark.covers("lesson:45")
@pytest.mark.parametrize("model", ["tokens.py", "tokens_async.py"])
async def test_exception_after_the_third_item(serve_model: ServeModel, model: str) -> None:
    """Given a model that raises after three items, then the stream has three, ends in failed, and says why."""
    with trio.fail_after(60):
        async with serve_model(model) as server:
            events = await everything(server, "s", {"count": 9, "fail_at": 3})
            assert numbered(chunks(events)) == [0, 1, 2]
            last = events[-1]
            assert (last.name, last.data["status"]) == ("completed", "failed")
            assert last.data["error"] == "ValueError: enough"
            assert numbered(last.data["output"]) == [0, 1, 2]
            assert last.data["logs"].startswith("run")
            assert "Traceback" in last.data["logs"]
            logs = "".join(event.data["data"] for event in events if event.name == "log")
            assert logs == last.data["logs"]


async def test_logs_and_metrics_are_events_too(serve_model: ServeModel) -> None:
    """Given a model that prints and records between its yields, then events come in the order it did things."""
    with trio.fail_after(60):
        async with serve_model("tokens.py") as server:
            events = await everything(server, "s", {"count": 2, "log": True})
            names = [event.name for event in events]
            assert names == ["start", "log", "metric", "log", "output", "log", "output", "log", "completed"]
            assert events[1].data == {"source": "stdout", "data": "run 1\n"}
            assert events[2].data == {"name": "runs", "value": 1, "mode": "replace"}
            assert events[-1].data["metrics"]["runs"] == 1


@pytest.mark.covers("http:W32")
async def test_W32_a_killed_client_comes_back_within_the_grace(serve_model: ServeModel) -> None:
    """Given --stream-grace 5, when the client is killed and puts again with its last id, then it misses nothing."""
    with trio.fail_after(60):
        async with serve_model("tokens.py", "--stream-grace", "5") as server:
            seen: list[Event] = []
            async with server.events("s", {"count": 40, "delay": 0.05}) as events:
                seen += await events.take(10)
            await trio.sleep(0.3)
            seen += await everything(server, "s", {"count": 1}, after=seen[-1].id)
            assert [event.number for event in seen] == list(range(1, len(seen) + 1))
            assert numbered(chunks(seen)) == list(range(40))
            assert seen[-1].data["status"] == "succeeded"
            assert seen[-1].data["metrics"]["runs"] == 1


@pytest.mark.covers("D11")
async def test_D11_a_client_that_comes_back_after_the_end_gets_the_tail(serve_model: ServeModel) -> None:
    """Given a run that has ended, when a client puts with an id of that run, then it gets the rest and nothing runs."""
    with trio.fail_after(60):
        async with serve_model("tokens.py", "--stream-grace", "5") as server:
            async with server.events("s", {"count": 10, "delay": 0.05}) as events:
                seen = await events.take(5)
            await server.finished("s")
            for method in ("PUT", "GET"):
                rest = await everything(server, "s", after=seen[-1].id, method=method)
                assert [event.number for event in seen + rest] == list(range(1, 5 + len(rest) + 1))
                assert rest[-1].name == "completed"
                assert rest[-1].data["metrics"]["runs"] == 1
            again = await everything(server, "s", {"count": 1})
            assert again[-1].data["metrics"]["runs"] == 2
            headers = {"accept": "text/event-stream", "last-event-id": seen[-1].id}
            assert (await server.client.put("/predictions/s", json={}, headers=headers)).status_code == 409


@pytest.mark.covers("D4")
async def test_D4_a_dropped_stream_cancels_its_run(serve_model: ServeModel) -> None:
    """Given no grace, when the only reader of a stream leaves, then its run is canceled and the slot is free."""
    with trio.fail_after(60):
        async with serve_model("tokens.py") as server:
            async with server.events("s", {"count": 1000, "delay": 0.05}) as events:
                await events.next()
            assert (await server.finished("s"))["status"] == "canceled"
            assert (await server.predict({"count": 1})).status_code == 200


@pytest.mark.covers("D12", "lesson:50")
async def test_a_reader_that_never_reads_harms_nobody(serve_model: ServeModel) -> None:
    """Given two slots and a client that asks for 1 GB of events and reads none, then the server's memory stays bounded,
    its run waits, others are served, and the client is given up after the write timeout, which cancels its run."""
    with trio.fail_after(60):
        async with serve_model("tokens_async.py", "--write-timeout", "4") as server:
            assert (await server.predict({"count": 1000, "size": 1000})).status_code == 200
            process = psutil.Process(server.process.pid)
            before = process.memory_info().rss
            stream = await stuck(server, "stuck")
            most, slowest = 0, 0.0
            with trio.move_on_after(3):
                while True:
                    began = time.perf_counter()
                    assert (await server.health())["status"] == "READY"
                    slowest = max(slowest, time.perf_counter() - began)
                    most = max(most, process.memory_info().rss - before)
                    await trio.sleep(0.02)
            assert most < 64 * 2**20, f"{most / 2**20:.0f} MiB more"
            assert slowest < 1
            assert numbered((await server.predict({"count": 100})).json()["output"]) == list(range(100))
            assert (await server.look("stuck"))["status"] == "processing"
            assert (await server.finished("stuck"))["status"] == "canceled"
            await stream.aclose()


@pytest.mark.covers("lesson:50")
async def test_shutdown_does_not_wait_for_a_reader_that_never_reads(serve_model: ServeModel) -> None:
    """Given a stuck reader, when the server is told to stop, then it is gone within the drain and a few seconds."""
    with trio.fail_after(60):
        async with serve_model("tokens_async.py", "--drain-grace", "1") as server:
            stream = await stuck(server, "stuck")
            with trio.fail_after(SOON):
                while (await server.client.get("/predictions/stuck")).status_code == 404:
                    await trio.sleep(0.02)
            began = time.perf_counter()
            assert await server.stop() == 0
            assert time.perf_counter() - began < 10
            await stream.aclose()
