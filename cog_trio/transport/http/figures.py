"""``GET /metrics``: the figures of the service as text, the one reply that is whole and no JSON."""

from __future__ import annotations

from typing import Final, NamedTuple

from cog_trio.observe.metrics import CONTENT_TYPE, Metrics
from cog_trio.transport.http.asgi import Handler, Headers, Reply, Request, Send, Stream

_HEADERS: Final = ((b"content-type", CONTENT_TYPE.encode()), (b"cache-control", b"no-store"))


class Text(NamedTuple):
    """A whole body of text for Prometheus."""

    body: bytes
    status: int = 200
    headers: Headers = _HEADERS

    async def respond(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        length = (b"content-length", b"%d" % len(self.body))
        await send({"type": "http.response.start", "status": self.status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": self.body})


def figures(metrics: Metrics) -> Handler:
    """The handler of the route."""

    async def answer(request: Request) -> Reply | Stream:
        return Text(await metrics.scrape())

    return answer
