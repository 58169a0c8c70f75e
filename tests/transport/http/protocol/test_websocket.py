"""Ends of a WebSocket: a Close frame with the code that says why, and handshakes that are refused."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from tests.transport.http.protocol.test_connection import Receive, Send
from tests.transport.http.support import InstantService, app_of, connect, request

ASKS: Final = ("upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13")
KEY: Final = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="


def frame(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    """A frame of a client, masked by zeros."""
    return bytes([opcode | (128 if final else 0), 128 | len(payload)]) + b"\0\0\0\0" + payload


class Echo:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            self.seen.append(message)
        self.seen.append(message)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(0x8, struct.pack(">H", 1000)), 1000),
        (frame(0x8, struct.pack(">H", 4321) + b"bye"), 4321),
        (frame(0x8), None),
        (frame(0x3, b"x"), 1002),  # an opcode that there is not
        (frame(0x41, b"x"), 1002),  # a reserved bit
        (frame(0x0, b"x"), 1002),  # the rest of a message that has not begun
        (frame(0x9, b"x", final=False), 1002),  # a ping in parts
        (b"\x81\x01x", 1002),  # without a mask
        (frame(0x8, b"x"), 1002),  # half a code
        (frame(0x8, struct.pack(">H", 1005)), 1002),  # a code that is never sent
        (frame(0x1, b"\xff"), 1007),
        (frame(0x8, struct.pack(">H", 1000) + b"\xff"), 1007),
        (frame(0x2, b"x" * 60) + frame(0x2, b"x" * 90), 1009),
        (frame(0x2, b"x" * 60, final=False) + frame(0x0, b"x" * 90), 1009),
    ],
)
async def test_each_end_has_its_close_frame(nursery: trio.Nursery, sent: bytes, code: int | None) -> None:
    app = Echo()
    client = connect(nursery, app, Settings(body_limit=80))
    await client.send(request("GET", "/", b"", *ASKS, KEY))
    assert (await client.response()).status == 101
    await client.send(sent + frame(0x1, b"too late"))
    answer = await client.eof()
    pings, _, close = answer.partition(b"\x88")
    assert pings.replace(b"\x89\x00", b"") == b""
    payload = close[1:]
    assert len(payload) == close[0]
    assert (struct.unpack(">H", payload[:2])[0] if payload else None) == code
    assert [message["type"] for message in app.seen if message.get("text") == "too late"] == []
    assert app.seen[-1]["type"] == "websocket.disconnect"


@pytest.mark.parametrize(
    ("lines", "status", "version"),
    [
        ((*ASKS[:2], KEY), 426, "13"),
        ((*ASKS[:2], "sec-websocket-version: 8", KEY), 426, "13"),
        (ASKS, 400, None),
        ((*ASKS, KEY, "origin: http://evil.example"), 403, None),
    ],
    ids=["no version", "an old version", "no key", "a foreign origin"],
)
async def test_a_refused_handshake_is_json_and_closes(
    nursery: trio.Nursery, lines: tuple[str, ...], status: int, version: str | None
) -> None:
    client = connect(nursery, app_of(InstantService()))
    await client.send(request("GET", "/predictions/ws", b"", *lines))
    response = await client.response()
    assert (response.status, response.headers["content-type"]) == (status, "application/json")
    assert response.headers["connection"] == "close"
    assert response.headers.get("sec-websocket-version") == version
    assert json.loads(response.body)["detail"]
    assert await client.eof() == b""


async def test_a_handshake_for_another_path_is_404_and_closes(nursery: trio.Nursery) -> None:
    client = connect(nursery, app_of(InstantService()))
    await client.send(request("GET", "/nowhere", b"", *ASKS, KEY))
    response = await client.response()
    assert (response.status, response.json) == (404, {"detail": "Not Found"})
    assert response.headers["connection"] == "close"
    assert await client.eof() == b""


async def test_a_handshake_by_http_1_0_is_refused(nursery: trio.Nursery) -> None:
    client = connect(nursery, app_of(InstantService()))
    await client.send(request("GET", "/predictions/ws", b"", *ASKS, KEY).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await client.response()).status == 400
    assert await client.eof() == b""
