"""Server-sent events: the reply that lasts as long as a run, and how its events look on the wire.

The reply takes all that is there, sends it as one piece, and waits for more; nothing is queued in between, so a slow
client costs one piece and a cursor. The head leaves together with the first event. The end of the run is in the last
piece, which is sent when nobody watches the client any more: the end of a request looks like the end of its client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from cog_trio.bridge.protocol import Json
from cog_trio.state.event_log import Batch, Subscription
from cog_trio.state.prediction import Prediction
from cog_trio.transport.http.api.access_control import ClientGone
from cog_trio.transport.http.api.event_json import event_name_and_data, loss
from cog_trio.transport.http.api.router import Headers, HttpRequest, Send

FIRST: Final = 0.1  # seconds that the head waits for the first event
SILENCE: Final = 15.0  # seconds
KEEP_ALIVE: Final = b": keep-alive\n\n"
HEADERS: Final[Headers] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"vary", b"accept, prefer"),
)


class EventStream:
    """The reply to a request that follows a prediction; it owns the subscription from here on."""

    status: Final = 200
    headers: Final = HEADERS

    def __init__(self, request: HttpRequest, prediction: Prediction, subscription: Subscription) -> None:
        self._request = request
        self._prediction = prediction
        self._subscription = subscription

    async def respond(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        """Send everything up to the end of the run.

        Raises:
          ClientGone: if the client leaves before.
        """
        last: bytes | None = None
        with self._subscription:
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            with trio.CancelScope() as scope, self._request.receive_queue.watching(scope.cancel):
                last = await self._write(send)
        if last is None:
            raise ClientGone
        await send({"type": "http.response.body", "body": last})

    async def _write(self, send: Send) -> bytes:
        """Send all pieces but the last, and give that."""
        subscription, patience = self._subscription, FIRST
        while True:
            with trio.move_on_after(patience) as silence:
                await subscription.wait()
            if silence.cancelled_caught:
                piece = KEEP_ALIVE
            else:
                batch = subscription.read()
                piece = render_events(self._prediction, batch)
                if batch.ends:
                    return piece
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            patience = SILENCE


def render_events(prediction: Prediction, batch: Batch) -> bytes:
    """A batch of events as it stands on the wire."""
    run, number = prediction.event_log.run.encode(), batch.first
    outputs: Sequence[Json] = prediction.outputs
    pieces: list[bytes] = []
    if batch.lost:
        pieces.append(b"id: %b-%d\nevent: error\ndata: %b\n\n" % (run, number - 1, loss(batch, "SSE")))
    for event in batch.events:
        if isinstance(event, int):  # the one that comes by the thousands
            pieces.append(
                b'id: %b-%d\nevent: output\ndata: {"chunk":%b,"index":%d}\n\n' % (run, number, outputs[event], event)
            )
        else:
            name, data = event_name_and_data(prediction, event)
            pieces += (b"id: %b-%d\nevent: %b\ndata: " % (run, number, name), data, b"\n\n")  # it may be large
        number += 1
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
