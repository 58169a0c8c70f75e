"""HTTP servers on 127.0.0.1 and a free port, for tests: they note what comes, and answer as they are told, also badly.

``Loopback`` is what the receiver of webhooks, the file server and the upload server have in common. How a request is
answered: by its path in ``replies``, else by the next of ``script``, else as ``usual``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import h11
import trio

from cog_trio.testing.helper_tasks import need_real_time, open_helpers

KEPT: Final = 16 * 2**20  # bytes of a body that are kept; of a longer one only length and hash
CHUNK: Final = 2**18  # bytes of one read


@dataclass(frozen=True)
class Reply:
    """How one request is answered."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""
    delay: float = 0.0  # seconds until it is answered; math.inf: never
    closes: bool = False  # not answered: the connection ends
    stalls: bool = False  # the head and half of the content, and then nothing more


OK: Final = Reply()


@dataclass
class Request:
    """One request that came, whole."""

    at: float  # trio.current_time()
    method: str
    path: str  # as it came, with its query
    headers: dict[str, str]  # names in lower case
    size: int  # bytes of the body
    sha256: str  # of the body, as hex
    reply: Reply  # how it is answered
    _kept: bytes | None

    @property
    def content(self) -> bytes:
        """The body.

        Raises:
          ValueError: if it was too long to be kept.
        """
        if self._kept is None:
            raise ValueError(f"a body of {self.size} bytes is not kept: see size and sha256")
        return self._kept

    def json(self) -> Any:
        """The body, as JSON."""
        return json.loads(self.content)


@dataclass
class Loopback:
    """One server; ``open_loopback`` runs it."""

    url: str = ""  # without a slash at its end
    usual: Reply = OK
    script: list[Reply] = field(default_factory=list)  # of the next requests, one each
    replies: dict[str, Reply] = field(default_factory=dict)  # by path without query, or by its last part
    came: list[Request] = field(default_factory=list)
    answered: list[Request] = field(default_factory=list)  # in the order of their answers
    open: int = 0  # requests that wait for their answer
    most: int = 0  # so many waited at once

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def _choose(self, path: str) -> Reply:
        name = unquote(path.partition("?")[0]).lstrip("/")
        for key in (name, name.rpartition("/")[2]):
            if key in self.replies:
                return self.replies[key]
        return self.script.pop(0) if self.script else self.usual

    async def _serve(self, stream: trio.SocketStream) -> None:
        """One connection, to its end."""
        connection = h11.Connection(h11.SERVER)
        try:
            while await self._exchange(connection, stream):
                connection.start_next_cycle()
        except (h11.RemoteProtocolError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has left, or speaks something else
        finally:
            stream.socket.close()  # at once, so that no cancel on the way takes the place of an error

    async def _exchange(self, connection: h11.Connection, stream: trio.SocketStream) -> bool:
        """One request and its answer; False when the connection is over."""
        head = await _event(connection, stream)
        if not isinstance(head, h11.Request):
            return False
        request = await self._read(head, connection, stream)
        self.came.append(request)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await trio.sleep(request.reply.delay)
        finally:
            self.open -= 1
        if request.reply.closes:
            return False
        self.answered.append(request)  # before a client can know of it
        await _answer(request, connection, stream)
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _read(self, head: h11.Request, connection: h11.Connection, stream: trio.SocketStream) -> Request:
        digest, size, kept = hashlib.sha256(), 0, bytearray()
        while isinstance(event := await _event(connection, stream), h11.Data):
            digest.update(event.data)
            size += len(event.data)
            if size <= KEPT:
                kept += event.data
        path = head.target.decode()
        return Request(
            trio.current_time(),
            head.method.decode(),
            path,
            {name.decode(): value.decode(errors="replace") for name, value in head.headers},
            size,
            digest.hexdigest(),
            self._choose(path),
            bytes(kept) if size <= KEPT else None,
        )


async def _event(connection: h11.Connection, stream: trio.SocketStream) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await stream.receive_some(CHUNK))
    return event


async def _answer(request: Request, connection: h11.Connection, stream: trio.SocketStream) -> None:
    reply = request.reply
    content = b"" if request.method == "HEAD" else reply.content
    head = h11.Response(status_code=reply.status, headers=[*reply.headers, ("content-length", str(len(reply.content)))])
    await stream.send_all(connection.send(head) or b"")
    if reply.stalls:
        await stream.send_all(connection.send(h11.Data(data=content[: len(content) // 2])) or b"")
        await trio.sleep_forever()
    for event in (h11.Data(data=content), h11.EndOfMessage()):
        await stream.send_all(connection.send(event) or b"")


L = TypeVar("L", bound=Loopback)


@asynccontextmanager
async def open_loopback(server: L) -> AsyncIterator[L]:
    """Run it for the length of the block; then its connections are cut.

    Raises:
      RuntimeError: outside of trio, or with a fake clock.
      BaseExceptionGroup: if a reply can't be sent because it is not HTTP. What the block raises passes unchanged.
    """
    need_real_time("a loopback server")
    async with open_helpers() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, server._serve, [listener])
        yield server
