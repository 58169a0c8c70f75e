"""A webhook receiver on a free port: keeps what comes, and answers as it is told to, also badly.

``open_receiver`` gives a ``Receiver``. Its ``script`` holds one ``Reply`` a request; when it is used up, ``usual``
answers. A prediction is told apart by its id, since one receiver serves a whole story.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import h11
import trio

from scenarios.rig import POLL, SOON

ENDS: Final = ("succeeded", "failed", "canceled")


@dataclass(frozen=True)
class Reply:
    """How one request is answered; ``closes``: not at all, the connection ends."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    closes: bool = False


OK: Final = Reply()


@dataclass
class Webhook:
    """One request that came."""

    at: float
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    answered: Reply

    @property
    def body(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.raw)
        return value

    @property
    def ends(self) -> bool:
        return self.body["status"] in ENDS


@dataclass
class Receiver:
    url: str
    usual: Reply = OK
    script: list[Reply] = field(default_factory=list)
    came: list[Webhook] = field(default_factory=list)
    open: int = 0
    most: int = 0  # requests that were open at once

    def of(self, id: str) -> list[Webhook]:
        """What came for one prediction, in order."""
        return [webhook for webhook in self.came if webhook.body["id"] == id]

    async def until(self, id: str, count: int = 1, seconds: float = SOON) -> list[Webhook]:
        """Wait until the terminal webhook of a prediction has come this often; all of its webhooks."""
        with trio.move_on_after(seconds):
            while len([webhook for webhook in self.of(id) if webhook.ends]) < count:
                await trio.sleep(POLL)
            return self.of(id)
        raise AssertionError(f"{id}: {[(webhook.at, webhook.raw) for webhook in self.of(id)]}")

    async def serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while await self._answer(connection, stream):
                connection.start_next_cycle()
        except (h11.ProtocolError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(self, connection: h11.Connection, stream: trio.SocketStream) -> bool:
        """Serve one request; False when the connection is over."""
        head: h11.Request | None = None
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        assert head is not None
        reply = self.script.pop(0) if self.script else self.usual
        headers = {name.decode(): value.decode() for name, value in head.headers}
        self.came.append(Webhook(trio.current_time(), head.method.decode(), head.target.decode(), headers, body, reply))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await trio.sleep(reply.delay)
        finally:
            self.open -= 1
        if reply.closes:
            return False
        answer = h11.Response(status_code=reply.status, headers=[*reply.headers, ("content-length", "2")])
        for event in (answer, h11.Data(data=b"ok"), h11.EndOfMessage()):
            await stream.send_all(connection.send(event) or b"")
        return connection.our_state is h11.DONE


@asynccontextmanager
async def open_receiver(usual: Reply = OK, *script: Reply) -> AsyncIterator[Receiver]:
    """A receiver for the length of a block."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        receiver = Receiver(f"http://127.0.0.1:{listener.socket.getsockname()[1]}", usual, list(script))
        nursery.start_soon(trio.serve_listeners, receiver.serve, [listener])
        yield receiver
        nursery.cancel_scope.cancel()
