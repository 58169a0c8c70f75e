"""TLS on real sockets: what is spoken over it, who never ends the handshake or speaks none, and how it ends."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
import trustme
from trio_websocket import open_websocket_url

from cog_trio.config.certificate import BadCertificate, make_context, reason
from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol import server as module
from cog_trio.transport.http.protocol.connection import App
from cog_trio.transport.http.protocol.listeners import CannotListen, open_listeners
from cog_trio.transport.http.protocol.server import serve_app
from cog_trio.transport.http.serve import serve_http
from tests.transport.http.protocol.test_connection import GET, Receive, Send, Waiting, hello, reply
from tests.transport.http.protocol.test_http2 import Client2
from tests.transport.http.support import Client, FakeService, InstantService, app_of, request

SECRET = "s3cr3t"


class Files:
    """An authority and what it has signed for this machine."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        self.cert, self.key, self.other = (str(folder / name) for name in ("cert.pem", "key.pem", "other.pem"))
        certificate.private_key_pem.write_to_path(self.key)
        authority.issue_cert("other.example").private_key_pem.write_to_path(self.other)
        for number, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(self.cert, append=number > 0)
        self.trusting = ssl.create_default_context()
        authority.configure_trust(self.trusting)
        self.context = make_context(self.cert, self.key)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


class Site:
    """A server, and clients of it that are closed in the end."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.url = ""
        self.scope = trio.CancelScope()
        self.streams: list[trio.SocketStream] = []

    async def serve(self, app: App, settings: Settings, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await open_listeners(settings)
        with self.scope:
            async with trio.open_nursery() as nursery:
                (self.url,) = await nursery.start(serve_app, app, settings, listeners, self.files.context)
                task_status.started()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def dial(self) -> Client:
        """A client that speaks no TLS."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.streams.append(stream)
        return Client(stream)

    async def secure(self, *offers: str) -> trio.SSLStream[Any]:
        """A stream under TLS by one of these protocols."""
        self.files.trusting.set_alpn_protocols(list(offers))
        raw: Any = (await self.dial()).stream
        stream = trio.SSLStream(raw, self.files.trusting, server_hostname="localhost")
        await stream.do_handshake()
        return stream

    async def greet(self) -> Client:
        """A client that speaks HTTP/1.1 under TLS."""
        stream: Any = await self.secure("http/1.1")
        return Client(stream)


@asynccontextmanager
async def serving(files: Files, app: App, **more: Any) -> AsyncIterator[Site]:
    settings = Settings(port=0, **more)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            site = Site(files)
            await nursery.start(site.serve, app, settings)
            try:
                yield site
                site.scope.cancel()
            finally:
                for stream in site.streams:
                    stream.socket.close()


# What is spoken.


