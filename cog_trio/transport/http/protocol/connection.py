"""One connection: the guard round it, its reading task, its one way to write, and every deadline it has.

In: a stream that was accepted. Out: calls of the app, in the connection's own nursery. A protocol does the parsing:
``http1.py`` first, which may hand over to a WebSocket or to HTTP/2. This class is the transport beneath it, and for
Hypercorn's classes the task group beside them.

- Several messages of a WebSocket are held back (the cork) and leave with one send.
- A write has no fixed duration, but each piece must make progress within the write timeout; then the client is
  given up. A write that failed or was cut breaks the connection: nothing is written after it.
- Reading has one deadline, taken again before each read: idle, half a head, a stalled body. No task waits for it.
- The end is orderly: our side is shut first, then what the client still sends is read and dropped for a short
  time, so that a reset does not eat the reply that it has not read yet.
- An exception of whatever kind ends this connection and no other; ``Cancelled`` beside it passes on.
"""

from __future__ import annotations

import logging
import os
import socket as stdlib_socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

from cog_trio.state.internal_errors import Where, contain
from cog_trio.transport.http.protocol.http1 import GONE, LARGE_READ, MAX_READ, Http1, Switch
from cog_trio.transport.http.protocol.receive_queue import EXTENSION, Message, ReceiveQueue
from cog_trio.transport.http.protocol.tls import TlsStream

if TYPE_CHECKING:
    from cog_trio.transport.http.protocol.http2 import Http2
    from cog_trio.transport.http.protocol.server_state import ServerState
    from cog_trio.transport.http.protocol.websocket import WebSocket

log = logging.getLogger(__name__)

Send: TypeAlias = "Callable[[Message], Awaitable[None]]"
Receive: TypeAlias = "Callable[[], Awaitable[Message]]"
App: TypeAlias = "Callable[[dict[str, Any], Receive, Send], Awaitable[None]]"

PROTOCOLS: Final = "cog_trio.transport.http.protocol.hypercorn_protocols"
PIECE: Final = 16 * 2**10  # bytes of frames that Hypercorn's protocols get at once
MAX_JOIN: Final = 256 * 2**10  # bytes of pieces that are joined for one send; larger ones go out as they are
LINGER: Final = 2.0  # seconds without a byte until a closing connection is closed
MAX_LINGER: Final = 10.0  # seconds that it is read in all
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: drop what the kernel still holds


async def serve_connection(app: App, server: ServerState, stream: trio.abc.HalfCloseableStream) -> None:
    """Serve one connection to its end. No exception leaves but ``Cancelled`` and its like."""
    connection = Connection(app, server, stream)
    try:
        with contain(Where.CONNECTION):
            await connection.run()
    finally:
        with contain(Where.CONNECTION):
            await connection.close()


def _address(family: int, name: Any) -> tuple[str, int] | None:
    """What ASGI calls a client or a server; a Unix socket has none."""
    return (name[0], name[1]) if family in (stdlib_socket.AF_INET, stdlib_socket.AF_INET6) else None


async def _nothing() -> None:
    """What an app waits for comes unasked, in HTTP/2 and in a WebSocket."""


