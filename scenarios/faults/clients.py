"""Clients on bare sockets: they send what they like, read when they like, and leave as they like."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from cog_trio.testing import Server

GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)  # the other side has left

BAD: Final = (
    b"\x00" * 100,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 64,
    b"GET /health-check HTTP/1.1\r\n\r\n",
    b"GET /health-check HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
    b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 50,
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 3_000 + b"\r\n",
    b"GET /predictions/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n\xff\xff",
)

WRONG: Final[tuple[tuple[str, str, bytes, int], ...]] = (  # method, path, body, status
    ("POST", "/predictions", b"{", 400),
    ("POST", "/predictions", b"\xff\xfe", 400),
    ("POST", "/predictions", b"[" * 5_000, 400),
    ("POST", "/predictions", b"[]", 422),
    ("POST", "/predictions", b'{"input": {}}', 422),
    ("POST", "/predictions", b'{"input": {"name": 3}}', 422),
    ("POST", "/predictions", b'{"input": {"name": "x", "steps": "many"}}', 422),
    ("POST", "/predictions", b'{"input": {"name": "x"}, "webhook": "nowhere"}', 422),
    ("PUT", "/predictions/x", b'{"id": "y", "input": {"name": "x"}}', 422),
    ("PUT", "/predictions/%00", b'{"input": {"name": "x"}}', 422),
    ("POST", "/predictions/nobody/cancel", b"", 404),
    ("GET", "/predictions/nobody", b"", 404),
    ("DELETE", "/predictions", b"", 405),
    ("GET", "/nowhere", b"", 404),
)

PRIVATE: Final = (  # what a stranger asks for where there is a token
    ("GET", "/"),
    ("GET", "/predictions"),
    ("POST", "/predictions"),
    ("PUT", "/predictions/stranger"),
    ("POST", "/predictions/run-1/cancel"),
    ("GET", "/predictions/run-1"),
    ("GET", "/openapi.json"),
    ("POST", "/shutdown"),
    ("GET", "/nowhere"),
)


async def connect(server: Server, *, narrow: bool = False) -> trio.SocketStream:
    """A connection; a narrow one takes only a few kilobytes before it must be read."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    assert address.port is not None
    if not narrow:
        return await trio.open_tcp_stream(address.hostname, address.port)
    end = trio.socket.socket()
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await end.connect((address.hostname, address.port))
    except BaseException:
        end.close()
        raise
    return trio.SocketStream(end)


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """The bytes of a request."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    head += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*head, f"content-length: {len(raw)}"]).encode() + b"\r\n\r\n" + raw


async def leave(stream: trio.SocketStream, rng: random.Random) -> None:
    """Close it: with a goodbye, with a reset, or one half first."""
    how = rng.randrange(3)
    try:
        if how == 0:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == 1:
            await stream.send_eof()
            with trio.move_on_after(rng.uniform(0, 0.05)):
                await stream.receive_some()
    except GONE:
        pass
    finally:
        await trio.aclose_forcefully(stream)


async def read_all(stream: trio.SocketStream, seconds: float) -> bytes:
    """What comes until the other side ends or the time is over."""
    came = b""
    with trio.move_on_after(seconds):
        try:
            while chunk := await stream.receive_some():
                came += chunk
        except GONE:
            pass
    return came


class Connection:
    """A connection that is kept, for many requests one after the other; as cheap as can be."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._rest = bytearray()

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Send a request; status and body of the reply."""
        await self.stream.send_all(raw)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        while (end := self._rest.find(b"\r\n\r\n")) < 0:
            await self._more()
        head = bytes(self._rest[:end]).lower()
        size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(self._rest) < end + 4 + size:
            await self._more()
        body = bytes(self._rest[end + 4 : end + 4 + size])
        del self._rest[: end + 4 + size]
        return int(head.split()[1]), body

    async def _more(self) -> None:
        chunk = await self.stream.receive_some(2**16)
        if not chunk:
            raise EOFError(bytes(self._rest[:200]))
        self._rest += chunk


@asynccontextmanager
async def kept(server: Server) -> AsyncIterator[Connection]:
    async with await connect(server) as stream:
        yield Connection(stream)
