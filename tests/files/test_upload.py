"""Uploads of one file: what is sent, what is published, what is tried again. A fake network and a fake clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing

from cog_trio.files.upload import CHUNK, PAUSES, PIECE, UploadFailed, UploadNames, UploadTarget, file_url, upload
from cog_trio.net.http_client import open_client

Handler = Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]
HEADERS = [(b"content-type", b"image/png"), (b"x-prediction-id", b"p1"), (b"traceparent", b"00-a-b-01")]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a.png").write_bytes(b"png")
    descriptor = os.open(tmp_path / "a.png", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


class Server:
    """Answers each request by the next of its replies (the last one stays); keeps what it was sent."""

    def __init__(self, *replies: httpx.Response | Exception | float) -> None:
        self.replies = list(replies)
        self.requests: list[httpx.Request] = []
        self.times: list[float] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.times.append(trio.current_time())
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, float):
            await trio.sleep(reply)
            return httpx.Response(200)
        if isinstance(reply, Exception):
            raise reply
        return reply


def answer(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers)


async def put(server: Handler, file: int, url: str = "https://h/up", timeout: float = 25.0) -> str:
    async with open_client(transport=httpx.MockTransport(server)) as client:
        return await upload(client, UploadTarget(url, timeout), "a.png", file, HEADERS)


async def test_what_is_sent(file: int) -> None:
    server = Server(answer(200))
    assert await put(server, file) == "https://h/up/a.png"
    (request,) = server.requests
    assert (request.method, str(request.url), request.content) == ("PUT", "https://h/up/a.png", b"png")
    sent = {name: request.headers.get(name) for name in ("content-type", "x-prediction-id", "traceparent")}
    assert sent == {"content-type": "image/png", "x-prediction-id": "p1", "traceparent": "00-a-b-01"}
    assert request.headers["content-length"] == "3"
    assert "transfer-encoding" not in request.headers


@pytest.mark.covers("worker:W53", "lesson:34")
@pytest.mark.parametrize("base", ["https://h/up", "https://h/up/"])
@pytest.mark.parametrize(
    ("name", "path"),
    [("a.png", "a.png"), ("a b#c?d%e.png", "a%20b%23c%3Fd%25e.png"), ("é", "%C3%A9"), ("\udcff", "%FF")],
)
def test_W53_a_name_is_encoded_and_a_slash_makes_no_difference(base: str, name: str, path: str) -> None:
    assert file_url(base, name) == f"https://h/up/{path}"


def test_a_base_may_have_a_query_or_no_path() -> None:
    assert file_url("https://h?sig=1", "a") == "https://h/a?sig=1"
    assert file_url("http://u:p@h:1/x?sig=1", "a") == "http://u:p@h:1/x/a?sig=1"


@pytest.mark.covers("worker:W53", "lesson:34")
@pytest.mark.parametrize(
    ("location", "published"),
    [
        ("https://cdn/x.png?sig=1", "https://cdn/x.png"),
        ("https://cdn/x.png?sig=1#part", "https://cdn/x.png#part"),
        ("/files/x.png", "https://h:8443/files/x.png"),
        ("x.png?y", "https://h:8443/up/x.png"),
        ("//cdn/x", "https://cdn/x"),
        ("https://user:pw@cdn/x", "https://cdn/x"),
    ],
)
@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_W53_what_is_published(file: int, status: int, location: str, published: str) -> None:
    server = Server(answer(status, location=location))
    assert await put(server, file, "https://u:pw@h:8443/up?sig=2") == published


@pytest.mark.covers("D42")
async def test_D42_the_url_itself_is_published_without_credentials(file: int) -> None:
    assert await put(Server(answer(200)), file, "https://u:pw@h/up?sig=2") == "https://h/up/a.png"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_keeps_the_method_and_sends_the_file_again(file: int, status: int) -> None:
    server = Server(answer(status, location="/other/a.png?sig=1"), answer(200))
    assert await put(server, file) == "https://h/other/a.png"
    assert [(request.method, request.content) for request in server.requests] == [("PUT", b"png")] * 2


async def test_redirects_have_an_end(file: int) -> None:
    with pytest.raises(UploadFailed, match="too many redirects"):
        await put(Server(answer(307, location="/again")), file)


async def test_a_redirect_to_no_web_address_fails(file: int) -> None:
    with pytest.raises(UploadFailed, match="http"):
        await put(Server(answer(307, location="ftp://h/x")), file)


@pytest.mark.parametrize(
    "fault", [answer(500), answer(503), answer(429), answer(408), httpx.ConnectError("no"), httpx.ReadError("cut")]
)
async def test_what_may_pass_is_tried_three_times(
    file: int, fault: httpx.Response | Exception, autojump_clock: trio.testing.MockClock
) -> None:
    server = Server(fault, fault, answer(200))
    assert await put(server, file) == "https://h/up/a.png"
    assert server.times == [0.0, PAUSES[0], sum(PAUSES)]
    assert [request.content for request in server.requests] == [b"png"] * 3


@pytest.mark.covers("lesson:34")
async def test_after_three_tries_it_has_failed(file: int, autojump_clock: trio.testing.MockClock) -> None:
    server = Server(answer(500))
    with pytest.raises(UploadFailed) as raised:
        await put(server, file, "https://u:secret@h/up?sig=secret")
    assert str(raised.value) == "a.png: the server answered 500 Internal Server Error (https://h/up/a.png?...)"
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 304])
async def test_other_answers_are_final(file: int, status: int) -> None:
    server = Server(answer(status))
    with pytest.raises(UploadFailed, match=f"the server answered {status}"):
        await put(server, file)
    assert len(server.requests) == 1


async def test_a_server_that_never_answers(file: int, autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(UploadFailed, match="no progress for 25 s"):
        await put(Server(1e9), file)
    assert trio.current_time() == 3 * 25 + sum(PAUSES)


async def test_progress_has_no_limit(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes a piece every 20 s is slower than the timeout as a whole, and is waited for."""
    monkeypatch.setattr("cog_trio.files.upload.PIECE", CHUNK)  # no thread: the clock would not wait for it
    (tmp_path / "big").write_bytes(bytes(3 * CHUNK + 1))
    taken: list[int] = []

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            async for piece in request.stream:
                taken.append(len(piece))
                await trio.sleep(20)
            return httpx.Response(200)

    descriptor = os.open(tmp_path / "big", os.O_RDONLY)
    try:
        async with open_client(transport=Slow()) as client:
            await upload(client, UploadTarget("http://h", 25.0), "big", descriptor, [])
    finally:
        os.close(descriptor)
    assert sum(taken) == 3 * CHUNK + 1
    assert trio.current_time() == 20 * len(taken)