class Connection:
    """One accepted stream; ``run`` serves it. It is Hypercorn's task group too."""

    def __init__(self, app: App, server: ServerState, stream: trio.abc.HalfCloseableStream) -> None:
        self._app = app
        self._server = server
        self._stream = stream
        self._tls = isinstance(stream, TlsStream)
        self._peer = stream.socket if isinstance(stream, (trio.SocketStream, TlsStream)) else None
        self._socket = None if self._tls else self._peer  # to read from and write to without a detour
        self._protocol: Http1 | WebSocket | Http2
        self._nursery: trio.Nursery
        self._out: list[bytes] = []
        self._corks = 0
        self._writing = False
        self._written = trio.lowlevel.ParkingLot()
        self._broken = False  # nothing can be written any more
        self.closing = False  # our side is shut; what comes is dropped
        self._linger_until = 0.0
        self.idle_since: float | None = trio.current_time()
        self.reading = trio.CancelScope()
        self._helpers: set[trio.CancelScope] = set()

    async def run(self) -> None:
        client = server = None
        if self._peer is not None:
            try:
                client = _address(self._peer.family, self._peer.getpeername())
                server = _address(self._peer.family, self._peer.getsockname())
            except OSError:
                await trio.aclose_forcefully(self._stream)
                return
        self._server.connections.add(self)
        try:
            async with trio.open_nursery() as self._nursery:
                scheme = "https" if self._tls else "http"
                http1 = Http1(self._app, self, self._server, self._nursery, scheme, client, server)
                self._protocol = http1
                switch = await http1.run()
                if switch is not None:
                    await self._read(await self._switch(switch, client, server), switch.data)
                await self._protocol.connection_lost()
                for helper in self._helpers:
                    helper.cancel()
        finally:
            self._server.connections.discard(self)

    async def _switch(self, switch: Switch, client: Any, server: Any) -> WebSocket | Http2:
        """Go on in another protocol."""
        self.idle_since = None if switch.head else trio.current_time()  # the preface of HTTP/2 is not a request
        if PROTOCOLS not in sys.modules:
            await trio.to_thread.run_sync(import_module, PROTOCOLS)
        from cog_trio.transport.http.protocol.hypercorn_protocols import make_protocol

        protocol = await make_protocol(switch, self, self._app, self._server, self._tls, (client, server))
        self._protocol = protocol
        await protocol.initiate()
        return protocol

    # Reading.

    async def receive(self, size: int = MAX_READ, at_once: bool = False) -> bytes | bytearray:
        """The next bytes, none at the end of the client.

        Args:
          at_once: look before the first wait; there is no checkpoint then if they are here.
        """
        sock = self._socket
        if sock is None:
            return await self._stream.receive_some(size)
        while True:
            if sock.fileno() < 0:
                raise trio.ClosedResourceError("another task closed it")
            if not at_once:
                await trio.lowlevel.wait_readable(sock)
            at_once = False
            try:
                return os.read(sock.fileno(), size)
            except BlockingIOError:
                continue

    def linger_deadline(self) -> float:
        return min(trio.current_time() + LINGER, self._linger_until)

    async def _read(self, protocol: WebSocket | Http2, data: bytes | bytearray) -> None:
        """Read for a protocol that is made of Hypercorn's classes; ``data`` is here already."""
        if data:
            await self._give(protocol, data)
        size = MAX_READ
        while True:
            now = trio.current_time()
            if self.closing:
                deadline = self.linger_deadline()
            else:
                deadline = protocol.read_deadline(now, self.idle_since, self._server.keep_alive)
            with trio.CancelScope(deadline=deadline) as self.reading:
                try:
                    data = await self._stream.receive_some(size)
                except GONE:
                    break
            if self.reading.cancelled_caught:
                if self.closing or self.idle_since is not None:
                    break
                await protocol.refuse(408)
            else:
                if not self.closing:
                    size = LARGE_READ if len(data) >= MAX_READ else MAX_READ
                    await self._give(protocol, data)
                if not data:
                    break

    async def _give(self, protocol: WebSocket | Http2, data: bytes | bytearray) -> None:
        """Frames come in pieces, with a turn of others between: one read may hold twenty thousand."""
        for start in range(0, len(data) or 1, PIECE):
            if start:
                await trio.lowlevel.checkpoint()
                if self.closing:
                    break
            await protocol.feed(bytes(data[start : start + PIECE]))

    def close_if_idle(self) -> None:
        """The server ends: a connection without a request, or whose reply is out, has no reason to stay."""
        if self.idle_since is not None or self.closing:
            self.closing = True
            self.reading.cancel()

    # Writing.

    @contextmanager
    def corked(self) -> Iterator[None]:
        self._corks += 1
        try:
            yield
        finally:
            self._corks -= 1

    async def put(self, data: bytes) -> None:
        """Write, or hold it back while messages are joined."""
        self._out.append(data)
        if not self._corks:
            await self.flush()

    async def set_idle(self, idle: bool) -> None:
        """Whether no request is open; what an idle connection has to write is out."""
        if not idle:
            self.idle_since = None
            return
        if self._out:
            await self.flush()
        self.idle_since = trio.current_time()
        self.reading.deadline = self.idle_since + self._server.keep_alive
        if self._server.ending:  # the end began while the reply was written
            self.close_if_idle()

    async def end(self) -> None:
        """End the connection from our side, once all is out."""
        await self.flush()
        await self._shut()
        await self._protocol.connection_lost()

    async def write(self, *pieces: bytes) -> None:
        """Write pieces, after what is held; return when they are out."""
        self._out += pieces
        await self.flush()

    async def flush(self) -> None:
        """Write all that is held; return when it is out, by whichever task."""
        while self._out:
            if self._writing:
                await self._written.park()
                continue
            if self._broken:
                self._out.clear()
                return
            pieces, self._out = self._out, []
            if len(pieces) > 1 and sum(map(len, pieces)) <= MAX_JOIN:
                pieces = [b"".join(pieces)]
            self._writing, self._broken = True, True
            try:
                for piece in pieces:
                    await self._write(piece)
                self._broken = False
            except (*GONE, trio.TooSlowError) as error:
                if isinstance(error, trio.TooSlowError):
                    log.info("a client that took nothing for %g s is given up", self._server.write_timeout)
                await self._abort()
            finally:
                self._writing = False
                self._written.unpark_all()

    async def _write(self, data: bytes) -> None:
        """Write it all; no checkpoint where the kernel takes it at once, which is the usual case."""
        sent = self._write_now(data)
        if sent == len(data):
            return
        timeout = self._server.write_timeout
        with trio.fail_after(timeout) as scope:
            if self._socket is None:
                for start in range(0, len(data), MAX_READ):
                    await self._stream.send_all(data[start : start + MAX_READ])
                    scope.deadline = trio.current_time() + timeout
                return
            with memoryview(data) as view:
                while sent < len(data):
                    sent += await self._socket.send(view[sent:])
                    scope.deadline = trio.current_time() + timeout

    def write_now(self, *pieces: bytes) -> bool:
        """Write pieces as far as that needs no wait; say whether they are out. If not, ``flush`` writes the rest."""
        data = b"".join(pieces)
        if not (self._out or self._writing or self._broken):
            try:
                sent = self._write_now(data)
            except trio.BrokenResourceError:
                sent = 0  # which ``flush`` finds too, and can deal with
            if sent == len(data):
                return True
            data = data[sent:]
        self._out.append(data)
        return False

    def _write_now(self, data: bytes) -> int:
        """How many bytes the kernel took without a wait.

        Raises:
          trio.BrokenResourceError: if nobody will read them.
        """
        if self._socket is None:
            return 0
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"the client is gone: {error}") from error

    async def _abort(self) -> None:
        """Nothing more can be written: end it now, what the kernel holds included."""
        self.closing = True
        if self._peer is not None:
            with suppress(OSError):  # it is closed already
                self._peer.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_LINGER, _RESET_ON_CLOSE)
        await trio.aclose_forcefully(self._stream)
        await self._protocol.connection_lost()

    async def _shut(self) -> None:
        if self.closing:
            return
        self.closing = True
        now = trio.current_time()
        self._linger_until = now + MAX_LINGER
        self.reading.deadline = now + LINGER
        try:
            await self._stream.send_eof()
        except (*GONE, trio.BusyResourceError):
            self._broken = True

    async def close(self) -> None:
        """Close the stream, after an orderly end where there is one."""
        try:
            await self._shut()
            if self._tls and not self._broken:
                with suppress(*GONE):
                    await self._stream.send_eof()  # who was idle at the end of the server has heard no goodbye
        finally:
            await trio.aclose_forcefully(self._stream)

    # Hypercorn's task group.

    async def spawn_app(self, app: App, config: Any, scope: dict[str, Any], send: Any) -> Any:
        receive_queue = ReceiveQueue(_nothing)
        self._nursery.start_soon(self._run_app, scope, receive_queue, send)
        return receive_queue.put

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._nursery.start_soon(self._help, function, args)

    async def _help(self, function: Callable[..., Awaitable[None]], args: tuple[Any, ...]) -> None:
        """A task of Hypercorn's own, like one that pings: it ends with the reading, whatever it waits for."""
        with trio.CancelScope() as scope:
            self._helpers.add(scope)
            await function(*args)
        self._helpers.discard(scope)

    async def _run_app(self, scope: dict[str, Any], receive_queue: ReceiveQueue, hypercorn_send: Any) -> None:
        corks = self._protocol.joins_messages
        if scope["type"] == "http":
            scope["extensions"][EXTENSION] = receive_queue

        async def send(message: Message) -> None:
            if self.closing:
                await trio.lowlevel.checkpoint()  # the client is gone; for an app that sends on and on
                return
            final = message["type"] == "http.response.body" and not message.get("more_body", False)
            if final:
                receive_queue.abandon()
            if not corks:
                await hypercorn_send(message)
                return
            self._corks += 1
            try:
                await hypercorn_send(message)
            finally:
                self._corks -= 1
            if message["type"] != "http.response.start" and not message.get("more"):  # a WebSocket's next comes now
                await self.flush()
                if not final:
                    await trio.lowlevel.checkpoint()  # for an app that sends on and on to a client that keeps up

        try:
            await self._app(scope, receive_queue.receive, send)
        except Exception:
            log.exception("the app failed")
        receive_queue.abandon()
        if not self.closing:
            await hypercorn_send(None)
            await self.flush()
