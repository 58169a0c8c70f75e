"""Clients of streams for the scenarios: server-sent events and WebSockets, on connections that can be killed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11
import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

from scenarios.rig import Server


@dataclass(frozen=True)
class Event:
    id: str
    name: str
    data: Any

    @property
    def number(self) -> int:
        return int(self.id.rpartition("-")[2])


async def connect(server: Server) -> trio.SocketStream:
    address = urlsplit(server.url)
    return await trio.open_tcp_stream(str(address.hostname), int(address.port or 0))


async def ask(stream: trio.SocketStream, id: str, input: Any = None, *, after: str = "", method: str = "PUT") -> None:
    """Ask for the events of a prediction."""
    body = b"" if method == "GET" else json.dumps({"input": input or {}}).encode()
    lines = [f"{method} /predictions/{id} HTTP/1.1", "host: localhost", "accept: text/event-stream"]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    if after:
        lines.append(f"last-event-id: {after}")
    await stream.send_all("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


class Events:
    """The events of one reply, one by one; ``await events.next()`` raises ``EOFError`` behind the last."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("host", "localhost")]))
        self._http.send(h11.EndOfMessage())
        self._text = bytearray()

    async def next(self) -> Event:
        while True:
            while (end := self._text.find(b"\n\n")) < 0:
                await self._more()
            frame = self._text[:end].decode()
            del self._text[: end + 2]
            if not frame.startswith(":"):
                fields = dict(line.split(": ", 1) for line in frame.split("\n"))
                return Event(fields["id"], fields["event"], json.loads(fields["data"]))

    async def take(self, count: int) -> list[Event]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[Event]:
        events: list[Event] = []
        while not events or events[-1].name != "completed":
            events.append(await self.next())
        return events

    async def _more(self) -> None:
        event = self._http.next_event()
        while event is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(2**16))
            event = self._http.next_event()
        if isinstance(event, h11.Response):
            assert event.status_code == 200, event
            assert dict(event.headers)[b"content-type"] == b"text/event-stream"
        elif isinstance(event, h11.Data):
            self._text += event.data
        else:
            raise EOFError(repr(event))


@asynccontextmanager
async def streaming(server: Server, id: str, input: Any = None, **options: str) -> AsyncIterator[Events]:
    """The events of a prediction; leaving the block kills the connection."""
    async with await connect(server) as stream:
        await ask(stream, id, input, **options)
        yield Events(stream)


async def everything(server: Server, id: str, input: Any = None, **options: str) -> list[Event]:
    """All events up to the end of the stream."""
    async with streaming(server, id, input, **options) as events:
        seen = await events.rest()
        try:
            await events.next()
        except EOFError:
            return seen
        raise AssertionError("events behind the last")


@asynccontextmanager
async def socket(server: Server) -> AsyncIterator[WebSocketConnection]:
    """A WebSocket for predictions."""
    async with await connect(server) as stream, trio.open_nursery() as nursery:
        connection = await wrap_client_stream(nursery, stream, "localhost", "/predictions/ws")
        yield connection
        await connection.aclose()
