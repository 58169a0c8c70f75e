"""HTTP/1 against fixed answers and against h11: whatever comes in, however it is cut, and wherever the client ends."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import h11
import pytest
import trio
import trio.testing
from packaging.version import Version

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.connection import serve_connection
from cog_trio.transport.http.protocol.http1_body import ChunkedBody
from cog_trio.transport.http.protocol.http1_head import (
    CACHED,
    LISTS,
    Clock,
    Refused,
    _heads,
    _names,
    read_head,
    render_head,
)
from cog_trio.transport.http.protocol.server_state import ServerState
from tests.transport.http.protocol.test_connection import GET, Receive, Send, Waiting, hello
from tests.transport.http.protocol.test_fuzz import mutate
from tests.transport.http.support import connect, request

SEED = 20261130
FIXED: Final = Path(__file__).with_name("http1_cases.json")
"""What came back for odd and plain requests when two parsers, h11 among them, had to agree about each."""
REASONS: Final = {
    "a method in lower case is told to the app as it is",
    "CONNECT is a method like any other",
    "a refusal puts its headers in one order",
    "a repeated Content-Length is refused",
    "obs-fold is refused",
}


class Case(NamedTuple):
    """One conversation of the file."""

    pieces: list[bytes]
    answer: bytes
    ended: bool  # the server closed
    asked: int  # requests that the app saw


def cases() -> list[Case]:
    return [
        Case(
            [piece.encode("latin-1") for piece in case["pieces"]],
            case["answer"].encode("latin-1"),
            case["ended"],
            case["asked"],
        )
        for case in json.loads(FIXED.read_text())
    ]


CASES: Final = cases()
CUT: Final = [case for case in CASES if len(case.pieces) == 1 and len(case.pieces[0]) < 1000]


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


async def served(pieces: list[bytes], *, half_close: bool = False) -> tuple[bytes, bool, list[Any]]:
    """What comes back for some bytes, whether that is the end, and what the app saw."""
    app = Recording()
    got, ended = bytearray(), False

    async def collect(stream: trio.abc.ReceiveStream) -> None:
        nonlocal ended
        while data := await stream.receive_some():
            got.extend(data)
        ended = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hypercorn.config.time", lambda: 0.0)
        patch.setattr(Clock, "date", lambda _: b"Thu, 01 Jan 1970 00:00:00 GMT")
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, app, ServerState(Settings(body_limit=1000)), theirs)
            nursery.start_soon(collect, ours)
            for piece in pieces:
                try:
                    await ours.send_all(piece)
                except trio.BrokenResourceError:
                    break  # it has closed
                await trio.testing.wait_all_tasks_blocked()
            if half_close and not ended:
                await ours.send_eof()
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    return bytes(got), ended, app.seen


@pytest.mark.covers("D36")
@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(b"".join(case.pieces)[:60]))
async def test_answers_are_as_fixed(case: Case) -> None:
    answer, ended, seen = await served(case.pieces)
    assert (answer, ended, len(seen)) == (case.answer, case.ended, case.asked)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CUT, ids=lambda case: repr(b"".join(case.pieces)[:60]))
async def test_the_same_however_it_is_cut(case: Case) -> None:
    (raw,) = case.pieces
    for cut in range(1, len(raw)):
        answer, ended, seen = await served([raw[:cut], raw[cut:]])
        answer = answer.removeprefix(b"HTTP/1.1 100 \r\n\r\n")  # where the body did not come with its head
        assert (answer, ended, len(seen)) == (case.answer, case.ended, case.asked), cut


def test_each_difference_from_the_old_answers_has_its_reason() -> None:
    changed = [case for case in json.loads(FIXED.read_text()) if "why" in case]
    assert {case["why"] for case in changed} == REASONS
    assert all(case["was"] != case["answer"] for case in changed)


# Ends of the client.


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CUT, ids=lambda case: repr(b"".join(case.pieces)[:60]))
async def test_a_half_close_at_each_point_loses_no_reply_and_adds_none(case: Case) -> None:
    """Whatever is whole is answered as without the end; what is broken off is refused once; then we close."""
    (raw,) = case.pieces
    for cut in range(1, len(raw) + 1):
        before, _, seen = await served([raw[:cut]])
        after, ended, asked = await served([raw[:cut]], half_close=True)
        assert ended, cut
        assert after.startswith(before), cut
        assert after == before or after[len(before) :].startswith(b"HTTP/1.1 400 "), cut
        assert len(asked) == len(seen), cut


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("together", [True, False])
async def test_whole_pipelined_requests_before_a_half_close_are_answered(count: int, together: bool) -> None:
    raw = (
        GET
        + request("POST", "/", b"abc")
        + request("POST", "/", b"4\r\nabcd\r\n0\r\n\r\n", "transfer-encoding: chunked")
    )
    wire = raw * count
    answer, ended, seen = await served([wire] if together else [raw] * count, half_close=True)
    assert ended
    assert len(seen) == answer.count(b"HTTP/1.1 200 OK") == 3 * count
    assert b"400" not in answer
    answer, _, seen = await served([wire + b"GET"], half_close=True)
    assert len(seen) == answer.count(b"HTTP/1.1 200 OK") == 3 * count
    assert answer.count(b"HTTP/1.1 400 Bad Request") == 1


async def test_a_half_closed_client_whose_app_leaves_without_a_reply_gets_no_word(nursery: trio.Nursery) -> None:
    """It got an empty 500."""
    app = Waiting()
    client = connect(nursery, app)
    await client.send(GET + GET)
    await app.entered.wait()
    await client.stream.send_eof()
    assert await client.eof() == b""
    assert app.gone == app.started == 1


async def test_an_app_that_leaves_without_a_reply_is_500_while_the_client_is_there(nursery: trio.Nursery) -> None:
    async def leaves(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await receive()

    client = connect(nursery, leaves)
    await client.send(GET)
    assert (await client.response()).status == 500
    assert await client.eof() == b""


# HTTP/1.0.


async def test_http_1_0_is_kept_alive_if_the_client_asks_for_it(nursery: trio.Nursery) -> None:
    client = connect(nursery, hello)
    for _ in range(3):
        await client.send(b"GET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n")
        response = await client.response()
        assert (response.status, response.headers["connection"]) == (200, "keep-alive")
    await client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert (await client.response()).headers["connection"] == "close"
    assert await client.eof() == b""


# Heads and bodies, against h11.


def mended(raw: bytes) -> bytes:
    """A head with what we tolerate and h11 does not put right: a missing Host, and UTF-8 in the target."""
    first, newline, rest = raw.partition(b"\n")
    method, space, target = first.partition(b" ")
    first = method + space + b"".join(b"%%%02X" % byte if byte > 127 else bytes([byte]) for byte in target)
    host = b"" if re.search(rb"(?im)^host:", rest) else b"\r\nhost:"
    return first + newline + rest + host


def by_h11(raw: bytes) -> h11.Request | None:
    """What h11 makes of a head."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw + b"\r\n\r\n")
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


