"""Clients of streams: server-sent events and WebSockets, each on a connection of its own that can be cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import h11
import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

from cog_trio.testing.helper_tasks import open_helpers

LAST: Final = "completed"  # the event that ends a stream


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    id: str
    name: str
    data: Any  # its JSON

    @property
    def number(self) -> int:
        """Its place in its run."""
        return int(self.id.rpartition("-")[2])


class Events:
    """The events of one reply, for ``async for``, or one by one."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        # Never sent, ``ask`` has written the real one: without a request h11 expects no reply.
        self._http.send(h11.Request(method="GET", target="/", headers=[("host", "localhost")]))
        self._http.send(h11.EndOfMessage())
        self._text = bytearray()
        self._over = False

    async def next(self) -> Event:
        """The next event.

        Raises:
          EOFError: behind the last one, or if the connection ends.
          AssertionError: if the reply is not a stream; its text is in the error.
        """
        while True:
            while (end := self._text.find(b"\n\n")) < 0:
                await self._more()
            frame = self._text[:end].decode()
            del self._text[: end + 2]
            if not frame.startswith(":"):  # a comment, sent to keep the connection
                fields = dict(line.split(": ", 1) for line in frame.split("\n"))
                self._over = fields["event"] == LAST
                return Event(fields["id"], fields["event"], json.loads(fields["data"]))

    async def take(self, count: int) -> list[Event]:
        """The next ones."""
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[Event]:
        """All up to ``completed``."""
        return [event async for event in self]

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        return await self.next()

    async def _more(self) -> None:
        event = await self._event()
        if isinstance(event, h11.Response):
            if event.status_code != 200 or dict(event.headers)[b"content-type"] != b"text/event-stream":
                raise AssertionError(f"answered {event.status_code}: {(await self._body()).decode(errors='replace')}")
        elif isinstance(event, h11.Data):
            self._text += event.data
        else:
            raise EOFError(repr(event))

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(2**16))
        return event

    async def _body(self) -> bytes:
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
        return bytes(body)


async def connect(url: str) -> trio.SocketStream:
    """A bare connection to a server."""
    address = urlsplit(url)
    return await trio.open_tcp_stream(str(address.hostname), int(address.port or 0))


async def ask(stream: trio.SocketStream, id: str, input: Any = None, *, after: str = "", method: str = "PUT") -> None:
    """Ask for the events of a prediction: ``PUT`` creates or joins it, ``GET`` only attaches."""
    body = b"" if method == "GET" else json.dumps({"input": {} if input is None else input}).encode()
    lines = [f"{method} /predictions/{quote(id, safe='')} HTTP/1.1", "host: localhost", "accept: text/event-stream"]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    if after:
        lines.append(f"last-event-id: {after}")
    await stream.send_all("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


@asynccontextmanager
async def open_events(url: str, id: str, input: Any = None, **options: str) -> AsyncIterator[Events]:
    """The events of a prediction; leaving the block cuts the connection. ``options`` are those of ``ask``."""
    async with await connect(url) as stream:
        await ask(stream, id, input, **options)
        yield Events(stream)


@asynccontextmanager
async def open_socket(url: str) -> AsyncIterator[WebSocketConnection]:
    """A WebSocket for predictions; leaving the block closes it. What the block raises passes through unchanged."""
    async with await connect(url) as stream, open_helpers() as nursery:
        connection = await wrap_client_stream(nursery, stream, "localhost", "/predictions/ws")
        yield connection
        await connection.aclose()