async def test_http_1_1_over_tls_with_large_bodies_both_ways(files: Files) -> None:
    async def mirror(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        await reply(send, scope["scheme"].encode() + body)

    async with serving(files, mirror) as site:
        assert site.url.startswith("https://127.0.0.1:")
        client = await site.greet()
        for size in (0, 1, 70_000, 5_000_000):
            assert (await client.request("POST", "/", b"x" * size)).body == b"https" + b"x" * size


async def test_pipelined_requests_and_bodies_that_nobody_reads(files: Files) -> None:
    async with serving(files, app_of(InstantService(), Settings(body_limit=1000))) as site:
        client = await site.greet()
        large = request("POST", "/predictions", b"x" * 200_000, "content-type: application/json")
        await client.send(request("GET", "/livez") * 3 + large + request("GET", "/readyz"))
        statuses = [(await client.response()).status for _ in range(5)]
        assert statuses == [200, 200, 200, 413, 200]
        client = await site.greet()
        for cut in (1, 20, 60):
            data = request("GET", "/livez")
            await client.send(data[:cut])
            await client.send(data[cut:])
            assert (await client.response()).status == 200


async def test_http_2_is_agreed_on_and_spoken(files: Files, nursery: trio.Nursery) -> None:
    service = InstantService()
    async with serving(files, app_of(service)) as site:
        stream = await site.secure("h2", "http/1.1")
        assert stream.selected_alpn_protocol() == "h2"
        client = Client2.over(stream)
        numbers = [await client.ask("POST", "/predictions", b'{"id":"%d"}' % n) for n in range(5)]
        for number, id in zip(numbers, range(5), strict=True):
            assert await client.wait(number) == 200
            assert json.loads(client.bodies[number])["id"] == str(id)
        await stream.aclose()


async def test_other_clients_get_http_1_1(files: Files) -> None:
    async with serving(files, hello) as site:
        for offers, agreed in ((("http/1.1",), "http/1.1"), (("spdy/3",), None)):
            stream = await site.secure(*offers)
            assert stream.selected_alpn_protocol() == agreed
            client = Client(stream)  # type: ignore[arg-type]
            assert (await client.request("GET", "/")).body == b"ok"
            await stream.aclose()


async def test_httpx_is_content_with_certificate_and_chain(files: Files) -> None:
    async with serving(files, app_of(InstantService())) as site:
        async with httpx.AsyncClient(verify=files.trusting, trust_env=False) as client:
            assert (await client.post(f"{site.url}/predictions", json={"id": "a"})).json()["id"] == "a"
        async with httpx.AsyncClient(trust_env=False) as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(site.url)


async def test_a_websocket_over_tls(files: Files) -> None:
    service = FakeService()
    async with serving(files, app_of(service)) as site:
        address = site.url.replace("https", "wss") + "/predictions/ws"
        async with open_websocket_url(address, ssl_context=files.trusting) as socket:
            await socket.send_message('{"id":"a"}')
            await service.created.wait()
            service.open["a"].dispatched()
            service.finish("a")
            assert json.loads(await socket.get_message())["event"] == "start"
            assert json.loads(await socket.get_message())["event"] == "completed"


def test_old_versions_and_renegotiation_are_not_offered(files: Files) -> None:
    assert files.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert files.context.options & ssl.OP_NO_RENEGOTIATION


# Disconnects.


@pytest.mark.parametrize("politely", [True, False])
async def test_a_client_that_leaves_is_seen_while_its_request_runs(files: Files, politely: bool) -> None:
    app = Waiting()
    async with serving(files, app) as site:
        client = await site.greet()
        await client.send(GET)
        await app.entered.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not app.left.is_set()
        stream: Any = client.stream
        if politely:
            await stream.aclose()
        else:
            await stream.transport_stream.aclose()
        await app.left.wait()


async def test_a_client_that_takes_nothing_is_given_up(files: Files) -> None:
    cut = trio.Event()

    async def flood(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            while not nursery.cancel_scope.cancel_called:
                await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        cut.set()

    async with serving(files, flood, write_timeout=0.2) as site:
        client = await site.greet()
        start = trio.current_time()
        await client.send(GET)
        await cut.wait()
        assert trio.current_time() - start >= 0.2


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def test_a_refused_body_gets_its_413_and_a_goodbye(files: Files) -> None:
    settings = {"body_limit": 2**20}
    async with serving(files, app_of(InstantService(), Settings(**settings)), **settings) as site:  # type: ignore[arg-type]
        client = await site.greet()
        size = 5_000_000
        await client.send(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % size)
        assert (await client.response()).status == 413
        assert await client.eof() == b"", "an end that is said, not a broken line"


# Handshakes.


async def test_a_handshake_that_never_ends_holds_up_nobody_and_is_given_up(files: Files) -> None:
    async with serving(files, hello, header_timeout=0.3) as site:
        start = trio.current_time()
        silent, half = await site.dial(), await site.dial()
        await half.send(b"\x16\x03\x01\x02\x00\x01\x00\x01")  # how a ClientHello begins
        while True:  # the limit holds for this handshake too, and the machine may be slow
            try:
                client = await site.greet()
                break
            except (trio.BrokenResourceError, OSError, EOFError):
                continue
        assert (await client.request("GET", "/")).body == b"ok"
        assert await silent.eof() == await half.eof() == b""
        assert trio.current_time() - start >= 0.3


async def test_plain_http_is_told_to_speak_tls_and_nonsense_is_closed(files: Files) -> None:
    async with serving(files, hello) as site:
        client = await site.dial()
        await client.send(GET)
        response = await client.response()
        assert (response.status, response.json) == (400, {"detail": "This server speaks TLS: use https"})
        assert await client.eof() == b""
        for words in (b"\x00" * 100, b"SSH-2.0-x\r\n", b"\x16\x03\x01\x00\x04\x01\x00\x00\x00"):
            odd = await site.dial()
            await odd.send(words)
            assert await odd.eof() == b""
        assert (await (await site.greet()).request("GET", "/")).status == 200


async def test_handshakes_count_as_connections_and_their_places_come_back(files: Files) -> None:
    async with serving(files, hello, limit_connections=2) as site:
        silent, _ = await site.dial(), await site.greet()
        third = await site.dial()
        assert await third.eof() == b"", "no handshake for one too many"
        await silent.stream.aclose()
        while True:
            try:
                again = await site.greet()
                break
            except trio.BrokenResourceError:
                await trio.sleep(0.01)
        assert (await again.request("GET", "/")).status == 200


# The end.


async def test_the_end_of_the_server_closes_idle_ones_and_handshakes_at_once(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_GRACE", 1000.0)
    async with serving(files, hello) as site:
        silent = await site.dial()
        client = await site.greet()
        assert (await client.request("GET", "/")).status == 200
        site.scope.cancel()
        stream: Any = client.stream
        assert await stream.receive_some() == b"", "a goodbye: else it would be a broken line"
        assert await silent.eof() == b""


async def test_a_reply_on_its_way_is_finished_at_the_end(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_GRACE", 1000.0)
    app = Waiting()
    async with serving(files, app) as site:
        client = await site.greet()
        await client.send(GET)
        await app.entered.wait()
        site.scope.cancel()
        app.gate.set()
        assert (await client.response()).body == b"ok"
        assert await client.eof() == b""
        await client.stream.aclose()


# The files.

Spoil = Callable[[Files, Path], tuple[str, str]]


def _encrypted(files: Files, folder: Path) -> tuple[str, str]:
    path = folder / "locked.pem"
    path.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nxyz\n-----END ENCRYPTED PRIVATE KEY-----\n")
    return files.cert, str(path)


def _garbled(files: Files, folder: Path) -> tuple[str, str]:
    path = folder / "garbled.pem"
    path.write_text(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n")
    return files.cert, str(path)


FAULTS: dict[str, tuple[Spoil, str]] = {
    "no certificate": (lambda files, folder: (str(folder / "no.pem"), files.key), "--certfile: can't read .*No such"),
    "no key": (lambda files, folder: (files.cert, str(folder / "no.pem")), "--keyfile: can't read .*No such"),
    "a folder": (lambda files, folder: (str(folder), files.key), "--certfile: can't read .*directory"),
    "swapped": (lambda files, folder: (files.key, files.cert), "--certfile: .* holds no certificate in PEM"),
    "no key in it": (lambda files, folder: (files.cert, files.cert), "--keyfile: .* holds no private key in PEM"),
    "another's key": (lambda files, folder: (files.cert, files.other), "--keyfile: .* is not the key of the cert"),
    "an encrypted key": (_encrypted, "--keyfile: .* is encrypted"),
    "a garbled key": (_garbled, "--certfile, --keyfile: can't use .*"),
}


@pytest.mark.covers("D38")
@pytest.mark.parametrize(("spoil", "words"), FAULTS.values(), ids=FAULTS)
async def test_D38_files_that_can_not_be_used_are_one_line_that_shows_nothing_of_them(
    files: Files, tmp_path: Path, spoil: Spoil, words: str
) -> None:
    certfile, keyfile = spoil(files, tmp_path)
    with pytest.raises(BadCertificate, match=rf"^{words}") as caught:
        make_context(certfile, keyfile)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    settings = Settings(port=0, certfile=certfile, keyfile=keyfile)
    async with trio.open_nursery() as nursery:
        with pytest.raises(CannotListen, match=rf"^{words}"):
            await nursery.start(serve_http, InstantService(), settings)


async def test_the_service_is_served_over_tls_by_its_settings(files: Files) -> None:
    settings = Settings(port=0, certfile=files.cert, keyfile=files.key)
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(serve_http, InstantService(), settings)
        async with httpx.AsyncClient(verify=files.trusting, trust_env=False) as client:
            assert (await client.get(f"{url}/readyz")).json() == {"status": "READY"}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("content", "words"), [(None, "No such file or directory"), ("no PEM", "no certificate")])
def test_a_file_of_authorities_that_is_none_is_told_without_numbers(
    tmp_path: Path, content: str | None, words: str
) -> None:
    """As ``run --cafile`` says it."""
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(OSError, match=r"^\[") as caught:
        ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    told = reason(caught.value)
    assert told.startswith(words)
    assert not any(mark in told for mark in "[_:")
