"""One connection over memory streams: the faults of a plain server, each deadline to the second, the cork."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.connection import PIECE, App, serve_connection
from cog_trio.transport.http.protocol.http1 import MAX_AHEAD
from cog_trio.transport.http.protocol.server_state import ServerState
from cog_trio.transport.http.protocol.websocket import WebSocket
from tests.transport.http.support import Client, connect, connect_to, request

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def reply(send: Send, body: bytes = b"ok", status: int = 200) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def hello(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    await reply(send)


async def echo(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    await reply(send, body)


class Waiting:
    """An app whose requests last until the test opens the gate, or the client leaves."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.entered = trio.Event()
        self.left = trio.Event()
        self.gone = 0
        self.started = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.started += 1
        self.entered.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, receive, nursery.cancel_scope)
            await self.gate.wait()
            nursery.cancel_scope.cancel()
        if self.gate.is_set():
            await reply(send)

    async def _watch(self, receive: Receive, scope: trio.CancelScope) -> None:
        while not (await receive())["type"].endswith(".disconnect"):
            pass
        self.gone += 1
        self.left.set()
        scope.cancel()


class Counting(trio.abc.SendStream):
    """Counts how often something is sent."""

    def __init__(self, inner: trio.abc.SendStream) -> None:
        self.inner = inner
        self.sends: list[bytes] = []

    async def send_all(self, data: Any) -> None:
        self.sends.append(bytes(data))
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.inner.aclose()


def counted(nursery: trio.Nursery, app: App) -> tuple[Client, list[bytes]]:
    ours, theirs = trio.testing.memory_stream_pair()
    counting = Counting(theirs.send_stream)
    stream = trio.StapledStream(counting, theirs.receive_stream)
    nursery.start_soon(partial(serve_connection, app, ServerState(Settings()), stream))
    return Client(ours), counting.sends


# Speaking HTTP/1.


async def test_requests_follow_each_other_on_one_connection(nursery: trio.Nursery) -> None:
    client = connect(nursery, echo)
    for number in range(5):
        body = b"x" * number * 1000
        response = await client.request("POST", "/", body)
        assert (response.status, response.body) == (200, body)


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nuser-agent: x\r\n\r\n",
        b"GET / HTTP/1.1\nuser-agent: x\n\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHOST : x\r\n\r\n",
    ],
)
async def test_missing_host_is_tolerated(nursery: trio.Nursery, raw: bytes) -> None:
    client = connect(nursery, hello)
    await client.send(raw)
    assert (await client.response()).status in ((400,) if b" :" in raw else (200,))


async def test_missing_host_is_tolerated_at_every_split(nursery: trio.Nursery) -> None:
    raw = b"POST / HTTP/1.1\r\nuser-agent: x\r\ncontent-length: 3\r\n\r\nabc"
    for cut in range(1, len(raw)):
        client = connect(nursery, echo)
        await client.send(raw[:cut])
        await trio.testing.wait_all_tasks_blocked()
        await client.send(raw[cut:])
        assert (await client.response()).body == b"abc"


async def test_what_is_tolerated_is_tolerated_in_later_requests_too(nursery: trio.Nursery) -> None:
    client = connect(nursery, hello)
    for raw in (b"GET / HTTP/1.1\r\n\r\n", b"GET /\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n"):
        await client.send(raw * 3)
        for _ in range(3):
            assert (await client.response()).status == 200


