"""The guard of the client: which addresses it asks the network for."""

from __future__ import annotations

import socket
import sys
from typing import Any

import httpcore
import httpx
import pytest
import trio

from cog_trio.net.host_policy import HostPolicy, HostRefused
from cog_trio.net.http_client import ClientUnusable, _Guard, _SyncGuard, open_client, open_sync_client, tls_context

NAMES = {
    "inner": ["127.0.0.1", "10.0.0.1"],
    "mixed": ["127.0.0.1", "8.8.8.8", "10.0.0.1", "1.1.1.1"],
    "8.8.8.8": ["8.8.8.8"],
    "127.1": ["127.0.0.1"],
}


def resolved(host: str) -> list[Any]:
    if host not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in NAMES[host]]


class Resolver(trio.abc.HostnameResolver):
    async def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        return resolved(host.decode() if isinstance(host, bytes) else host)

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


class Network:
    """Remembers what it was asked to connect to; some addresses are down."""

    def __init__(self, *down: str) -> None:
        self.down = down
        self.asked: list[str] = []

    def connect(self, host: str) -> str:
        self.asked.append(host)
        if host in self.down:
            raise httpcore.ConnectError("down")
        return host


class AsyncNetwork(Network):
    async def connect_tcp(self, host: str, port: int, **_: Any) -> str:
        return self.connect(host)


class SyncNetwork(Network):
    def connect_tcp(self, host: str, port: int, **_: Any) -> str:
        return self.connect(host)


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: resolved(host))
    return str(request.param)


async def connect(
    kind: str, network_down: tuple[str, ...], host: str, patterns: tuple[str, ...] = ("public",)
) -> tuple[str, list[str]]:
    policy = HostPolicy(patterns)
    if kind == "sync":
        inner = SyncNetwork(*network_down)
        return _SyncGuard(inner, policy).connect_tcp(host, 80), inner.asked
    trio.socket.set_custom_hostname_resolver(Resolver())
    network = AsyncNetwork(*network_down)
    return await _Guard(network, policy).connect_tcp(host, 80), network.asked


async def test_only_allowed_addresses_are_connected_to(kind: str) -> None:
    assert await connect(kind, (), "mixed") == ("8.8.8.8", ["8.8.8.8"])
    assert await connect(kind, ("8.8.8.8",), "mixed") == ("1.1.1.1", ["8.8.8.8", "1.1.1.1"])


async def test_the_last_failure_is_told(kind: str) -> None:
    with pytest.raises(httpcore.ConnectError, match="down"):
        await connect(kind, ("8.8.8.8", "1.1.1.1"), "mixed")


@pytest.mark.parametrize(
    ("host", "text"),
    [("inner", "the host inner at 127.0.0.1, 10.0.0.1"), ("127.1", "the host 127.1 at 127.0.0.1")],
)
async def test_a_refused_host_is_named(kind: str, host: str, text: str) -> None:
    with pytest.raises(HostRefused, match=f"--input-hosts does not allow {text}"):
        await connect(kind, (), host)


async def test_no_name_is_looked_up_that_could_not_be_allowed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With names alone in the policy, nobody hears of another one."""
    asked: list[str] = []
    monkeypatch.setattr(trio.socket, "getaddrinfo", lambda host, *_, **__: asked.append(host))
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked.append(host))
    with pytest.raises(HostRefused, match=r"--input-hosts does not allow the host mixed$"):
        await connect(kind, (), "mixed", ("files.example.org", "*.example.net"))
    assert not asked


@pytest.mark.parametrize("name", ["files.example.org", "a.example.net"])
def test_a_name_that_is_allowed_is_looked_up(name: str) -> None:
    assert HostPolicy(["files.example.org", "*.example.net"]).may_allow(name)


async def test_a_name_that_is_none_is_no_connection(kind: str) -> None:
    with pytest.raises(httpcore.ConnectError, match="no such name"):
        await connect(kind, (), "nowhere")


async def test_a_policy_leaves_proxies_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy nobody knows where a connection ends."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with open_client(hosts=HostPolicy(["public"])) as client:
        with pytest.raises(HostRefused):
            await client.get("http://127.0.0.1:2/")
    with open_sync_client(1.0, HostPolicy(["public"])) as sync, pytest.raises(HostRefused):
        sync.get("http://127.0.0.1:2/")


async def test_the_certificates_are_loaded_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost tens of milliseconds, and a worker has both kinds of client in turn."""
    loaded: list[object] = []

    def load() -> object:
        loaded.append(real())
        return loaded[-1]

    real = httpx.create_ssl_context
    monkeypatch.setattr(httpx, "create_ssl_context", load)
    tls_context.cache_clear()
    for hosts in (None, HostPolicy(["public"]), None):
        async with open_client(hosts=hosts):
            open_sync_client(1.0, hosts).close()
    assert len(loaded) == 1


@pytest.mark.parametrize("hosts", [None, HostPolicy(["public"])])
async def test_a_proxy_that_needs_a_missing_package_makes_the_client_unusable(
    hosts: HostPolicy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    if hosts is not None:  # the guard goes to the network itself
        async with open_client(hosts=hosts):
            return
    with pytest.raises(ClientUnusable, match="socksio"):
        async with open_client(hosts=hosts):
            pytest.fail("there is no package for SOCKS")


async def test_a_client_that_is_not_installed_is_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ClientUnusable, match="can't be loaded"):
        async with open_client():
            pytest.fail("there is no httpx")
