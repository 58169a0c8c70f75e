"""What the settings of the server say is what it does: times, the queue of the kernel, the lines of the log."""

from __future__ import annotations

import logging
import socket
import struct
import sys

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.transport.http.protocol.listeners import open_listeners
from tests.transport.http.protocol.test_connection import echo, hello
from tests.transport.http.support import InstantService, app_of, connect

MAX_BACKLOG_AT = 28  # where tcp_info of a listening socket has the bound of its queue


async def test_timeout_keep_alive_and_header_timeout(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    settings = Settings(timeout_keep_alive=5, header_timeout=7)
    idle = connect(nursery, hello, settings)
    assert (await idle.request("GET", "/")).status == 200
    start = trio.current_time()
    assert await idle.eof() == b""
    assert trio.current_time() - start == 5
    for begun in (b"GET / HTTP/1.1\r\nhost", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab"):
        client = connect(nursery, echo, settings)
        await client.send(begun)
        start = trio.current_time()
        assert (await client.response()).status == 408
        assert trio.current_time() - start == 7


@pytest.mark.skipif(sys.platform != "linux", reason="tcp_info")
async def test_backlog() -> None:
    for backlog in (1, 17):
        (listener,) = await open_listeners(Settings(port=0, backlog=backlog))
        information = listener.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        assert struct.unpack_from("I", information, MAX_BACKLOG_AT) == (backlog,)
        listener.socket.close()


async def test_each_request_is_one_line_of_the_log_and_none_without_the_access_log(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cog_trio.access")
    for access_log in (True, False):
        client = connect(nursery, app_of(InstantService(), Settings(access_log=access_log)))
        caplog.clear()
        await client.request("PUT", "/predictions/a%0Ab%1B%5B31m", b"{}")
        await client.request("GET", "/nothing?secret=1")
        for probe in ("/health-check", "/livez", "/readyz"):
            await client.request("GET", probe)
        lines = [" ".join(record.getMessage().split()[:3]) for record in caplog.records]
        expected = ["PUT /predictions/a%0Ab%1B%5B31m 422", "GET /nothing 404"]
        assert lines == (expected if access_log else []), "as it was escaped on the wire; no query, no probes"
