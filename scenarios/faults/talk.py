"""A client of WebSockets without a task of its own: it reads when it is asked to, and may be left in any state."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Final

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError

READ: Final = 2**16  # bytes


class Closed(Exception):
    """The other side has closed the WebSocket, or never opened it."""


class Talk:
    """One WebSocket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._wire = WSConnection(ConnectionType.CLIENT)
        self._came: deque[Event] = deque()
        self._text = ""

    async def open(self, path: str, words: list[str]) -> None:
        """Shake hands; ``words`` are the subprotocols that are offered.

        Raises:
          Closed: if the server refuses; the status is its first argument.
        """
        await self._send(Request("localhost", path, subprotocols=words))
        event = await self._next()
        if isinstance(event, RejectConnection):
            raise Closed(event.status_code)
        assert isinstance(event, AcceptConnection), event

    async def say(self, message: str | bytes) -> None:
        await self._send(TextMessage(message) if isinstance(message, str) else BytesMessage(message))

    async def hear(self) -> dict[str, Any]:
        """The next event of the server's."""
        while True:
            event = await self._next()
            if isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    text, self._text = self._text, ""
                    value: dict[str, Any] = json.loads(text)
                    return value

    async def close(self) -> None:
        """Say goodbye, and hear it."""
        try:
            await self._send(CloseConnection(1000))
            while True:
                await self._next()
        except Closed:
            return

    async def _send(self, event: Event) -> None:
        try:
            data = self._wire.send(event)
        except LocalProtocolError as error:  # the other side has begun to close it
            raise Closed(str(error)) from error
        await self.stream.send_all(data)

    async def _next(self) -> Event:
        while not self._came:
            data = await self.stream.receive_some(READ)
            if not data:
                raise Closed("the connection ended")
            self._wire.receive_data(data)
            self._came += self._wire.events()
        event = self._came.popleft()
        if isinstance(event, Ping) and self._wire.state is ConnectionState.OPEN:
            await self._send(event.response())
        elif isinstance(event, CloseConnection):
            raise Closed(event.code, event.reason)
        return event
