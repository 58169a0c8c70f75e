"""The lane against h11: the same bytes come back, the app sees the same, whatever comes in, however it is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import h11
import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.connection import Connection, serve_connection
from cog_trio.transport.http.protocol.fast_http1 import FastHttp1
from cog_trio.transport.http.protocol.http1_head import MAX_NAMES, Clock, _names, parse, render
from cog_trio.transport.http.protocol.server_state import ServerState
from tests.transport.http.protocol.test_connection import GET, Receive, Send, Waiting, hello
from tests.transport.http.protocol.test_fuzz import mutate
from tests.transport.http.support import connect, request

SEED = 20261130


def message(start: str, *lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([start, *lines]).encode("latin-1") + b"\r\n\r\n" + body


HOST = "Host: localhost"
PLAIN = [
    message("GET / HTTP/1.1", HOST),
    message("GET /a%20b/%ff?x=%20&y HTTP/1.1", HOST, "A: b", "a:\t c \t", "Empty:"),
    message("HEAD /chunked HTTP/1.1", HOST),
    message("HEAD / HTTP/1.1", HOST),
    message("HEAD /chunked HTTP/1.0"),
    message("GET /204 HTTP/1.1", HOST),
    message("GET /304 HTTP/1.1", HOST),
    message("GET /chunked HTTP/1.1", HOST),
    message("GET /chunked HTTP/1.1", HOST, "Connection: close"),
    message("GET /chunked HTTP/1.0", "Connection: keep-alive"),
    message("GET / HTTP/1.0"),
    message("GET / HTTP/1.0", HOST),
    message("POST /chunked HTTP/1.0", HOST, "Content-Length: 3", body=b"abc"),
    message("GET http://other.example/x HTTP/1.1", HOST),
    message("OPTIONS * HTTP/1.1", HOST),
    message("POST / HTTP/1.1", HOST, "Content-Length: 5", body=b"abcde"),
    message("POST / HTTP/1.1", HOST, "Content-Length: 005", body=b"abcde"),
    message("POST / HTTP/1.1", HOST, "Content-Length: 0"),
    message("POST /unread HTTP/1.1", HOST, "Content-Length: 5", body=b"abcde"),
    message("POST /unread HTTP/1.1", HOST, "Content-Length: 99999999"),
    message("POST /unread HTTP/1.1", HOST, "Content-Length: 9", "Connection: x, Close", body=b"12"),
    message("DELETE / HTTP/1.1", HOST, "Connection: Close"),
    message("GET / HTTP/1.1", "X-Y: z"),
    message("GET /close HTTP/1.1", HOST),
    message("GET /close HTTP/1.1", HOST, "Connection: close"),
    message("GET /raises HTTP/1.1", HOST),
    message("GET /raises-late HTTP/1.1", HOST),
    message("GET /raises-later HTTP/1.1", HOST),
    message("GET /split HTTP/1.1", HOST),
    message("GET /short HTTP/1.1", HOST),
    message("GET /599 HTTP/1.1", HOST),
    message("", "GET / HTTP/1.1", HOST),
    message("GET / HTTP/1.1", HOST, "Connection: close") + b"nobody's",
    message("POST /unread HTTP/1.1", HOST, "Content-Length: 3", body=b"abc\r\n") * 2,
    message("GET / HTTP/1.1", HOST) * 3 + message("POST / HTTP/1.1", HOST, "Content-Length: 3", body=b"abc"),
]
OTHER = [
    message("GET /\xc3\xa9 HTTP/1.1", HOST),
    message("GET / HTTP/3.0", HOST),
    message("POST / HTTP/1.0", HOST, "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    message("GET / HTTP/1.1", HOST, "Host: other"),
    message("BREW /pot HTTP/1.1", HOST),
    message("get / HTTP/1.1", HOST),
    message("CONNECT a:1 HTTP/1.1", HOST),
    message("GET /\xff HTTP/1.1", HOST),
    message("\x80 / HTTP/1.1", HOST),
    message("GET / HTTP/1.1", "A: \xff"),
    message("GET / HTTP/1.1", "A: \xff") * 2,
    message("GET /\xff HTTP/1.1", HOST) * 2,
    message("HEAD / HTTP/1.1", HOST, "Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    message("GET / HTTP/1.1", HOST, "A: \xff"),
    message("GET / HTTP/1.1", HOST, "A: b\x01c"),
    message("GET / HTTP/1.1", HOST, "A: b\x00c"),
    message("GET / HTTP/1.1", HOST, "A : b"),
    message("GET / HTTP/1.1", HOST, ": b"),
    message("GET / HTTP/1.1", HOST, "A"),
    message("GET / HTTP/1.1", HOST, "A: b", " folded"),
    message("GET / HTTP/1.1", " folded"),
    message("GET / HTTP/1.1", HOST, "A: b\rc"),
    message("GET / HTTP/1.1", HOST, "A: b\nC: d"),
    message("GET  / HTTP/1.1", HOST),
    message("GET / HTTP/1.2", HOST),
    message("GET / HTTP/2.0", HOST),
    message("GET /", HOST),
    message("POST / HTTP/1.1", HOST, "Content-Length: 5", "Content-Length: 5", body=b"abcde"),
    message("POST / HTTP/1.1", HOST, "Content-Length: 5", "Content-Length: 6", body=b"abcdef"),
    message("POST / HTTP/1.1", HOST, "Content-Length: 5, 5", body=b"abcde"),
    message("POST / HTTP/1.1", HOST, "Content-Length: +5", body=b"abcde"),
    message("POST / HTTP/1.1", HOST, "Content-Length: 1234567890123456789", body=b"abcde"),
    message("POST / HTTP/1.1", HOST, "Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    message("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n"),
    message("POST / HTTP/1.1", HOST, "Transfer-Encoding: gzip"),
    message("POST / HTTP/1.1", HOST, "Expect: 100-continue", "Content-Length: 3", body=b"abc"),
    message("GET / HTTP/1.1", HOST, "Connection: upgrade", "Upgrade: h2c"),
    b"GET / HTTP/1.1\nhost: localhost\n\n",
    b"GET / HTTP/1.1\r\nhost: x\r\n\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    GET + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\na: " + b"x" * 40_000,
    b"\x00" * 9,
]


CUT = [raw for raw in (*PLAIN, *OTHER) if len(raw) < 1000 and (HOST.encode() in raw or b"HTTP/1.1" in raw)]


class Recording:
    """Answers with what it was asked, in some odd ways too, and keeps that."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        shown = {key: scope[key] for key in sorted(scope) if key != "extensions"}
        self.seen.append(shown)
        body = b""
        if scope["raw_path"] != b"/unread":
            while (got := await receive())["type"] == "http.request":
                body += got["body"]
                if not got["more_body"]:
                    break
            else:
                return
        told = json.dumps([repr(shown), body.decode("latin-1")]).encode()
        length = (b"content-length", b"%d" % len(told))
        vary = (b"vary", b"accept, prefer")

        async def start(status: int = 200, *headers: tuple[bytes, bytes]) -> None:
            await send({"type": "http.response.start", "status": status, "headers": headers})

        async def more(part: bytes, more_body: bool = True) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": more_body})

        match scope["raw_path"]:
            case b"/chunked":
                await start(200, vary)
                await more(told)
                await more(b"")
                await more(b"end", False)
            case b"/204" | b"/304":
                await start(int(scope["raw_path"][1:]), vary)
                await more(b"", False)
            case b"/599":
                await start(599, length)
                await more(told, False)
            case b"/close":
                await start(200, length, (b"connection", b"close"), vary)
                await more(told, False)
            case b"/raises":
                raise ZeroDivisionError
            case b"/raises-late":
                await start(200, length)
                raise ZeroDivisionError
            case b"/raises-later":
                await start()
                await more(told)
                raise ZeroDivisionError
            case b"/split":
                await start(200, (b"a", b"b\r\nc: d"))
            case b"/short":
                await start(200, (b"content-length", b"9999"))
                await more(told, False)
            case _:
                await start(200, vary, length)
                await more(told, False)


