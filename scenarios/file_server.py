"""A file server for the stories about files: it serves, takes and misbehaves as it is told, path by path.

Paths: ``/wait/S/...`` answers after S seconds, ``/half/...`` sends half of its body and no more, ``/to/URL``
redirects there, ``/user/...`` wants a password. A ``PUT`` is answered by the next status of ``statuses``, after the
``delays`` of its name; a name in ``silent`` is never answered. Bodies that are put are counted and hashed, not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

import h11
import trio


@dataclass
class Put:
    """One upload, as it came."""

    path: str
    headers: dict[str, str]
    size: int
    sha256: str


@dataclass
class FileServer:
    port: int = 0
    statuses: list[int] = field(default_factory=list)  # of the next uploads; then 200
    delays: dict[str, float] = field(default_factory=dict)  # seconds, by the name of an upload
    silent: set[str] = field(default_factory=set)
    puts: list[Put] = field(default_factory=list)  # in the order of their answers
    asked: list[str] = field(default_factory=list)  # paths that were fetched

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def open_file_server() -> AsyncIterator[FileServer]:
    """A server on a free port, for the length of a block."""
    server = FileServer()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(_serve, server), 0, host="127.0.0.1"))
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


async def _serve(server: FileServer, stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        while True:
            request = await _event(connection, stream)
            if not isinstance(request, h11.Request):
                return
            answer = _put if request.method == b"PUT" else _get
            await answer(server, connection, stream, request)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
    except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
        return
    finally:
        await trio.aclose_forcefully(stream)


async def _event(connection: h11.Connection, stream: trio.SocketStream) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await stream.receive_some(2**18))
    return event


async def _answer(
    connection: h11.Connection, stream: trio.SocketStream, status: int, body: bytes, *, half: bool = False, **more: str
) -> None:
    headers = [("content-length", str(len(body))), *((name, value) for name, value in more.items())]
    await stream.send_all(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
    await stream.send_all(connection.send(h11.Data(data=body[: len(body) // 2] if half else body)) or b"")
    if half:
        await trio.sleep_forever()
    await stream.send_all(connection.send(h11.EndOfMessage()) or b"")


async def _get(server: FileServer, connection: h11.Connection, stream: trio.SocketStream, request: h11.Request) -> None:
    while not isinstance(await _event(connection, stream), h11.EndOfMessage):
        pass
    path = request.target.decode()
    server.asked.append(path)
    kind, _, rest = path[1:].partition("/")
    if kind == "wait":
        await trio.sleep(float(rest.partition("/")[0]))
    if kind == "to":
        await _answer(connection, stream, 302, b"", location=unquote(rest))
    elif kind == "gone":
        await _answer(connection, stream, 404, b"")
    else:
        await _answer(connection, stream, 200, path.rpartition("/")[2].encode(), half=kind == "half")


async def _put(server: FileServer, connection: h11.Connection, stream: trio.SocketStream, request: h11.Request) -> None:
    digest, size = hashlib.sha256(), 0
    while not isinstance(event := await _event(connection, stream), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        digest.update(event.data)
        size += len(event.data)
    path = request.target.decode()
    name = path.rpartition("/")[2]
    if name in server.silent:
        await trio.sleep_forever()
    await trio.sleep(server.delays.get(name, 0))
    headers = {name.decode(): value.decode() for name, value in request.headers}
    server.puts.append(Put(path, headers, size, digest.hexdigest()))
    await _answer(connection, stream, server.statuses.pop(0) if server.statuses else 200, b"")
