"""Downloads: real sockets where the network is the point, a fake transport where it is not, a fake clock for waits."""

from __future__ import annotations

import base64
import gzip
import logging
import os
import pathlib
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial

import h11
import httpx
import pytest
import trio
import trio.testing

from cog_trio.net.http_client import ClientUnusable, open_client
from cog_trio.worker.model.input_values import FileSource, InputError
from cog_trio.worker.model.run_folder import RunFolder
from cog_trio.worker.runs.download import AT_ONCE, PIECE, fetch_all

Headers = list[tuple[str, str]]
Reply = tuple[int, Headers, bytes]


@dataclass
class FileServer:
    """A server of fixed replies by path. A path in ``stalls`` gets half of its body, then nothing more."""

    replies: dict[str, list[Reply]] = field(default_factory=dict)  # the last one stays
    stalls: set[str] = field(default_factory=set)
    gates: dict[str, trio.Event] = field(default_factory=dict)  # a reply waits for its path's
    asked: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    stalled: trio.Event = field(default_factory=trio.Event)
    left: trio.Event = field(default_factory=trio.Event)  # a stalled client has gone
    url: str = ""

    def add(self, path: str, *replies: Reply | bytes) -> str:
        self.replies[path] = [(200, [], reply) if isinstance(reply, bytes) else reply for reply in replies]
        return self.url + path

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            connection = h11.Connection(h11.SERVER)
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(2**16))
                elif isinstance(event, h11.Request):
                    await self.answer(connection, stream, event)
                elif isinstance(event, h11.ConnectionClosed):
                    return
                elif connection.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                    connection.start_next_cycle()

    async def answer(self, connection: h11.Connection, stream: trio.SocketStream, request: h11.Request) -> None:
        path = request.target.decode().partition("?")[0]
        self.asked.append(path)
        self.agents.append(dict(request.headers).get(b"user-agent", b"").decode())
        if path in self.gates:
            await self.gates[path].wait()
        replies = self.replies.get(path, [(404, [], b"no such file")])
        status, headers, body = replies.pop(0) if len(replies) > 1 else replies[0]
        if not any(name.lower() == "transfer-encoding" for name, _ in headers):
            headers = [*headers, ("content-length", str(len(body)))]
        await self.send(connection, stream, h11.Response(status_code=status, headers=headers))
        if path in self.stalls:
            await self.send(connection, stream, h11.Data(data=body[: len(body) // 2]))
            self.stalled.set()
            assert await stream.receive_some(1) == b""
            self.left.set()
        else:
            await self.send(connection, stream, h11.Data(data=body), h11.EndOfMessage())

    async def send(self, connection: h11.Connection, stream: trio.SocketStream, *events: h11.Event) -> None:
        for event in events:
            data = connection.send(event)
            try:
                await stream.send_all(data or b"")
            except trio.BrokenResourceError:  # the client has seen enough
                self.left.set()
                return


@pytest.fixture
async def server(nursery: trio.Nursery) -> FileServer:
    files = FileServer()

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await files.serve(stream)
        except (trio.BrokenResourceError, h11.LocalProtocolError):  # reset by a client that was cut
            files.left.set()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    files.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    nursery.start_soon(trio.serve_listeners, handle, listeners)
    return files


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "run" / "inputs")


async def get(
    folder: str, *urls: str, timeout: float = 20, limit: int | None = None, transport: httpx.MockTransport | None = None
) -> list[str]:
    """Local paths, in the order of the URLs, which are the list of one input."""
    found = [FileSource("x", index, url) for index, url in enumerate(urls)]
    with trio.fail_after(6000):
        files = await fetch_all(found, maker(folder), timeout=timeout, limit=limit, transport=transport)
    assert sorted(files, key=lambda key: key[1] or 0) == [("x", index) for index in range(len(urls))]
    return [files["x", index] for index in range(len(urls))]


def maker(folder: str) -> Callable[[str], str]:
    """What makes a folder in the run's one for inputs."""
    path, name = os.path.split(folder)
    return partial(RunFolder(path).make, name)


def gone(path: str) -> bool:
    return not os.path.exists(path)


def content(path: str) -> bytes:
    return pathlib.Path(path).read_bytes()


@pytest.mark.covers("lesson:31")
async def test_files_by_name_and_content(server: FileServer, folder: str) -> None:
    big = os.urandom(3 * PIECE + 17)
    urls = [
        server.add("/a/b%20c.png", b"png") + "?v=1",
        server.add("/big.bin", big),
        server.add("/empty", b""),
        server.url + "/a/b%20c.png",
        server.add("/", b"root"),
        server.add("/%2e%2e", b"up"),
        server.add("/x%2F..%2Fy", b"slash"),
        "data:text/plain;base64,aGk=",
        "DATA:,plain",
        "data:image/png;base64," + base64.b64encode(big).decode(),
    ]
    paths = await get(folder, *urls)
    assert [os.path.basename(path) for path in paths] == [
        *("b c.png", "big.bin", "empty", "b c.png", "file", "file", "x_.._y", "file.txt", "file.txt", "file.png"),
    ]
    assert [content(path) for path in paths] == [
        *(b"png", big, b"", b"png", b"root", b"up", b"slash", b"hi", b"plain", big),
    ]
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert path.startswith(folder + os.sep)
        assert ".." not in path.split(os.sep)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


@pytest.mark.covers("lesson:31")
async def test_names_are_at_most_200_bytes(server: FileServer, folder: str) -> None:
    (path,) = await get(folder, server.add("/" + "n" * 300 + ".png", b"x"))
    name = os.path.basename(path)
    assert len(name.encode()) <= 200
    assert name.endswith("~.png")


async def test_nothing_to_get_leaves_no_folder(folder: str) -> None:
    assert await fetch_all([], maker(folder), timeout=1) == {}
    assert gone(folder)


async def test_redirects_encodings_and_the_agent(
    server: FileServer, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COG_USER_AGENT", "cog/1 (test)")
    server.add("/to", b"there")
    urls = [
        server.add("/from", (302, [("location", "/to")], b"")),
        server.add("/zipped", (200, [("content-encoding", "gzip")], gzip.compress(b"text" * 1000))),
        server.add("/chunked", (200, [("transfer-encoding", "chunked")], b"c" * 1000)),
    ]
    paths = await get(folder, *urls)
    assert [content(path) for path in paths] == [b"there", b"text" * 1000, b"c" * 1000]
    assert os.path.basename(paths[0]) == "from"
    assert set(server.agents) == {"cog/1 (test)"}


async def test_eight_at_once_and_no_more(folder: str) -> None:
    active = most = 0
    gate = trio.Event()

    async def reply(request: httpx.Request) -> httpx.Response:
        nonlocal active, most
        active += 1
        most = max(most, active)
        if active == AT_ONCE:
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        await gate.wait()
        active -= 1
        return httpx.Response(200, content=request.url.path.encode())

    paths = await get(folder, *(f"http://h/{n}" for n in range(20)), transport=httpx.MockTransport(reply))
    assert most == AT_ONCE
    assert [content(path) for path in paths] == [f"/{n}".encode() for n in range(20)]


@pytest.mark.covers("worker:W56")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("{}/none.png?sig=hush", "the server answered 404 Not Found"),
        ("http://127.0.0.1:{port}/?sig=hush", "no connection: "),
        ("{}/big?sig=hush", "larger than the download limit of 10 bytes"),
        ("{}/chunked?sig=hush", "larger than the download limit of 10 bytes"),
        ("{}/loop?sig=hush", "Exceeded maximum allowed redirects."),
        ("{}/away?sig=hush", "Request URL has an unsupported protocol 'file://'."),
        ("http://[::1/hush", "not a valid URL"),
        ("http:", ""),
        ("http://127.0.0.1:1:2/", "not a valid URL"),
        ("data:;base64,hush*", "the data: URL is not valid base64: "),
        ("data:hush", "the data: URL has no comma"),
        ("data:,hush-hush-hush", "larger than the download limit of 10 bytes"),
    ],
)
async def test_a_failure_names_input_and_url(
    server: FileServer, folder: str, url: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cog_trio.worker.runs.download.PAUSES", (0, 0))  # the network is real, so the clock must be
    server.add("/big", b"x" * 11)
    server.add("/chunked", (200, [("transfer-encoding", "chunked")], b"x" * 11))
    server.add("/loop", (302, [("location", "/loop")], b""))
    server.add("/away", (302, [("location", "file:///etc/passwd")], b""))
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        url = url.replace("{port}", str(unused.getsockname()[1])).replace("{}", server.url)
        if url.startswith("http://127"):
            url = url.replace("http://", "http://user:hush@")
        with pytest.raises(InputError) as caught:
            await get(folder, "data:,ok", url, limit=10)
    text = str(caught.value)
    assert text.startswith(f"Input validation error: x[1]: {why}")
    assert text.endswith(")")
    assert not any(word in text for word in ("hush*", "sig", "user"))


async def test_the_first_failure_cuts_the_others(server: FileServer, folder: str) -> None:
    server.stalls.add("/slow")
    slow = server.add("/slow", b"x" * 4 * PIECE)
    server.gates["/none"] = server.stalled  # the 404 comes when half of the other body is there
    with pytest.raises(InputError, match=r"x\[1\]: the server answered 404"):
        await get(folder, slow, server.url + "/none")
    with trio.fail_after(20):
        await server.left.wait()


async def test_cancel_stops_at_once_and_leaves_what_it_began(server: FileServer, folder: str) -> None:
    server.stalls.add("/slow")
    url = server.add("/slow", b"x" * 4 * PIECE)
    with trio.fail_after(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cut() -> None:
                    await server.stalled.wait()
                    assert not gone(folder)
                    scope.cancel()

                nursery.start_soon(cut)
                await get(folder, url)
        assert scope.cancelled_caught
        assert not gone(os.path.join(folder, "0", "slow"))
        await server.left.wait()


async def test_the_total_time_is_bounded(folder: str, autojump_clock: trio.testing.MockClock) -> None:
    async def reply(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/slow":
            await trio.sleep_forever()
        return httpx.Response(200, content=b"x")

    with pytest.raises(InputError) as caught:
        await get(folder, "http://h/fast", "http://h/slow", timeout=600, transport=httpx.MockTransport(reply))
    assert str(caught.value) == "Input validation error: x[1]: not there within 600 s (http://h/slow)"
    assert trio.current_time() == 600


async def test_long_downloads_are_told_now_and_then_and_at_their_end(
    folder: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Nothing is said of quick ones; the total stands there once all lengths are known."""

    class Slow(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(10):
                await trio.sleep(0.1)
                yield b"x" * 10

    def reply(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/quick":
            return httpx.Response(200, content=b"quick")
        return httpx.Response(200, headers={"content-length": "100"}, stream=Slow())

    transport = httpx.MockTransport(reply)
    told: list[tuple[int, int | None]] = []

    async def fetch(*urls: str) -> None:
        found = [FileSource("x", index, url) for index, url in enumerate(urls)]
        await fetch_all(found, maker(folder), timeout=60, tell=lambda *much: told.append(much), transport=transport)

    await fetch("http://h/quick", "data:,text")
    assert told == []
    await fetch("http://h/quick", "http://h/slow", "data:,text")
    assert told[-1] == (105, 105)
    assert 3 <= len(told) <= 6
    assert told == sorted(told)
    assert {total for _, total in told} == {105}


async def test_faults_that_may_pass_are_tried_again(folder: str, autojump_clock: trio.testing.MockClock) -> None:
    left = {"/busy": 2, "/refused": 2, "/gone": 99}

    async def reply(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        left[path] -= 1
        if left[path] < 0:
            return httpx.Response(200, content=b"x")
        if path == "/refused":
            raise httpx.ConnectError("refused")
        return httpx.Response(503)

    transport = httpx.MockTransport(reply)
    paths = await get(folder, "http://h/busy", "http://h/refused", transport=transport)
    assert [content(path) for path in paths] == [b"x", b"x"]
    assert trio.current_time() == 1.25
    with pytest.raises(InputError, match="the server answered 503 Service Unavailable"):
        await get(folder, "http://h/gone", transport=transport)
    assert left["/gone"] == 96


@pytest.mark.parametrize("status", [204, 205, 300, 302, 304, 399, 400, 401, 404, 410, 429])
async def test_an_answer_without_the_file_is_final(
    folder: str, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    asked = []

    async def reply(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(status)

    with pytest.raises(InputError, match=f"the server answered {status}"):
        await get(folder, "http://h/a", transport=httpx.MockTransport(reply))
    assert len(asked) == 1
    assert trio.current_time() == 0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (httpx.ReadTimeout("t"), "the server did not answer in time"),
        (httpx.RemoteProtocolError("peer closed connection"), "peer closed connection"),
        (httpx.ReadError(""), "ReadError"),
        (httpx.DecodingError("bad gzip"), "bad gzip"),
    ],
)
async def test_faults_of_the_network(folder: str, fault: Exception, why: str) -> None:
    async def reply(request: httpx.Request) -> httpx.Response:
        raise fault

    with pytest.raises(InputError) as caught:
        await get(folder, "http://h/a", transport=httpx.MockTransport(reply))
    assert str(caught.value) == f"Input validation error: x[0]: {why} (http://h/a)"


async def test_the_cause_beneath_an_empty_fault(folder: str) -> None:
    async def reply(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("") from ValueError("the cause")

    with pytest.raises(InputError, match=r"x\[0\]: the cause \("):
        await get(folder, "http://h/a", transport=httpx.MockTransport(reply))


async def test_a_body_that_ends_early(folder: str, nursery: trio.Nursery) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(2**16)
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, handle, listeners)
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(InputError, match="closed connection"):
        await get(folder, f"http://127.0.0.1:{port}/")


async def test_a_disk_that_refuses(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"x\[0\]: .*Not a directory"):
        await get(str(tmp_path / "file" / "inputs"), "data:,a")


async def test_our_requests_are_not_logged(server: FileServer, folder: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    url = server.add("/a", b"x")
    await get(folder, url + "?sig=hush")
    assert "hush" not in caplog.text
    await trio.to_thread.run_sync(httpx.get, url)  # a model's own request, in another thread
    assert "/a" in caplog.text


async def test_an_environment_that_allows_no_client(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "nonsense://h")
    with pytest.raises(ClientUnusable):
        async with open_client():
            raise AssertionError("not reached")
    with pytest.raises(InputError, match=r"x\[1\]: the HTTP client can't be set up: "):
        await get(folder, "data:,a", "http://h/a")


async def test_no_time_at_all(folder: str) -> None:
    with pytest.raises(InputError, match="not there within 0 s"):
        await get(folder, "data:,a", timeout=0)
