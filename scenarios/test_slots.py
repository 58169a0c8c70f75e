"""More than one slot: truly at once, each with its own logs, and refused only when all are taken."""

from __future__ import annotations

import httpx
import pytest
import trio

from cog_trio.testing import ServeModel


async def test_three_slots_run_three_at_once_and_refuse_the_fourth(serve_model: ServeModel) -> None:
    """Given three slots, when four predictions come, then three run at once with logs of their own, health says
    BUSY only then, and the fourth gets 409."""
    with trio.fail_after(60):
        async with serve_model("waits.py") as server:
            for name in ("a", "b"):
                await server.start(name, {"name": name, "seconds": 3})
            assert (await server.health())["status"] == "READY"
            await server.start("c", {"name": "c", "seconds": 3})
            assert (await server.health())["status"] == "BUSY"
            assert (await server.predict({"name": "d"})).status_code == 409
            ends = [await server.finished(name) for name in ("a", "b", "c")]
            assert (await server.health())["status"] == "READY"
    for name, seen in zip("abc", ends, strict=True):
        assert seen["output"] == [f"{name} ends, at most 3 at once"]
        assert seen["logs"] == f"{name} started\n{name} cleaned up\n"


@pytest.mark.covers("http:W2")
async def test_W2_as_many_as_there_are_slots_are_never_refused(serve_model: ServeModel) -> None:
    """Given three slots, when three clients send one prediction after the other, then none gets 409."""
    replies: list[httpx.Response] = []
    with trio.fail_after(60):
        async with serve_model("waits.py") as server, trio.open_nursery() as nursery:

            async def ask(name: str) -> None:
                for _ in range(60):
                    replies.append(await server.predict({"name": name}))

            for name in ("a", "b", "c"):
                nursery.start_soon(ask, name)
    assert {reply.status_code for reply in replies} == {200}
    assert len(replies) == 180


async def test_many_slots_are_all_there(serve_model: ServeModel) -> None:
    """Given --max-concurrency 300, more than one message of descriptors carries, when 300 predictions are started,
    then all of them run at once, the next one gets 409, and a cancel of each ends each."""
    names = [f"p{number}" for number in range(300)]
    with trio.fail_after(60):
        async with serve_model("waits.py", "--max-concurrency", "300", "--retain", "1000") as server:
            for name in names:
                await server.start(name, {"name": name, "seconds": 100})
            assert (await server.health())["status"] == "BUSY"
            assert (await server.predict()).status_code == 409
            for name in names:
                await server.until_logs(name, f"{name} started")
            for name in names:
                assert await server.cancel(name) == 200
            for name in names:
                assert (await server.finished(name))["logs"] == f"{name} started\n{name} cleaned up\n"
            assert (await server.health())["status"] == "READY"