def refused_on_purpose(raw: bytes, request: h11.Request) -> bool:
    """Whether it is one of the heads that h11 takes and we do not."""
    names = [name for name, _ in request.headers]
    coded = b"transfer-encoding" in names
    return (
        re.search(rb"\n[ \t]", raw) is not None  # obs-fold
        or len(re.findall(rb"(?im)^content-length:", raw)) > 1
        or re.search(rb"(?im)^content-length:[^\n]*,", raw) is not None
        or (coded and (b"content-length" in names or request.http_version < b"1.1"))
        or not request.http_version.startswith(b"1.")
        or any(name in LISTS and not value.isascii() for name, value in request.headers)
    )


@pytest.mark.covers("D36")
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_heads_are_read_as_h11_reads_them(part: int) -> None:
    rng = random.Random(SEED + part)
    accepted = refused = 0
    for _ in range(5000):
        raw = mutate(rng).partition(b"\r\n\r\n")[0]
        if re.search(rb"\n\r?\n", raw) or raw[:1] in (b"\r", b"\n", b"") or raw.endswith((b"\r", b"\n")):
            continue  # its head is another one
        event = by_h11(mended(raw))
        try:
            head = read_head(raw)
        except Refused:
            assert event is None or refused_on_purpose(raw, event), (SEED + part, raw)
            refused += 1
            continue
        assert event is not None, (SEED + part, raw)
        accepted += 1
        assert (event.method.decode(), event.target) == (head.method, head.target)
        assert event.http_version.decode() == head.version
        assert list(event.headers) == head.headers
    assert accepted > 500
    assert refused > 500


