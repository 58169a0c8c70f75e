"""D40: with a token set, who lacks it gets 401 by every way in, and nothing of what he sends is kept."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.transport.http.api.access_control import MAX_UNREAD
from cog_trio.transport.http.protocol.connection import App
from cog_trio.transport.http.protocol.receive_queue import ReceiveQueue
from tests.transport.http.protocol.test_http2 import Client2
from tests.transport.http.support import FakeService, InstantService, app_of, connect, request
from tests.transport.websocket.test_conversation import handshake, talking

TOKEN = "s3cr3t/+=="
SETTINGS = Settings(auth_token=TOKEN)
GOOD = f"authorization: Bearer {TOKEN}"
BODY = b'{"input":{}}'


def app(settings: Settings = SETTINGS, service: FakeService | None = None) -> App:
    return app_of(service or InstantService(), settings)


ASKED = [
    ("GET", "/"),
    ("GET", "/openapi.json"),
    ("POST", "/predictions"),
    ("PUT", "/predictions/a"),
    ("GET", "/predictions/a"),
    ("POST", "/predictions/a/cancel"),
    ("POST", "/trainings"),
    ("POST", "/shutdown"),
    ("DELETE", "/predictions"),
    ("OPTIONS", "/predictions"),
    ("GET", "/nothing"),
    ("GET", "/predictions/ws"),
    ("GET", "/predictions/%ff"),
    ("GET", "/health-check/x"),
    ("HEAD", "/"),
]


@pytest.mark.covers("D40")
@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_D40_without_the_token_everything_but_probes_is_401(
    nursery: trio.Nursery, method: str, path: str
) -> None:
    service = FakeService()
    response = await connect(nursery, app(service=service)).request(method, path)
    assert response.status == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert response.json == {"detail": "This server asks for a bearer token: Authorization: Bearer <token>"}
    assert (service.calls, service.shutdowns) == ([], 0)


@pytest.mark.covers("D40")
@pytest.mark.parametrize("path", ["/health-check", "/livez", "/readyz"])
async def test_D40_probes_are_open(nursery: trio.Nursery, path: str) -> None:
    client = connect(nursery, app())
    for method in ("GET", "HEAD"):
        assert (await client.request(method, path)).status == 200
    assert (await client.request("POST", path)).status == 405


@pytest.mark.covers("D40")
@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"BEARER   {TOKEN} ", 200),
        (TOKEN, 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN.upper()}", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("", 401),
        (f"Bearer {TOKEN}, Bearer {TOKEN}", 401),
        ("Bearer s3cr3t%2F%2B%3D%3D", 401),
    ],
)
async def test_D40_what_is_the_token_and_what_is_not(nursery: trio.Nursery, line: str, status: int) -> None:
    client = connect(nursery, app())
    response = await client.request("POST", "/predictions", BODY, f"authorization: {line}")
    assert response.status == status


@pytest.mark.covers("D40")
async def test_D40_two_tokens_in_two_lines_are_none_and_a_subprotocol_is_for_sockets_alone(
    nursery: trio.Nursery,
) -> None:
    client = connect(nursery, app())
    assert (await client.request("GET", "/", b"", GOOD, GOOD)).status == 401
    assert (await client.request("GET", "/", b"", "sec-websocket-protocol: bearer.s3cr3t%2F%2B%3D%3D")).status == 401
    assert (await client.request("GET", "/", b"", GOOD)).status == 200


@pytest.mark.covers("D40")
async def test_D40_over_http2(nursery: trio.Nursery) -> None:
    client = Client2(nursery, app())
    number = await client.ask("POST", "/predictions", BODY)
    assert await client.wait(number) == 401
    assert client.headers[number]["www-authenticate"] == "Bearer"
    number = await client.ask("POST", "/predictions", BODY, authorization=f"Bearer {TOKEN}")
    assert await client.wait(number) == 200
    assert await client.wait(await client.ask("GET", "/readyz")) == 200


# Web pages.


@pytest.mark.covers("D40")
async def test_D40_a_page_can_ask_before_it_has_the_token_and_read_that_it_lacks_it(nursery: trio.Nursery) -> None:
    origin = "origin: https://a.example"
    client = connect(nursery, app(Settings(auth_token=TOKEN, cors_origins=("https://a.example",))))
    asked = ("access-control-request-method: POST", "access-control-request-headers: authorization")
    preflight = await client.request("OPTIONS", "/predictions", b"", origin, *asked)
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    refused = await client.request("POST", "/predictions", BODY, origin)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "https://a.example")
    assert (await client.request("POST", "/predictions", BODY, origin, GOOD)).status == 200
    foreign = await client.request("OPTIONS", "/predictions", b"", "origin: https://b.example", *asked)
    assert foreign.status == 403


# WebSockets.

OFFERS = {
    "alone": ("bearer.s3cr3t%2F%2B%3D%3D", "bearer.s3cr3t%2F%2B%3D%3D"),
    "beside ours": ("cog-trio, bearer.s3cr3t%2F%2B%3D%3D", "cog-trio"),
    "beside ours, first": ("bearer.s3cr3t%2F%2B%3D%3D,cog-trio", "cog-trio"),
    "beside another": ("chat, bearer.s3cr3t%2F%2B%3D%3D", "bearer.s3cr3t%2F%2B%3D%3D"),
}


@pytest.mark.covers("D40")
@pytest.mark.parametrize(("offered", "answered"), OFFERS.values(), ids=OFFERS)
async def test_D40_a_websocket_brings_the_token_as_a_subprotocol_and_one_is_answered(
    nursery: trio.Nursery, offered: str, answered: str
) -> None:
    """A browser that offered any gives up a socket that answers none, or one that was not offered."""
    client = connect(nursery, app())
    await client.send(handshake("/predictions/ws", f"sec-websocket-protocol: {offered}"))
    response = await client.response()
    assert (response.status, response.headers.get("sec-websocket-protocol")) == (101, answered)
    await client.stream.aclose()


@pytest.mark.covers("D40")
async def test_D40_a_websocket_brings_the_token_as_a_header(nursery: trio.Nursery) -> None:
    service = FakeService()
    async with talking(app(service=service), authorization=f"Bearer {TOKEN}") as talk:
        await talk.start(service, id="a")
        service.finish("a")
        assert (await talk.event())["event"] == "completed"


@pytest.mark.covers("D40")
@pytest.mark.parametrize("path", ["/predictions/ws", "/nothing"])
@pytest.mark.parametrize(
    "header",
    [
        "x: y",
        "sec-websocket-protocol: bearer.wrong",
        "sec-websocket-protocol: bearer.",
        "sec-websocket-protocol: s3cr3t%2F%2B%3D%3D",
        "sec-websocket-protocol: cog-trio",
        "authorization: Bearer wrong",
    ],
)
async def test_D40_a_websocket_without_the_token_is_401_as_json(nursery: trio.Nursery, path: str, header: str) -> None:
    client = connect(nursery, app())
    await client.send(handshake(path, header))
    response = await client.response()
    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert "bearer token" in response.json["detail"]


@pytest.mark.parametrize("header", ["sec-websocket-protocol: \xff", "sec-websocket-extensions: \xff"])
async def test_a_websocket_with_a_list_that_is_no_ascii_is_400(nursery: trio.Nursery, header: str) -> None:
    for settings in (SETTINGS, Settings()):
        client = connect(nursery, app(settings))
        await client.send(handshake("/predictions/ws", header, GOOD))
        assert (await client.response()).status == 400
        assert await client.eof() == b""


async def test_a_token_that_nobody_asks_for_is_no_fault(nursery: trio.Nursery) -> None:
    for offered, answered in (("bearer.x", "bearer.x"), ("cog-trio", "cog-trio"), ("chat", None)):
        client = connect(nursery, app(Settings()))
        await client.send(handshake("/predictions/ws", f"sec-websocket-protocol: {offered}"))
        response = await client.response()
        assert (response.status, response.headers.get("sec-websocket-protocol")) == (101, answered)
        await client.stream.aclose()
    assert (await connect(nursery, app(Settings())).request("GET", "/", b"", "authorization: Bearer x")).status == 200


# What a stranger sends.


async def test_a_strangers_body_is_not_read_and_a_long_one_costs_the_connection(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unread(self: ReceiveQueue) -> Any:
        raise AssertionError("the body was read")

    monkeypatch.setattr(ReceiveQueue, "receive", unread)
    client = connect(nursery, app())
    short = await client.request("POST", "/predictions", b" " * MAX_UNREAD)
    assert (short.status, short.headers.get("connection")) == (401, None)
    for announced in (f"content-length: {MAX_UNREAD + 1}", "transfer-encoding: chunked"):
        client = connect(nursery, app())
        await client.send(request("POST", "/predictions", b"", announced, "content-type: application/json"))
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (401, "close")
        assert await client.eof() == b""


async def test_a_stranger_is_not_told_to_go_on(nursery: trio.Nursery) -> None:
    client = connect(nursery, app())
    await client.send(request("POST", "/predictions", b"", "content-length: 5", "expect: 100-continue"))
    assert (await client.response()).status == 401


@pytest.mark.covers("D42")
async def test_D42_the_token_is_in_no_line_of_the_log(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    service = InstantService()
    client = connect(nursery, app(service=service))
    assert (await client.request("GET", "/predictions/a", b"", GOOD)).status == 404
    assert (await client.request("GET", "/", b"", f"authorization: Basic {TOKEN}")).status == 401
    monkeypatch.setattr(service, "cancel", None)  # a fault of ours
    assert (await client.request("POST", "/predictions/a/cancel", b"", GOOD)).status == 500
    await client.send(b"GET / HTTP/1.1\r\nauthorization: Bearer " + TOKEN.encode() + b"\r\n \x00broken\r\n\r\n")
    assert (await client.response()).status == 400
    socket = connect(nursery, app(service=service))
    await socket.send(handshake("/predictions/ws", "sec-websocket-protocol: bearer.s3cr3t%2F%2B%3D%3D"))
    assert (await socket.response()).status == 101
    await socket.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert "/predictions/a 404" in caplog.text
    assert "s3cr3t" not in caplog.text


# A path in front.


async def test_root_path_is_taken_off_where_it_is_there_and_shown_in_addresses(nursery: trio.Nursery) -> None:
    client = connect(nursery, app(Settings(root_path="/models/a", auth_token=TOKEN)))
    for path in ("/models/a", "/models/a/", "/"):
        shown = (await client.request("GET", path, b"", GOOD)).json
        assert shown["predictions_url"] == "/models/a/predictions"
        assert shown["openapi_url"] == "/models/a/openapi.json"
    for path in ("/models/a/predictions", "/predictions", "http://localhost/models/a/predictions"):
        assert (await client.request("POST", path, BODY, GOOD)).status == 200
    assert (await client.request("PUT", "/models/a/predictions/x", BODY, GOOD)).json["id"] == "x"
    assert (await client.request("GET", "/models/a/readyz")).status == 200
    for path in ("/models/ab/predictions", "/models/a/models/a/predictions", "/models"):
        assert (await client.request("GET", path, b"", GOOD)).status == 404
    socket = connect(nursery, app(Settings(root_path="/models/a")))
    await socket.send(handshake("/models/a/predictions/ws"))
    assert (await socket.response()).status == 101
    await socket.stream.aclose()
