"""Prefer, Accept, Content-Type as values."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from cog_trio.transport.http.api.access_control import is_loopback_name
from cog_trio.transport.http.api.request_headers import (
    MAX_REMEMBERED,
    Preference,
    is_json,
    preference,
    trace,
    wants_stream,
)


@pytest.mark.covers("lesson:49")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", Preference()),
        (b"respond-async", Preference(True)),
        (b"  RESPOND-async  ", Preference(True)),
        (b"wait=10", Preference(False, 10)),
        (b'Wait = "10"', Preference(False, 10)),
        (b"wait=10, wait=20, respond-async", Preference(True, 10)),
        (b"wait=-1", Preference()),
        (b"wait=1.5", Preference()),
        (b"wait", Preference()),
        (b"wait=99999999999999999999999999999", Preference(False, 10**6)),
        (b'a="b, respond-async"', Preference()),
        (b'a="b\\", c", respond-async', Preference(True)),
        (b'a="unclosed, respond-async', Preference()),
        (b",,, ;;; ,=,", Preference()),
        (b"wait=\xb2", Preference()),
    ],
)
def test_preference(value: bytes, expected: Preference) -> None:
    assert preference(value) == expected


@pytest.mark.covers("lesson:49")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"text/event-stream", True),
        (b"TEXT/EVENT-STREAM;charset=utf-8", True),
        (b"text/event-stream;q=0.001", True),
        (b"text/event-stream;q=0", False),
        (b"text/event-stream;q=0.0", False),
        (b"text/event-stream; Q=0", False),
        (b"text/event-stream;q=nonsense", True),
        (b"application/json, text/event-stream", True),
        (b"application/json;q=0.9, text/event-stream;q=0.8", False),
        (b"*/*, text/event-stream;q=0.8", False),
        (b"*/*;q=0.1, text/event-stream;q=0.8", True),
        (b"application/json;q=0, */*, text/event-stream;q=0.8", False),
        (b'text/html;x="text/event-stream, text/event-stream"', False),
        (b"", False),
    ],
)
def test_wants_stream(value: bytes, expected: bool) -> None:
    assert wants_stream(value) is expected


def test_is_json() -> None:
    assert is_json(b" application/json ; charset=utf-8")
    assert is_json(b"application/problem+JSON")
    assert not is_json(b"application/+json")
    assert not is_json(b"application/jsonp")
    assert not is_json(b"text/json")
    assert is_json(b"application/json;")
    assert is_json(b'application/json; a="b;\\"c" ; d=e')
    for rest in (b"; charset", b" charset=utf-8", b", text/plain", b';a="b'):
        assert not is_json(b"application/json" + rest)
    assert not is_json(b"")


def test_trace_context_is_taken_verbatim() -> None:
    parent, state = (
        b"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"congo=t61rcWkgMzE, rojo=00f067aa0ba902b7",
    )
    headers = {b"tracestate": state, b"accept": b"*/*", b"traceparent": parent}
    assert trace(headers) == ((b"traceparent", parent), (b"tracestate", state))
    assert trace({b"tracestate": state}) == ((b"tracestate", state),)
    assert trace({}) == ()


@pytest.mark.parametrize("value", [b"", b" a", b"a ", b"a\x7fb", b"a\xffb", b"a\r\nb: c"])
def test_trace_context_that_no_header_can_carry_is_left(value: bytes) -> None:
    assert trace({b"traceparent": value}) == ()


@pytest.mark.parametrize("function", [preference, wants_stream, is_json, is_loopback_name])
def test_long_values_are_not_kept(function: Callable[[bytes], object]) -> None:
    """Anybody can send them, with a token or without."""
    for length in (MAX_REMEMBERED, MAX_REMEMBERED + 1, 30_000):
        kept = b"text/event-stream, x=".ljust(length, b"x")
        before = sys.getrefcount(kept)
        function(kept)
        assert sys.getrefcount(kept) - before == (length <= MAX_REMEMBERED)
