"""How the events of a prediction look to clients, whatever carries them."""

from __future__ import annotations

from cog_trio.bridge.protocol import Json
from cog_trio.state.event_log import Batch, Boundary, Event, LogEvent, MetricEvent
from cog_trio.state.prediction import Prediction
from cog_trio.transport.http.api.bodies import encode


def event_name_and_data(prediction: Prediction, event: Event) -> tuple[bytes, bytes]:
    """The name of an event, and its data: JSON on one line."""
    if isinstance(event, int):
        output: Json = prediction.outputs[event]
        return b"output", b'{"chunk":%b,"index":%d}' % (output, event)
    if isinstance(event, LogEvent):
        return b"log", encode(event)
    if isinstance(event, MetricEvent):
        return b"metric", encode(event)
    if event is Boundary.START:
        return b"start", encode({"id": prediction.id, "status": "processing"})
    return b"completed", prediction.snapshot()


def loss(batch: Batch, carrier: str) -> bytes:
    """The data of the error event that stands for the events which were lost before this batch."""
    what = "replay truncated" if batch.late else "lagged"
    return encode({"error": f"{carrier} stream {what}; events were dropped", "skipped": batch.lost})
