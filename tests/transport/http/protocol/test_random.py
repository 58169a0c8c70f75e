"""Requests that nobody meant, drawn by hypothesis: whole conversations of strange heads and bodies in strange pieces.

``test_http1.py`` and ``test_fuzz.py`` mutate requests that are known; here they are put together from parts, so
that each part meets each other one: versions, targets, names and values, lengths and codings, what follows on.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.server_state import ServerState
from tests.transport.http.protocol.test_http1 import served
from tests.transport.http.support import InstantService, app_of, connect_to

pytestmark = pytest.mark.exhaustive


def mostly(*known: str, strange: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One of these, and now and then anything."""
    return st.integers(0, 9).flatmap(lambda draw: strange if draw == 0 else st.sampled_from(known))


METHODS: Final = mostly(
    *("GET", "HEAD", "POST", "PUT", "GET", "POST", "OPTIONS", "get", "BREW"), strange=st.text(max_size=5)
)
TARGETS: Final = mostly(
    *("/", "/predictions", "/predictions/a", "/predictions/%2F%41", "/predictions/%ff", "/predictions/a/cancel"),
    *("/health-check", "/readyz", "/openapi.json", "/trainings/a", "/unread", "/chunked", "/204", "/close", "*"),
    *("http://localhost/predictions", "//", "/?", "/#a", "/predictions/ws", "/%", "/a b", ""),
    strange=st.text(max_size=12).map(lambda text: "/" + text),
)
VERSIONS: Final = mostly(
    *["HTTP/1.1"] * 12, "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", strange=st.sampled_from(["", "HTTP/11", "1"])
)
NAMES: Final = mostly(
    *("host", "Host", "content-length", "transfer-encoding", "connection", "expect", "accept", "prefer", "upgrade"),
    *("content-type", "last-event-id", "origin", "x", "cookie", "te", "trailer", "authorization"),
    strange=st.text(max_size=6),
)
VALUES: Final = mostly(
    *("localhost", "127.0.0.1:1", "0", "2", "5", "007", "+2", "-1", "2, 2", "99999999999999999999", "1_0", "0x2"),
    *("chunked", "gzip, chunked", "chunked, chunked", "identity", "close", "keep-alive", "Close, x", "upgrade"),
    *("100-continue", "websocket", "h2c", "application/json", "text/event-stream", "respond-async", "wait=0", ""),
    *("http://localhost", "a-1", " ", "\t x", "a,,b", '"', "é"),
    strange=st.text(max_size=8),
)
BODIES: Final = st.sampled_from(
    [b"", b"", b"{}", b'{"id":"a"}', b"2\r\n{}\r\n0\r\n\r\n", b"0\r\nx: y\r\n\r\n", b"\r\n", b"5\r\n{}"]
)
ENDS: Final = st.sampled_from(["\r\n"] * 40 + ["\n", "\r", "\r\n "])
COLONS: Final = st.sampled_from([": "] * 10 + [":", ":\t", " : ", ""])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    lines = [" ".join((draw(METHODS), draw(TARGETS), draw(VERSIONS)))]
    if draw(st.integers(0, 9)):
        lines.append("host: localhost")
    for _ in range(draw(st.integers(0, 4))):
        lines.append(draw(NAMES) + draw(COLONS) + draw(VALUES))
    body = draw(BODIES | st.binary(max_size=6))
    if draw(st.booleans()):
        lines.append(f"content-length: {len(body)}")
    text = "".join(line + draw(ENDS) for line in lines) + "\r\n"
    return text.encode("latin-1", "ignore") + body


WIRES: Final = st.lists(requests(), min_size=1, max_size=3).map(b"".join)
CUTS: Final = st.lists(st.integers(0, 400), max_size=4)
DRAWN: Final = settings(
    derandomize=True, max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


CONTINUE: Final = b"HTTP/1.1 100 \r\n\r\n"


def pieces(wire: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    return [wire[start:end] for start, end in pairwise(places)]


@DRAWN
@given(wire=WIRES, cuts=CUTS)
async def test_it_matters_to_nobody_how_a_conversation_is_cut(wire: bytes, cuts: list[int]) -> None:
    """But that a client which waits for 100 Continue gets one if its body did not come with the head."""
    whole, cut = await served([wire]), await served(pieces(wire, cuts))
    assert cut[0].replace(CONTINUE, b"") == whole[0].replace(CONTINUE, b"")
    assert cut[1:] == whole[1:]


@DRAWN
@given(wire=WIRES | st.binary(max_size=60), cuts=CUTS, ends=st.booleans())
async def test_no_bytes_cost_a_connection_or_find_a_fault(
    wire: bytes, cuts: list[int], ends: bool, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever comes, however it comes: its connection and its tasks end, no answer is a 5xx but 501 (a coding that
    nobody knows), the log tells of no fault, and the server goes on."""
    state = ServerState(Settings(body_limit=10_000))
    app = app_of(InstantService(slots=10**6))
    async with trio.open_nursery() as nursery:
        client = connect_to(nursery, app, state)
        try:
            for piece in pieces(wire, cuts):
                await client.send(piece)
                await trio.testing.wait_all_tasks_blocked()
            if ends:
                await client.stream.send_eof()
            answers = await client.eof()
        except trio.BrokenResourceError:
            answers = await client.eof()  # the server has closed, as it may
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert not state.connections
        assert not nursery.child_tasks
    faults = [line for line in answers.split(b"HTTP/1.1 ")[1:] if line.startswith(b"5") and not line.startswith(b"501")]
    assert not faults
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