async def served(pieces: list[bytes], plain: bool) -> tuple[Any, ...]:
    """What comes back for some bytes, whether that is the end, what the app saw, and whether the lane held."""
    app = Recording()
    got, ended = bytearray(), False

    async def collect(stream: trio.abc.ReceiveStream) -> None:
        nonlocal ended
        while data := await stream.receive_some():
            got.extend(data)
        ended = True

    class One(Connection):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "plain", plain)
        patch.setattr("hypercorn.config.time", lambda: 0.0)
        patch.setattr(Clock, "date", lambda _: b"Thu, 01 Jan 1970 00:00:00 GMT")
        ours, theirs = trio.testing.memory_stream_pair()
        connection = One(app, ServerState(Settings(body_limit=1000)), theirs)

        async def serve() -> None:
            await connection.run()
            await connection.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(collect, ours)
            for piece in pieces:
                try:
                    await ours.send_all(piece)
                except trio.BrokenResourceError:
                    break  # it has closed
                await trio.testing.wait_all_tasks_blocked()
            held = isinstance(connection._protocol, FastHttp1)
            nursery.cancel_scope.cancel()
    return bytes(got), ended, app.seen, held


@pytest.mark.parametrize("raw", PLAIN)
async def test_what_is_plain_stays_in_the_lane_and_is_answered_as_by_h11(raw: bytes) -> None:
    *by_lane, held = await served([raw], True)
    *by_h11, _ = await served([raw], False)
    assert by_lane == by_h11
    assert held
    assert by_lane[0].startswith(b"HTTP/1.1 ")


@pytest.mark.covers("D36")
@pytest.mark.exhaustive
@pytest.mark.parametrize("raw", OTHER)
@pytest.mark.parametrize("before", [b"", GET])
async def test_what_is_not_plain_is_left_to_h11(raw: bytes, before: bytes) -> None:
    *by_lane, held = await served([before, raw] if before else [raw], True)
    *by_h11, _ = await served([before, raw] if before else [raw], False)
    assert by_lane == by_h11
    assert not held


