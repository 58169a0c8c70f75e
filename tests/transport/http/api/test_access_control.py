"""D41: who may ask. A page from elsewhere, a foreign name for this machine, CORS by setting."""

from __future__ import annotations

import pytest
import trio

from cog_trio.config.settings import Settings
from cog_trio.transport.http.api.access_control import is_loopback_name, is_own
from tests.transport.http.support import Client, FakeService, InstantService, app_of, connect

FOREIGN = "origin: https://evil.example"


def client(nursery: trio.Nursery, *, loopback: bool = True, cors: tuple[str, ...] = ()) -> Client:
    settings = Settings(cors_origins=cors)
    return connect(nursery, app_of(InstantService(), settings, loopback=loopback))


@pytest.mark.covers("D41")
@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/predictions"), ("PUT", "/predictions/a"), ("POST", "/shutdown"), ("POST", "/predictions/a/cancel")],
)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://localhost.evil"])
async def test_D41_a_foreign_origin_is_403_on_what_changes(
    nursery: trio.Nursery, loopback: bool, method: str, path: str, origin: str
) -> None:
    response = await client(nursery, loopback=loopback).request(method, path, b"{}", f"origin: {origin}")
    assert response.status == 403
    assert "origin" in response.json["detail"]


@pytest.mark.covers("D41")
async def test_D41_reading_is_open_to_any_origin(nursery: trio.Nursery) -> None:
    for method in ("GET", "HEAD"):
        response = await client(nursery).request(method, "/health-check", b"", FOREIGN)
        assert response.status == 200
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.covers("D41")
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8393", "http://localhost:8393"),
        ("LocalHost", "http://localhost"),
        ("127.0.0.1:80", "http://127.0.0.1"),
        ("[::1]:8393", "http://[::1]:8393"),
    ],
)
async def test_D41_our_own_origin_passes(nursery: trio.Nursery, host: str, origin: str) -> None:
    response = await client(nursery).request("POST", "/predictions", b"{}", f"host: {host}", f"origin: {origin}")
    assert response.status == 200


@pytest.mark.covers("D41")
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8393", "127.0.0.1.evil.example", "192.168.1.7", "127.1.evil"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/predictions")])
async def test_D41_a_foreign_host_on_loopback_is_403(nursery: trio.Nursery, host: str, method: str, path: str) -> None:
    response = await client(nursery).request(method, path, b"", f"host: {host}")
    assert response.status == 403
    assert "loopback" in response.json["detail"]
    response = await client(nursery, loopback=False).request(method, path, b"", f"host: {host}")
    assert response.status == 200


@pytest.mark.covers("D41")
@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "a.localhost", "127.0.0.1", "127.9.9.9:5", "[::1]:5", "", "localhost."]
)
async def test_D41_loopback_names_pass(nursery: trio.Nursery, host: str) -> None:
    assert (await client(nursery).request("GET", "/", b"", f"host: {host}")).status == 200


@pytest.mark.covers("D41")
async def test_D41_cors_origin_by_setting(nursery: trio.Nursery) -> None:
    page = "https://page.example"
    connected = client(nursery, cors=(page,))
    response = await connected.request("POST", "/predictions", b"{}", f"origin: {page}")
    assert (response.status, response.headers["access-control-allow-origin"]) == (200, page)
    assert response.headers["vary"] == "accept, prefer, origin"
    asked = ["access-control-request-method: PUT", "access-control-request-headers: content-type"]
    response = await connected.request("OPTIONS", "/predictions/a", b"", f"origin: {page}", *asked)
    assert (response.status, response.body) == (204, b"")
    assert response.headers["access-control-allow-origin"] == page
    assert response.headers["access-control-allow-methods"] == "GET,PUT,HEAD"
    assert response.headers["access-control-allow-headers"] == "content-type"
    response = await connected.request("OPTIONS", "/predictions/a", b"", FOREIGN, *asked)
    assert response.status == 403
    assert (await connected.request("POST", "/predictions", b"{}", FOREIGN)).status == 403


@pytest.mark.covers("http:W18", "D41")
async def test_D41_a_refused_create_reaches_nobody(nursery: trio.Nursery) -> None:
    service = FakeService()
    response = await connect(nursery, app_of(service)).request("POST", "/predictions", b"{}", FOREIGN)
    assert response.status == 403
    assert not service.calls


def test_names_and_origins() -> None:
    assert not is_loopback_name(b"127.0.0.1.5")
    assert not is_loopback_name(b"127.0.0")
    assert not is_loopback_name(b"[::2]")
    assert is_own(b"https://a.example", b"a.example")
    assert is_own(b"https://a.example", b"a.example:443")
    assert not is_own(b"http://a.example:81", b"a.example")
    assert not is_own(b"file://", b"a")
    assert not is_own(b"http://a", None)
