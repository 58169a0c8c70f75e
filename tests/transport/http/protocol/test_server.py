"""The server on real sockets: where it listens, how it ends, what one request costs, who is turned away."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol import server
from cog_trio.transport.http.protocol.connection import App, Connection
from cog_trio.transport.http.protocol.listeners import CannotListen, open_listeners
from cog_trio.transport.http.protocol.server import serve_app
from cog_trio.transport.http.serve import serve_http
from tests.transport.http.protocol.test_connection import GET, Receive, Send, Waiting, hello, reply
from tests.transport.http.support import Client, InstantService, app_of

LOCAL = Settings(port=0)


@asynccontextmanager
async def serving(app: App, settings: Settings = LOCAL) -> AsyncIterator[list[str]]:
    async with trio.open_nursery() as nursery:
        listeners = await open_listeners(settings)
        yield await nursery.start(serve_app, app, settings, listeners)
        nursery.cancel_scope.cancel()


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)


async def dial(url: str) -> Client:
    if url.startswith("unix:"):
        return Client(await trio.open_unix_socket(url.removeprefix("unix:")))
    return Client(await trio.open_tcp_stream(*address(url)))


# Where it listens.


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.covers("http:W16")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "[::1]"])
async def test_W16_names_and_addresses(host: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(hello, Settings(host=host, port=0)) as urls:
        for url in urls:
            async with (client := await dial(url)).stream:
                assert (await client.request("GET", "/")).body == b"ok"
            assert "[" in url or ":" not in address(url)[0]


async def test_a_unix_socket_is_made_reused_when_stale_and_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    async with serving(hello, Settings(uds=path)) as urls:
        assert os.stat(path).st_mode & 0o777 == 0o666
        assert urls == [f"unix:{path}"]
        async with (client := await dial(urls[0])).stream:
            assert (await client.request("GET", "/")).body == b"ok"
        with pytest.raises(CannotListen, match="in use"):
            await open_listeners(Settings(uds=path))
    assert not await trio.Path(path).exists()


async def test_a_file_at_the_path_of_the_unix_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(CannotListen):
        await open_listeners(Settings(uds=str(path)))
    assert path.read_text() == "mine"


async def test_an_inherited_descriptor() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    async with serving(hello, Settings(fd=sock.detach())) as urls:
        assert urls == [f"http://127.0.0.1:{port}"]
        async with (client := await dial(urls[0])).stream:
            assert (await client.request("GET", "/")).body == b"ok"


async def test_what_can_not_be_bound_is_one_line_before_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service: Any = InstantService()
        async with trio.open_nursery() as nursery:
            with pytest.raises(CannotListen, match=rf"^can't listen on 127\.0\.0\.1:{port}: .*in use$"):
                await nursery.start(serve_http, service, Settings(port=port))
    for settings in (Settings(host="no such host"), Settings(fd=10_000), Settings(host="203.0.113.1")):
        with pytest.raises(CannotListen, match=r"^can't listen on [^\n]+$"):
            await open_listeners(settings)


# How it ends.


@pytest.mark.covers("D41")
async def test_D41_the_service_is_served_and_loopback_is_told_from_the_bound_address() -> None:
    service: Any = InstantService()
    for host, status in (("127.0.0.1", 403), ("0.0.0.0", 200)):
        async with trio.open_nursery() as nursery:
            urls = await nursery.start(serve_http, service, Settings(host=host, port=0))
            async with (client := await dial(urls[0])).stream:
                assert (await client.request("GET", "/", b"", "host: other.example")).status == status
            nursery.cancel_scope.cancel()


async def test_idle_connections_close_at_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLOSE_GRACE", 1000.0)
    with trio.fail_after(30):
        async with serving(hello) as urls:
            client = await dial(urls[0])
            await client.request("GET", "/")
        assert await client.eof() == b""
        await client.stream.aclose()


@pytest.mark.parametrize("turns", range(6))
async def test_a_server_that_is_cancelled_while_it_starts_ends(turns: int) -> None:
    listeners = await open_listeners(LOCAL)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_app, hello, LOCAL, listeners)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert [listener.socket.fileno() for listener in listeners] == [-1]


async def test_a_reply_on_its_way_is_finished_at_the_end_and_closes() -> None:
    app = Waiting()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await open_listeners(LOCAL)
            scope: trio.CancelScope = await nursery.start(_cancellable, app, listeners)
            client = Client(await trio.open_tcp_stream(*listeners[0].socket.getsockname()))
            await client.send(GET)
            await app.entered.wait()
            scope.cancel()
            app.gate.set()
            assert (await client.response()).body == b"ok"
            assert await client.eof() == b""
            await client.stream.aclose()


async def _cancellable(app: App, listeners: Any, *, task_status: Any) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve_app, app, LOCAL, listeners))
            task_status.started(scope)


async def test_the_end_waits_a_bounded_time_for_requests_and_for_clients_that_read_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CLOSE_GRACE", 0.2)

    async def flood(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})

    with trio.fail_after(20):  # less than the write timeout
        async with serving(flood) as urls:
            client = await dial(urls[0])
            await client.send(GET)
            await client.stream.receive_some(1)
            start = trio.current_time()
        assert trio.current_time() - start >= 0.2
        await client.stream.aclose()


# Who is turned away.


async def test_connections_over_the_limit_get_503_and_places_come_back() -> None:
    async with serving(hello, Settings(port=0, limit_connections=2)) as urls:
        first, second = await dial(urls[0]), await dial(urls[0])
        for client in (first, second):
            assert (await client.request("GET", "/")).status == 200
        third = await dial(urls[0])
        response = await third.request("GET", "/")
        assert (response.status, response.json) == (503, {"detail": "Too many connections"})
        assert await third.eof() == b""
        await first.stream.aclose()
        while True:
            async with (again := await dial(urls[0])).stream:
                if (await again.request("GET", "/")).status == 200:
                    break
        for client in (second, third):
            await client.stream.aclose()


async def test_a_client_that_reads_nothing_is_cut_and_the_server_lives() -> None:
    cut = trio.Event()

    async def flood(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["raw_path"] == b"/":
            await reply(send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await _peek(receive)) is None:
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        cut.set()

    async with serving(flood, Settings(port=0, write_timeout=0.2)) as urls:
        client = await dial(urls[0])
        await client.send(b"GET /flood HTTP/1.1\r\nhost: x\r\n\r\n")
        with trio.fail_after(20):
            await cut.wait()
        async with (other := await dial(urls[0])).stream:
            assert (await other.request("GET", "/")).status == 200
        await client.stream.aclose()


async def _peek(receive: Receive) -> str | None:
    """The end of the client, if it has come."""
    with trio.move_on_after(0):
        while True:
            if (await receive())["type"] == "http.disconnect":
                return "gone"
    return None


@pytest.mark.covers("http:W47")
@pytest.mark.parametrize("size", [1_500_000, 20_000_000])
async def test_W47_a_client_that_sends_all_before_it_reads_gets_its_413(size: int) -> None:
    def send_then_read(url: str) -> bytes:
        with socket.create_connection(address(url), timeout=20) as sock:
            sock.sendall(b"POST /predictions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
            sock.sendall(b" " * size)
            return sock.recv(65536)

    settings = Settings(port=0, body_limit=2**20)
    async with serving(app_of(InstantService(), settings, loopback=False), settings) as urls:
        answer = await trio.to_thread.run_sync(send_then_read, urls[0])
    assert answer.startswith(b"HTTP/1.1 413 ")


# What one request costs (counts, not times).


class Spawns(trio.abc.Instrument):
    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.steps = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks.append(task.name)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


@pytest.mark.parametrize(
    "asked",
    [("GET", "/health-check"), ("POST", "/predictions", b'{"input":{"a":1}}', "content-type: application/json")],
)
async def test_one_write_no_task_and_few_steps_a_request(monkeypatch: pytest.MonkeyPatch, asked: Any) -> None:
    sends: list[int] = []
    with trio.socket.socket() as sock:
        kind = type(sock)
    plain = kind.send

    async def counting(self: Any, data: Any, flags: int = 0) -> int:
        sends.append(len(data))
        result: int = await plain(self, data, flags)
        return result

    direct: list[int] = []
    plain_write = Connection._write_now

    def counting_now(self: Connection, data: bytes) -> int:
        direct.append(len(data))
        return plain_write(self, data)

    async with serving(app_of(InstantService())) as urls, (client := await dial(urls[0])).stream:
        await client.request(*asked)
        monkeypatch.setattr(kind, "send", counting)
        monkeypatch.setattr(Connection, "_write_now", counting_now)
        spawns = Spawns()
        trio.lowlevel.add_instrument(spawns)
        count = 20
        for _ in range(count):
            assert (await client.request(*asked)).status == 200
        trio.lowlevel.remove_instrument(spawns)
    assert len(sends) == count  # the client's
    assert len(direct) == count  # ours, none of which waited
    assert spawns.tasks == []  # neither for the app nor for keep-alive
    assert spawns.steps / count <= 4  # the client's two included
