"""What we build on in Hypercorn is still there, in the shape that we override."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypercorn.protocol.h2 import H2Protocol, StreamBuffer
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream

from cog_trio.transport.http.protocol.http2 import Http2
from cog_trio.transport.http.protocol.websocket import WebSocketStream

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
    WebSocketStream: ["_handle_events", "_send_error_response"],
    Http2: ["_handle_events", "stream_send", "_send_data", "_close_stream"],
}
USED = {
    H2Protocol: ["_flush", "initiate"],
    StreamBuffer: ["close"],
    HTTPStream: ["handle", "app_send"],
    WSStream: ["handle", "app_send", "_send_wsproto_event"],
}


def test_protocols_are_made_as_we_make_them() -> None:
    assert list(inspect.signature(H2Protocol.__init__).parameters) == MADE_WITH
    stream = [*(name for name in MADE_WITH if name != "connection_state"), "stream_id"]
    assert list(inspect.signature(WSStream.__init__).parameters) == stream


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OVERRIDDEN.items() for name in names])
def test_what_we_override_has_the_same_parameters(kind: type[Any], name: str) -> None:
    theirs = inspect.signature(getattr(kind.__mro__[1], name))
    assert list(inspect.signature(getattr(kind, name)).parameters) == list(theirs.parameters)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in USED.items() for name in names])
def test_what_we_call_is_there(kind: type[Any], name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(kind, name))