CHUNKS: Final = [
    b"3\r\nabc\r\n0\r\n\r\n",
    b"3;a=b\r\nabc\r\n00A \t\r\n0123456789\r\n0\r\nx: y\r\nz:\r\n\r\n",
    b"0\r\n\n",
    b"1\r\nx\r\n" * 20 + b"0\r\n\r\n",
]


INSERTED: Final = [b"", b"\r\n", b"\n", b"0", b"f", b";", b" ", b"\xff", b":"]


def chunks_by_h11(pieces: list[bytes]) -> tuple[bytes, bool] | None:
    """The body, and whether it is whole; None if it is malformed."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    connection.next_event()
    body = b""
    try:
        for piece in pieces:
            connection.receive_data(piece)
            while isinstance(event := connection.next_event(), (h11.Data, h11.EndOfMessage)):
                if isinstance(event, h11.EndOfMessage):
                    return body, True
                body += event.data
    except h11.RemoteProtocolError:
        return None
    return body, False


def chunks_by_us(pieces: list[bytes]) -> tuple[bytes, bool] | None:
    reader, body = ChunkedBody(1000), b""
    try:
        for piece in pieces:
            body += reader.take(piece)[0]
            if reader.whole:
                break
    except Refused:
        return None
    return body, reader.whole


@pytest.mark.skipif(Version(version("h11")) < Version("0.16"), reason="it took wrong line ends between chunks")
def test_chunked_bodies_are_read_as_h11_reads_them_however_they_are_cut() -> None:
    rng = random.Random(SEED)
    ends = Counter[str]()
    for _ in range(5000):
        raw = bytearray(rng.choice(CHUNKS))
        for _ in range(rng.randint(0, 2)):
            place = rng.randrange(len(raw))
            raw[place : place + rng.randint(0, 2)] = rng.choice(
                [b"", b"\r\n", b"\n", b"0", b"f", b";", b" ", b"\xff", b":"]
            )
        places = sorted({0, len(raw), *(rng.randrange(len(raw) + 1) for _ in range(rng.randint(0, 4)))})
        pieces = [bytes(raw[start:end]) for start, end in pairwise(places)]
        expected, got = chunks_by_h11(pieces), chunks_by_us(pieces)
        assert got == expected or (got is None and re.search(rb"\n[ \t]", raw)), bytes(raw)  # obs-fold is refused
        ends["refused" if got is None else "whole" if got[1] else "more"] += 1
    assert min(ends["refused"], ends["whole"], ends["more"]) > 100


def test_a_line_of_a_chunked_body_and_its_trailers_are_bounded() -> None:
    for start in (b"1;" + b"x" * 999, b"0\r\n" + b"a: b\r\n" * 200):
        with pytest.raises(Refused) as refused:
            ChunkedBody(1000).take(start)
        assert refused.value.status == 431


def test_heads_are_remembered_within_a_bound_and_never_with_a_secret() -> None:
    """Clients repeat themselves, and junk must not stay."""
    _heads.clear()
    for number in range(2 * CACHED):
        raw = b"GET / HTTP/1.1\r\nname-%d: x" % number
        assert read_head(raw) is read_head(raw)
    assert len(_heads) == CACHED
    names = len(_names)
    for line in (b"authorization: Bearer x", b"Cookie: x", b"sec-websocket-protocol: bearer.x", b"x: " + b"x" * 2048):
        raw = b"GET / HTTP/1.1\r\n" + line
        assert read_head(raw) == read_head(raw)
        assert raw not in _heads
    assert len(_names) == names


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\nb", b"\xff"])
def test_a_reply_with_a_name_that_is_none_is_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match="name"):
        render_head(200, [(name, b"x")])


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\n", b"a\rb", b"a\x00b", b"\r\n"])
def test_a_reply_with_a_line_end_in_a_value_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="line end"):
        render_head(200, [(b"a", value)])


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