@pytest.mark.covers("worker:W54")
async def test_a_large_file_is_sent_whole(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(content := os.urandom(2 * PIECE + CHUNK + 5))
    server = Server(answer(200))
    descriptor = os.open(tmp_path / "big", os.O_RDONLY)
    try:
        await put(server, descriptor)
    finally:
        os.close(descriptor)
    assert server.requests[0].content == content


async def test_a_cancel_cuts_it(file: int, autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(3) as scope:
        await put(Server(1e9), file)
    assert scope.cancelled_caught
    assert trio.current_time() == 3


async def test_a_file_that_shrinks_is_a_fault_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(10))

    class Cutting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            os.truncate(path, 0)
            await request.aread()
            return httpx.Response(200)

    descriptor = os.open(path, os.O_RDONLY)
    try:
        async with open_client(transport=Cutting()) as client:
            with pytest.raises(OSError, match="shorter"):
                await upload(client, UploadTarget("http://h", 25.0), "a", descriptor, [])
    finally:
        os.close(descriptor)


@pytest.mark.covers("http:W34")
def test_W34_names_are_distinct_and_a_unique_one_stays() -> None:
    names = UploadNames()
    taken = [names.assign(path) for path in ("/x/a.tar.gz", "/y/a.tar.gz", "/z/a.tar.gz", "/x/b", "/y/b", "/.png")]
    assert len(set(taken)) == len(taken)
    assert [taken[0], taken[3], taken[5]] == ["a.tar.gz", "b", ".png"]
    assert taken[1].startswith("a.tar-")
    assert taken[1].endswith(".gz")
