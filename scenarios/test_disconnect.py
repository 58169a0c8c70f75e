"""A client that leaves: what it alone was waiting for ends, everything else goes on."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from cog_trio.testing import ServeModel, Server
from cog_trio.testing.server_process import SOON


async def _put(server: Server, id: str, input: dict[str, Any]) -> trio.SocketStream:
    """A sync PUT on a connection of its own."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    assert address.port is not None
    stream = await trio.open_tcp_stream(address.hostname, address.port)
    body = json.dumps({"input": input}).encode()
    head = f"PUT /predictions/{id} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
    await stream.send_all(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return stream


@pytest.mark.covers("D4")
@pytest.mark.parametrize(
    ("model", "input"), [("stuck.py", {"how": "sleep"}), ("waits.py", {"name": "it", "seconds": 30})]
)
async def test_disconnect_of_the_only_watcher_cancels(
    serve_model: ServeModel, model: str, input: dict[str, Any]
) -> None:
    """Given a sync request for 30 s of work, when its socket closes, then the prediction is canceled soon, its
    finally block ran, and the slot is free."""
    with trio.fail_after(60):
        async with serve_model(model) as server:
            stream = await _put(server, "left", input)
            with trio.fail_after(SOON):
                while (await server.client.get("/predictions/left")).status_code == 404:
                    await trio.sleep(0.02)
            await server.until_logs("left", "started")
            await stream.aclose()
            seen = await server.finished("left")
            assert seen["status"] == "canceled"
            assert "cleaned up" in seen["logs"]
            assert (await server.health())["status"] == "READY"


@pytest.mark.covers("D4")
async def test_D4_disconnect_of_one_of_two_watchers_changes_nothing(serve_model: ServeModel) -> None:
    """Given a sync request and a second one that joined it, when the first leaves, then the second gets its result."""
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server, trio.open_nursery() as nursery:
            replies: list[int] = []
            stream = await _put(server, "shared", {"seconds": 2})
            with trio.fail_after(SOON):
                while (await server.client.get("/predictions/shared")).status_code == 404:
                    await trio.sleep(0.02)

            async def join() -> None:
                reply = await server.client.put("/predictions/shared", json={})
                assert reply.json()["output"] == "return"
                replies.append(reply.status_code)

            nursery.start_soon(join)
            await trio.sleep(0.5)
            await stream.aclose()
    assert replies == [200]


@pytest.mark.covers("D4")
async def test_disconnect_never_ends_an_async_creation(serve_model: ServeModel) -> None:
    """Given an async creation that a sync PUT joined, when the joiner leaves, then the prediction goes on."""
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server:
            await server.start("kept", {"seconds": 1.5})
            stream = await _put(server, "kept", {})
            await trio.sleep(0.3)
            await stream.aclose()
            assert (await server.finished("kept"))["status"] == "succeeded"


async def test_disconnect_again_and_again_loses_no_slot(serve_model: ServeModel) -> None:
    """Given one slot, when 50 clients send a request and leave at once, then the slot is free in the end."""
    with trio.fail_after(60):
        async with serve_model("stuck.py") as server:
            for number in range(50):
                stream = await _put(server, f"p{number}", {"how": "sleep"})
                await trio.sleep(0.001 * (number % 10))
                await stream.aclose()
            await server.until("READY")
            reply = await server.predict({"how": "none"})
            assert reply.status_code == 200, reply.text
            assert reply.json()["output"] == ["end"]