@pytest.mark.parametrize("raw", [b"\xc3\xa9 / HTTP/1.1\r\nhost: x\r\n\r\n", b"G\x80T / HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_a_method_that_is_no_ascii_is_no_method(nursery: trio.Nursery, raw: bytes) -> None:
    for cut in range(1, len(raw)):
        client = connect(nursery, hello)
        await client.send(raw[:cut])
        await trio.testing.wait_all_tasks_blocked()
        with suppress(trio.BrokenResourceError):  # the answer may come before the rest is sent
            await client.send(raw[cut:])
        assert (await client.response()).status == 400


@pytest.mark.parametrize(
    ("lines", "status"),
    [(b"content-length: 5\r\ntransfer-encoding: chunked", 400), (b"content-length: 5", 408)],
    ids=["at once", "late"],
)
async def test_a_head_request_that_is_refused_gets_no_body(
    nursery: trio.Nursery, lines: bytes, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, Waiting())
    await client.send(b"HEAD / HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n\r\n")
    answer = await client.eof()
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.endswith(b"\r\n\r\n")


async def test_http_1_0_closes_and_connection_close_closes(nursery: trio.Nursery) -> None:
    for raw in (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"):
        client = connect(nursery, hello)
        await client.send(raw)
        assert (await client.response()).body == b"ok"
        assert await client.eof() == b""


@pytest.mark.covers("lesson:65")
@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"GET /\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x00" * 9]
)
async def test_broken_request_line_is_400_and_closes(nursery: trio.Nursery, raw: bytes) -> None:
    client = connect(nursery, hello)
    await client.send(raw)
    response = await client.response()
    assert (response.status, response.json) == (400, {"detail": "Bad Request"})
    assert await client.eof() == b""


async def test_a_head_that_is_too_long_is_431(nursery: trio.Nursery) -> None:
    client = connect(nursery, hello)
    await client.send(b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"x" * 40_000)
    response = await client.response()
    assert (response.status, response.json) == (431, {"detail": "Request Header Fields Too Large"})


async def test_content_length_with_chunked_is_400(nursery: trio.Nursery) -> None:
    client = connect(nursery, echo)
    await client.send(
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + GET
    )
    assert (await client.response()).status == 400
    assert await client.eof() == b""


async def test_upgrade_h2c_is_as_if_absent(nursery: trio.Nursery) -> None:
    client = connect(nursery, hello)
    for settings in (b"AAMAAABkAARAAAAAAAIAAAAA", b"!!! no base64 !!!"):
        await client.send(
            b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n"
            b"http2-settings: " + settings + b"\r\n\r\n"
        )
        assert (await client.response()).status == 200


async def test_pipelined_requests_are_answered_in_order(nursery: trio.Nursery) -> None:
    client = connect(nursery, echo)
    bodies = [b"%d" % number * number for number in range(1, 30)]
    await client.send(b"".join(request("POST", "/", body) for body in bodies))
    assert [(await client.response()).body for _ in bodies] == bodies


@pytest.mark.parametrize("last", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"])
@pytest.mark.parametrize("behind", [b"\r\n", GET, b"\x00" * 3 * MAX_AHEAD])
async def test_what_comes_behind_the_last_request_is_ignored(nursery: trio.Nursery, last: bytes, behind: bytes) -> None:
    for apart in (False, True):
        app = Waiting()
        client = connect(nursery, app)
        await client.send(last if apart else last + behind)
        await trio.testing.wait_all_tasks_blocked()
        if apart:
            await client.send(behind)
        await trio.testing.wait_all_tasks_blocked()
        app.gate.set()
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert await client.eof() == b""
        assert app.started == 1


async def test_the_end_of_a_client_is_seen_behind_what_is_ignored(nursery: trio.Nursery) -> None:
    app = Waiting()
    client = connect(nursery, app)
    await client.send(b"GET / HTTP/1.0\r\n\r\n" + GET)
    await client.stream.send_eof()
    await trio.testing.wait_all_tasks_blocked()
    assert app.gone == 1


@pytest.mark.parametrize("empty", [b"\r\n", b"\n", b"\r\n\r\n\n"])
async def test_empty_lines_before_a_request_are_ignored(nursery: trio.Nursery, empty: bytes) -> None:
    client = connect(nursery, echo)
    post = request("POST", "/", b"abc")
    await client.send(empty + post + empty + post)  # some clients end a body with one
    for piece in (empty, post, empty, post[:9], post[9:] + empty):
        await trio.testing.wait_all_tasks_blocked()
        await client.send(piece)
    assert [(await client.response()).body for _ in range(4)] == [b"abc"] * 4


async def test_empty_lines_are_no_request_that_keeps_a_connection(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, hello)
    start = trio.current_time()
    for _ in range(7):
        await client.send(b"\r\n")
        await trio.sleep(10)
    assert await client.eof() == b""
    assert trio.current_time() - start == 75.0


async def test_a_path_in_plain_utf8_is_percent_encoded(nursery: trio.Nursery) -> None:
    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, scope["raw_path"])

    raw = "GET /é/\N{GRINNING FACE}?é HTTP/1.1\r\nhost: é\r\n\r\n".encode()
    for cut in range(len(raw)):
        client = connect(nursery, app)
        await client.send(raw[:cut] or raw)
        await trio.testing.wait_all_tasks_blocked()
        if cut:
            await client.send(raw[cut:])
        response = await client.response()
        assert (response.status, response.body) == (200, b"/%C3%A9/%F0%9F%98%80"), cut


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"GET / HTTP/3.0\r\nhost: x\r\n\r\n",
        b"GET / HTTP/0.9\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/3.0\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_other_versions_and_chunks_before_1_1_are_400(nursery: trio.Nursery, raw: bytes) -> None:
    client = connect(nursery, hello)
    await client.send(raw)
    assert (await client.response()).status == 400
    assert await client.eof() == b""


async def test_pipelined_bytes_beyond_the_bound_wait(nursery: trio.Nursery) -> None:
    app = Waiting()
    client = connect(nursery, app)
    later = request("POST", "/", b"y" * 3 * MAX_AHEAD)
    await client.send(GET)
    for start in range(0, len(later), 1000):
        await client.send(later[start : start + 1000])
    await trio.testing.wait_all_tasks_blocked()
    assert app.started == 1
    app.gate.set()
    assert [(await client.response()).status for _ in range(2)] == [200, 200]


async def test_a_pipelined_head_may_be_cut_anywhere(nursery: trio.Nursery) -> None:
    later = request("POST", "/", b"abc")
    for cut in range(1, len(later)):
        app = Waiting()

        async def first_waits(scope: dict[str, Any], receive: Receive, send: Send, app: Waiting = app) -> None:
            await (app if scope["method"] == "GET" else echo)(scope, receive, send)

        client = connect(nursery, first_waits)
        await client.send(GET + later[:cut])
        await trio.testing.wait_all_tasks_blocked()
        app.gate.set()
        assert (await client.response()).body == b"ok"
        await client.send(later[cut:])
        assert (await client.response()).body == b"abc"


async def test_a_pipelined_half_head_gets_408_too(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, hello)
    await client.send(GET + b"GET / HT")
    assert (await client.response()).status == 200
    start = trio.current_time()
    assert (await client.response()).status == 408
    assert trio.current_time() - start == 30.0


async def test_100_continue_leaves_when_the_app_reads_and_not_before(nursery: trio.Nursery) -> None:
    async def refuse(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, b"no", 413)

    head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"
    client = connect(nursery, echo)
    await client.send(head)
    assert (await client.response()).status == 100
    await client.send(b"abc")
    assert (await client.response()).body == b"abc"
    client = connect(nursery, refuse)
    await client.send(head)
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (413, "close")
    assert await client.eof() == b""


# Bodies that nobody reads.


async def test_unread_body_is_dropped_and_the_connection_goes_on(nursery: trio.Nursery) -> None:
    client = connect(nursery, hello)
    for size in (1, 70_000, 2_000_000):
        await client.send(request("POST", "/", b"x" * size))
        assert (await client.response()).body == b"ok"
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (await client.response()).body == b"ok"
    for _ in range(50):
        await client.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
    await client.send(b"0\r\n\r\n")
    assert (await client.request("GET", "/")).status == 200


async def test_unread_chunked_body_without_end_is_cut_at_the_limit(nursery: trio.Nursery) -> None:
    client = connect(nursery, hello, Settings(body_limit=1000))
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (await client.response()).body == b"ok"
    await client.send((b"1000\r\n" + b"x" * 4096 + b"\r\n") * 1000)
    assert await client.eof() == b""


# The guard.


async def test_an_app_that_raises_gets_500_and_others_live(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("bug")

    client = connect(nursery, broken)
    await client.send(GET)
    assert (await client.response()).status == 500
    assert "ZeroDivisionError" in caplog.text
    assert (await connect(nursery, hello).request("GET", "/")).status == 200


async def test_garbage_after_a_websocket_handshake_ends_one_connection(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    state = ServerState(Settings())
    app = Waiting()
    client = connect_to(nursery, app, state)
    await client.send(
        b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\xff\xff\xff garbage"
    )
    await client.eof()
    await trio.testing.wait_all_tasks_blocked()
    assert (app.started, app.gone) == (1, 1)
    assert (await connect_to(nursery, hello, state).request("GET", "/")).status == 200


async def test_frames_of_a_websocket_come_in_pieces(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that others have their turn; parts of a message wait for nobody, unlike those of a body."""
    sizes: list[int] = []
    feed = WebSocket.feed

    async def noted(self: WebSocket, data: bytes) -> None:
        sizes.append(len(data))
        await feed(self, data)

    async def late(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()

    monkeypatch.setattr(WebSocket, "feed", noted)
    client = connect(nursery, late)
    await client.send(
        b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 101")
    await client.send(b"\x01\x81\0\0\0\0x" + b"\x00\x81\0\0\0\0x" * 6000)
    await trio.testing.wait_all_tasks_blocked()
    assert sizes == [PIECE, PIECE, 7 * 6001 - 2 * PIECE]


@pytest.mark.covers("D36")
async def test_an_exception_in_the_protocol_is_contained_and_cancelled_passes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(ServerState):
        @property
        def connections(self) -> Any:
            raise RuntimeError("bug\nwith a line")

        @connections.setter
        def connections(self, value: Any) -> None: ...

    _, theirs = trio.testing.memory_stream_pair()
    await serve_connection(hello, Broken(Settings()), theirs)
    assert "internal error (connection): RuntimeError: bug\\nwith a line" in caplog.text
    with trio.move_on_after(0) as scope:
        await serve_connection(hello, ServerState(Settings()), theirs)
    assert scope.cancelled_caught


async def test_cancelled_beside_an_exception_passes_and_the_exception_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    async def broken_when_cancelled(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ZeroDivisionError("in cleanup")

    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(GET)
    with trio.move_on_after(1) as scope:
        await serve_connection(broken_when_cancelled, ServerState(Settings()), theirs)
    assert scope.cancel_called
    assert "ZeroDivisionError: in cleanup" in caplog.text


# Deadlines.


async def seconds_until_closed(client: Client) -> float:
    start = trio.current_time()
    await client.eof()
    return trio.current_time() - start


async def test_idle_connections_close_after_75_s(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    client = connect(nursery, hello)
    assert await seconds_until_closed(client) == 75.0
    client = connect(nursery, hello)
    await trio.sleep(70)
    assert (await client.request("GET", "/")).status == 200
    assert await seconds_until_closed(client) == 75.0
    assert client.buffer == b""


@pytest.mark.covers("http:W47")
async def test_a_half_sent_head_gets_408_after_30_s_from_its_first_byte(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, hello)
    await trio.sleep(60)
    start = trio.current_time()
    for byte in b"GET / HTTP/1.1\r\nhost: ":
        await client.send(bytes([byte]))
        await trio.sleep(1)
    assert (await client.response()).status == 408
    assert trio.current_time() - start == 30.0
    assert await client.eof() == b""


@pytest.mark.covers("http:W47")
async def test_W47_a_stalled_body_gets_408_after_30_s_without_a_byte(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, echo)
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
    for _ in range(3):
        await trio.sleep(29)
        await client.send(b"x")
    start = trio.current_time()
    assert (await client.response()).status == 408
    assert trio.current_time() - start == 30.0
    assert await client.eof() == b""


async def test_a_body_that_trickles_for_ever_gets_408(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, echo)
    start = trio.current_time()
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n")
    for _ in range(15):
        await trio.sleep(20)
        await client.send(b"x")
    assert (await client.response()).status == 408
    assert trio.current_time() - start == pytest.approx(300 + 15 / 500)
    assert await client.eof() == b""


async def test_a_large_body_may_come_slowly_and_wait_for_us(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def slow(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        size = 0
        while (message := await receive())["type"] == "http.request":
            size += len(message["body"])
            await trio.sleep(60)
            if not message["more_body"]:
                break
        await reply(send, b"%d" % size)

    client = connect(nursery, slow)
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n")
    for _ in range(30):
        await trio.sleep(15)
        await client.send(b"x" * 10_000)
    assert (await client.response()).body == b"300000"


async def test_a_running_request_has_no_deadline(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    app = Waiting()
    client = connect(nursery, app)
    await client.send(GET)
    await trio.sleep(10_000)
    app.gate.set()
    assert (await client.response()).status == 200
    assert app.gone == 0


async def test_an_unwanted_body_may_not_take_for_ever(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    client = connect(nursery, hello)
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
    start = trio.current_time()
    assert (await client.response()).status == 200
    for _ in range(7):
        await client.send(b"x")
        await trio.sleep(5)
    assert await client.eof() == b""
    assert 30.0 <= trio.current_time() - start <= 45.0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_reads_nothing_is_given_up_after_30_s(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, streamed: bool
) -> None:
    ended = trio.Event()

    async def flood(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(20 if streamed else 1):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": streamed})
        ended.set()

    ours, theirs = trio.testing.lockstep_stream_pair()
    nursery.start_soon(partial(serve_connection, flood, ServerState(Settings()), theirs))
    await ours.send_all(GET)
    start = trio.current_time()
    await ended.wait()
    assert trio.current_time() - start == 30.0
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(GET)


async def test_a_slow_reader_that_makes_progress_is_served(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def large(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, b"x" * 1_000_000)

    ours, theirs = trio.testing.lockstep_stream_pair()
    nursery.start_soon(partial(serve_connection, large, ServerState(Settings()), theirs))
    await ours.send_all(GET)
    size = 0
    while size < 1_000_000:
        await trio.sleep(10)
        size += len(await ours.receive_some(50_000))
    assert trio.current_time() > 190


# Disconnects.


@pytest.mark.parametrize("ahead", [b"", b"\r\n", GET, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab"])
async def test_a_close_is_seen_while_a_request_runs_whatever_was_sent_ahead(
    nursery: trio.Nursery, ahead: bytes
) -> None:
    app = Waiting()
    client = connect(nursery, app)
    await client.send(GET + ahead)
    await trio.testing.wait_all_tasks_blocked()
    assert (app.started, app.gone) == (1, 0)
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert (app.started, app.gone) == (1, 1)


async def test_receive_gives_the_end_again_and_again(nursery: trio.Nursery) -> None:
    seen: list[str] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send)
        for _ in range(3):
            seen.append((await receive())["type"])

    client = connect(nursery, app)
    assert (await client.request("GET", "/")).status == 200
    await trio.testing.wait_all_tasks_blocked()
    assert seen == ["http.disconnect"] * 3


async def test_backpressure_an_app_that_does_not_read_stops_the_reading(nursery: trio.Nursery) -> None:
    gate = trio.Event()

    async def late(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await gate.wait()
        await echo(scope, receive, send)

    ours, theirs = trio.testing.lockstep_stream_pair()
    nursery.start_soon(partial(serve_connection, late, ServerState(Settings()), theirs))
    sent = 0

    async def upload() -> None:
        nonlocal sent
        await ours.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3276800\r\n\r\n")
        for _ in range(50):
            await ours.send_all(b"x" * 65536)
            sent += 1

    nursery.start_soon(upload)
    await trio.testing.wait_all_tasks_blocked()
    assert 5 < sent < 15
    gate.set()
    client = Client(ours)
    assert len((await client.response()).body) == 3276800


# One send a reply.


async def test_a_reply_that_is_one_body_leaves_with_one_send(nursery: trio.Nursery) -> None:
    client, sends = counted(nursery, echo)
    for number in range(1, 4):
        await client.request("POST", "/", b"x" * number)
        assert len(sends) == number
    await client.request("GET", "/")
    assert len(sends) == 4
    assert sends[0].endswith(b"\r\n\r\nx")


async def test_error_replies_leave_with_one_send_too(nursery: trio.Nursery) -> None:
    client, sends = counted(nursery, hello)
    await client.send(b"broken\r\n\r\n")
    await client.eof()
    assert len(sends) == 1


async def test_a_stream_leaves_piece_by_piece(nursery: trio.Nursery) -> None:
    gate = trio.Event()

    async def stream(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await gate.wait()
        await send({"type": "http.response.body", "body": b"second", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    client, sends = counted(nursery, stream)
    await client.send(GET)
    await trio.testing.wait_all_tasks_blocked()
    assert len(sends) == 1
    assert sends[0].startswith(b"HTTP/1.1 200")
    assert b"first" in sends[0]
    gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(sends) == 3
    assert b"".join(sends).endswith(b"6\r\nsecond\r\n0\r\n\r\n")


async def test_large_replies_arrive_whole(nursery: trio.Nursery) -> None:
    async def large(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await reply(send, bytes(range(256)) * 20_000)

    client = connect(nursery, large)
    assert (await client.request("GET", "/")).body == bytes(range(256)) * 20_000
