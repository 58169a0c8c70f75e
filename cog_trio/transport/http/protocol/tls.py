"""TLS on an accepted socket: the handshake, and an end that the client can tell from a broken line.

``trio.SSLStream`` does the work. What it lacks is an end in two steps, which HTTP needs: say goodbye, then drop what
the client still sends, since a reset would eat the reply that it has not read yet. So the socket below is kept open
when the ``SSLStream`` closes; from then on what comes is read as it is and is nobody's.

A handshake is a wait like any other: its caller gives it a deadline, and it holds up no other connection.
"""

from __future__ import annotations

import logging
import ssl
from typing import Final

import trio

from cog_trio.state.internal_errors import describe_error
from cog_trio.transport.http.protocol.listeners import refuse_client

log = logging.getLogger(__name__)

GOODBYE: Final = 1.0  # seconds for the last words, 24 bytes: more is only needed by a client that takes nothing
_PLAIN: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b'content-length: 46\r\nconnection: close\r\n\r\n{"detail":"This server speaks TLS: use https"}'
)


class TlsStream(trio.abc.HalfCloseableStream):
    """One connection under TLS; ``socket`` is the one below."""

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._tls = trio.SSLStream(_KeptStream(stream), context, server_side=True, https_compatible=False)
        self._over = False

    async def do_handshake(self) -> None:
        """Agree on how to go on.

        Raises:
          trio.BrokenResourceError: if that fails, by the ``ssl.SSLError`` that is its cause.

        Cancellation: the stream is of no use any more.
        """
        await self._tls.do_handshake()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """What the client sends; once our side is closed whatever comes, unread.

        Raises:
          trio.BrokenResourceError: also if the client's end was no goodbye.
        """
        if not self._over:
            try:
                return await self._tls.receive_some(max_bytes)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                if not self._over:  # closed meanwhile by another task
                    raise
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._tls.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say goodbye and close our side, if that is not done yet; bounded."""
        if self._over:
            return
        self._over = True
        with trio.move_on_after(GOODBYE):
            await self._tls.aclose()
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket as it is."""
        self._over = True
        await self._stream.aclose()


class _KeptStream(trio.abc.Stream):
    """The socket's stream, which stays open when the one above closes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def handshake(stream: trio.SocketStream, context: ssl.SSLContext) -> TlsStream | None:
    """The stream under TLS; none if the client wants something else, which closes it.

    Cancellation: the caller closes the stream.
    """
    secured = TlsStream(stream, context)
    try:
        await secured.do_handshake()
    except Exception as error:
        cause = error.__cause__ or error
        log.debug("a handshake failed: %s", describe_error(cause), exc_info=error)  # it ends this connection alone
        if isinstance(cause, ssl.SSLError) and cause.reason == "HTTP_REQUEST":
            await refuse_client(stream, _PLAIN)
        await trio.aclose_forcefully(stream)
        return None
    return secured
