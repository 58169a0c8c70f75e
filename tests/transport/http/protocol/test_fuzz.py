"""A thousand mutated inputs, HTTP/1.1, WebSocket handshakes, h2c and HTTP/2: the server lives through all of them."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.server_state import ServerState
from tests.transport.http.support import InstantService, app_of, connect_to, request

pytestmark = pytest.mark.exhaustive

SEED = 20261129
COUNT = 1000
SEEDS = [
    request("GET", "/health-check"),
    request("POST", "/predictions", b'{"input":{"a":1},"id":"x"}', "content-type: application/json"),
    request("PUT", "/predictions/a%20b", b"{}", "prefer: respond-async, wait=5", "accept: text/event-stream;q=0"),
    request("POST", "/predictions", b"", "transfer-encoding: chunked") + b"2\r\n{}\r\n0\r\nx: y\r\n\r\n",
    request("POST", "/predictions", b"{}", "expect: 100-continue"),
    request("GET", "/", b"", "upgrade: h2c", "connection: upgrade, http2-settings", "http2-settings: AAMAAABkAAQCAAAA"),
    request(
        "GET",
        "/predictions/ws",
        b"",
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    + b"\x81\x85\x00\x00\x00\x00hello",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    b"\x00\x00\x05\x01\x05\x00\x00\x00\x01\x82\x84\x86\x41\x00",
]


def mutate(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(SEEDS) + (rng.choice(SEEDS) if rng.random() < 0.3 else b""))
    for _ in range(rng.randint(0, 6)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[place : place + rng.randint(1, 20)]
            case 2:
                data[place:place] = rng.randbytes(rng.randint(1, 20))
            case 3:
                data[place:place] = rng.choice([b"\r\n", b"\n\n", b"\x00", b"content-length: 7\r\n", b"\r\n\r\n"])
            case 4:
                data[place:place] = bytes(data[place : place + 30])
            case 5:
                data = data[:place] or data
    return bytes(data)


@pytest.mark.parametrize("part", range(4))
async def test_the_server_lives_through_mutated_inputs(
    part: int, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    seed = SEED + part
    rng = random.Random(seed)
    service = InstantService(slots=10**6)
    app = app_of(service)
    state = ServerState(Settings(body_limit=10_000))
    async with trio.open_nursery() as nursery:
        for number in range(COUNT // 4):
            data = mutate(rng)
            client = connect_to(nursery, app, state)
            try:
                for piece in (data,) if rng.random() < 0.5 else (data[: len(data) // 2], data[len(data) // 2 :]):
                    await client.send(piece)
                    await trio.testing.wait_all_tasks_blocked()
                if rng.random() < 0.5:
                    await client.stream.send_eof()
                await client.eof()
            except trio.BrokenResourceError:
                pass  # the server has closed, as it may
            finally:
                await client.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            left = (f"seed {seed}", number, data)
            assert not state.connections, left
            assert not nursery.child_tasks, left
            if number % 50 == 0:
                client = connect_to(nursery, app, state)
                assert (await client.request("GET", "/health-check")).status == 200, left
                await client.stream.aclose()
    assert "the app failed" not in caplog.text
    assert "a route failed" not in caplog.text
