"""What we build on in Hypercorn is still there, in the shape that we override."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypercorn.protocol.h2 import H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream

from cog_trio.transport.http.protocol.http1 import Http1
from cog_trio.transport.http.protocol.http2 import Http2

MADE_WITH = [
    "self",
    "app",
    "config",
    "context",
    "task_group",
    "connection_state",
    "ssl",
    "client",
    "server",
    "send",
]
OVERRIDDEN = {
    Http1: ["handle", "_handle_events", "stream_send", "_check_protocol", "_maybe_recycle"],
    Http2: ["_handle_events", "stream_send", "_send_data", "_close_stream"],
}
USED = {
    H11Protocol: ["_create_stream", "_send_h11_event", "_close_stream"],
    H2Protocol: ["_flush", "initiate"],
    StreamBuffer: ["close"],
    HTTPStream: ["handle", "app_send"],
    WSStream: ["handle", "app_send"],
}


@pytest.mark.parametrize("kind", [H11Protocol, H2Protocol])
def test_protocols_are_made_as_we_make_them(kind: type[Any]) -> None:
    assert list(inspect.signature(kind.__init__).parameters) == MADE_WITH


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OVERRIDDEN.items() for name in names])
def test_what_we_override_has_the_same_parameters(kind: type[Any], name: str) -> None:
    theirs = inspect.signature(getattr(kind.__mro__[1], name))
    assert list(inspect.signature(getattr(kind, name)).parameters) == list(theirs.parameters)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in USED.items() for name in names])
def test_what_we_call_is_there(kind: type[Any], name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(kind, name))