@pytest.mark.exhaustive
@pytest.mark.parametrize("raw", CUT)
async def test_the_same_however_it_is_cut(raw: bytes) -> None:
    for cut in range(1, len(raw)):
        pieces = [raw[:cut], raw[cut:]]
        *by_lane, _ = await served(pieces, True)
        *by_h11, _ = await served(pieces, False)
        assert by_lane == by_h11, cut


@pytest.mark.covers("D36")
@pytest.mark.exhaustive
async def test_mutated_inputs_are_answered_as_by_h11() -> None:
    rng = random.Random(SEED)
    held = 0
    for number in range(1000):
        data = mutate(rng)
        *by_lane, kept = await served([data], True)
        *by_h11, _ = await served([data], False)
        assert by_lane == by_h11, (SEED, number, data)
        held += kept
    assert held > 100


async def test_a_head_may_come_byte_by_byte_and_stays_in_the_lane() -> None:
    raw = request("POST", "/", b"abc")
    *_, seen, held = await served([raw[place : place + 1] for place in range(len(raw))], True)
    assert held
    assert len(seen) == 1


# Heads.


def by_h11(raw: bytes) -> Any:
    """What h11 makes of a head, or None."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw + b"\r\n\r\n")
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


@pytest.mark.parametrize("part", range(4))
def test_what_is_parsed_h11_parses_in_the_same_way(part: int) -> None:
    rng = random.Random(SEED + part)
    parsed = 0
    for _ in range(5000):
        raw = mutate(rng).partition(b"\r\n\r\n")[0]
        head = parse(raw)
        if head is None:
            continue
        parsed += 1
        if (b"host", b"") in head.headers and b"\r\nhost:" not in raw.lower():
            raw += b"\r\nhost:"
        event = by_h11(raw)
        assert event is not None, (SEED + part, raw)
        assert (event.method.decode(), event.target) == (head.method, head.target)
        assert event.http_version.decode() == head.version
        assert list(event.headers) == head.headers
    assert parsed > 500


def test_names_are_remembered_within_a_bound() -> None:
    for number in range(2 * MAX_NAMES):
        head = parse(b"GET / HTTP/1.1\r\nname-%d: x" % number)
        assert head is not None
        assert head.headers[0] == (b"name-%d" % number, b"x")
    assert len(_names) <= MAX_NAMES


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\nb", b"\xff"])
def test_a_reply_with_a_name_that_is_none_is_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match="name"):
        render(200, [(name, b"x")])


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\n", b"a\rb", b"a\x00b", b"\r\n"])
def test_a_reply_with_a_line_end_in_a_value_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="line end"):
        render(200, [(b"a", value)])


# What it costs.


async def test_one_task_serves_all_requests_and_ends_with_the_connection(nursery: trio.Nursery) -> None:
    names: set[int] = set()

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        names.add(id(trio.lowlevel.current_task()))
        await hello(scope, receive, send)

    ours, theirs = trio.testing.memory_stream_pair()
    done = trio.Event()

    async def serve() -> None:
        await serve_connection(app, ServerState(Settings()), theirs)
        done.set()

    nursery.start_soon(serve)
    for _ in range(5):
        await ours.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
    assert len(names) == 1
    await ours.send_eof()
    await done.wait()


async def test_an_app_that_lingers_after_its_reply_delays_the_next_request_not_the_end(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    async def lingers(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        await trio.sleep(5)

    client = connect(nursery, lingers)
    await client.send(GET + GET)
    assert (await client.response()).status == 200
    start = trio.current_time()
    assert (await client.response()).status == 200
    assert trio.current_time() - start == 5.0
    assert await client.eof() == b""
    assert trio.current_time() - start == 80.0


async def test_an_upgrade_after_plain_requests_is_handed_over(nursery: trio.Nursery) -> None:
    seen: list[str] = []

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        seen.append(scope["type"])
        if scope["type"] == "http":
            await hello(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        seen.append((await receive())["text"])

    client = connect(nursery, app)
    await client.send(
        GET + b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await client.response()).status == 200
    assert (await client.response()).status == 101
    await client.send(b"\x81\x85\x00\x00\x00\x00hello")
    await trio.testing.wait_all_tasks_blocked()
    assert seen == ["http", "websocket", "hello"]


async def test_a_broken_off_body_is_400_and_the_app_is_told(nursery: trio.Nursery) -> None:
    app = Waiting()
    client = connect(nursery, app)
    await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab")
    await trio.testing.wait_all_tasks_blocked()
    await client.stream.send_eof()
    assert (await client.response()).status == 400
    await trio.testing.wait_all_tasks_blocked()
    assert app.gone == 1


async def test_messages_out_of_order_are_the_apps_fault(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    async def twice(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        await hello(scope, receive, send)

    async def early(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"x"})

    async def long(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"xy"})

    for app, status in ((twice, 200), (early, 500)):
        client = connect(nursery, app)
        await client.send(GET)
        assert (await client.response()).status == status
    client = connect(nursery, long)
    await client.send(GET)
    await client.eof()
    assert caplog.text.count("the app failed") == 3
