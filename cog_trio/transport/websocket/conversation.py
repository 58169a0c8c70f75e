"""Predictions over a WebSocket: messages that start, join and cancel come in, events go out, until a side leaves.

A message is what ``POST /predictions`` takes as its body; one whose ``id`` is running joins that run; ``{"cancel":
id}`` cancels. Every model is served, also one that does not offer server-sent events. Each event is one message
``{"event", "id", "seq", "data"}``, with the data that server-sent events have; what is refused is an ``error`` event
with the status that it would have had over HTTP, and the conversation goes on.

One task listens, one task a followed run sends; all are in the socket's own nursery. The end of the socket ends them,
and with them the runs that they alone kept alive. When the service drains, the socket is closed as soon as
nothing is followed on it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import trio

from cog_trio.bridge.protocol import Json, Mode
from cog_trio.inputs.decoding_thread import run_in_decoding_thread
from cog_trio.inputs.validation import SMALL
from cog_trio.service.service_interface import ServiceInterface
from cog_trio.state.event_log import Subscription
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.transport.http.api import bodies
from cog_trio.transport.http.api.error_replies import GONE, REFUSALS, refused
from cog_trio.transport.http.api.event_json import event_name_and_data, loss
from cog_trio.transport.http.api.route_families import TRAININGS
from cog_trio.transport.http.api.router import Headers, Receive, Send

FOLLOWED: Final = "This prediction is followed on this socket already"
NO_ID: Final = "must be the id of a prediction"
GOING_AWAY: Final = 1001  # RFC 6455 7.4.1


class _Cancel(msgspec.Struct):
    cancel: Json = msgspec.UNSET


_cancel: Final = msgspec.json.Decoder(_Cancel).decode


class Conversation:
    """One WebSocket."""

    def __init__(self, service: ServiceInterface, trace: Headers, receive: Receive, send: Send) -> None:
        self._service = service
        self._trace = trace
        self._receive = receive
        self._send = send
        self._followed: set[str] = set()
        self._unfollowed = trio.lowlevel.ParkingLot()
        self._closed = False  # by us: nothing may be sent any more, so nothing that comes is done

    async def run(self, protocol: str | None = None) -> None:
        """Accept the socket, by the subprotocol if there is one, and talk until its end.

        Cancellation: what it alone kept alive is cancelled.
        """
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept", "subprotocol": protocol})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_when_drained, nursery.cancel_scope)
            message: dict[str, Any] = await self._receive()
            while message["type"] != "websocket.disconnect":
                text = message.get("text")
                refusal = await self._hear(nursery, message["bytes"] if text is None else text.encode())
                if refusal is not None and not self._closed:
                    await self._send({"type": "websocket.send", "text": refusal.decode()})
                message = await self._receive()
            nursery.cancel_scope.cancel()

    async def _close_when_drained(self, conversation: trio.CancelScope) -> None:
        await self._service.wait_shutdown()
        while self._followed:
            await self._unfollowed.park()
        self._closed = True
        await self._send({"type": "websocket.close", "code": GOING_AWAY})
        conversation.cancel()

    # In.

    async def _hear(self, nursery: trio.Nursery, message: bytes) -> bytes | None:
        """Do what a message asks for; return the event that says why not."""
        try:
            if len(message) > SMALL:
                body = await run_in_decoding_thread(_decode, message, refusals=(bodies.BadBody,))
            else:
                body = _decode(message)
        except bodies.BadBody as bad:
            return _refusal(bad.status, {"detail": bad.faults}, None)
        if self._closed:
            return None
        if isinstance(body, str):
            found = self._service.cancel(body) or self._service.get(body) is not None
            return None if found else _refusal(404, {"error": GONE}, body)
        if body.id in self._followed:
            return _refusal(409, {"error": FOLLOWED}, body.id)
        try:
            prediction = self._running(body.id) or await self._create(body)
            if prediction.mode is not Mode.PREDICT:
                return _refusal(406, {"error": TRAININGS.no_streaming}, body.id)
            subscription = self._service.follow(prediction)
        except REFUSALS as refusal:
            return _refusal(*refused(refusal), body.id)
        self._followed.add(prediction.id)
        nursery.start_soon(self._follow, prediction, subscription)
        return None

    def _running(self, id: str | None) -> Prediction | None:
        return None if id is None else self._service.running(id)

    async def _create(self, body: bodies.CreateRequest) -> Prediction:
        """Create a prediction; there is no checkpoint after the check of a large input."""
        new = NewPrediction(
            body.input_json,
            body.id,
            body.context,
            watched=True,
            streamed=True,
            webhook=body.webhook,
            events=body.events,
            trace=self._trace,
        )
        return self._service.create(new, await self._service.check_input(new) if len(new.input) > SMALL else None)

    # Out.

    async def _follow(self, prediction: Prediction, subscription: Subscription) -> None:
        try:
            with subscription:
                while not subscription.over:
                    await subscription.wait()
                    if prediction.refusal is not None:  # it has waited in the queue, for nothing
                        text = _refusal(*refused(prediction.refusal), prediction.id).decode()
                        await self._send({"type": "websocket.send", "text": text})
                        return
                    await self._tell(prediction, subscription)
        finally:
            self._followed.discard(prediction.id)
            self._unfollowed.unpark_all()

    async def _tell(self, prediction: Prediction, subscription: Subscription) -> None:
        """Send all that is there, in one piece: only the last message is flushed."""
        batch = subscription.read()
        number, last = batch.first, batch.first + len(batch.events) - 1
        if batch.lost:
            text = _message(b"error", prediction.id, number - 1, loss(batch, "WebSocket"))
            await self._send({"type": "websocket.send", "text": text.decode(), "more": True})
        for event in batch.events:
            name, data = event_name_and_data(prediction, event)
            text = _message(name, prediction.id, number, data)
            await self._send({"type": "websocket.send", "text": text.decode(), "more": number < last})
            number += 1


def _decode(message: bytes) -> bodies.CreateRequest | str:
    """What a message asks for: a prediction, or the cancel of the one with this id.

    Raises:
      BadBody: as ``decode_create``, and if the cancel is malformed.
    """
    try:
        id = _cancel(message).cancel
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        id = msgspec.UNSET  # the message's faults are found below
    if isinstance(id, str):
        return id
    if id is not msgspec.UNSET:
        raise bodies.BadBody(422, [bodies.fault(["body", "cancel"], NO_ID)])
    return bodies.decode_create(message)


def _message(event: bytes, id: str | None, number: int | None, data: bytes) -> bytes:
    seq = b"null" if number is None else b"%d" % number
    return b'{"event":"%b","id":%b,"seq":%b,"data":%b}' % (event, bodies.encode(id), seq, data)


def _refusal(status: int, body: dict[str, Any], id: str | None) -> bytes:
    return _message(b"error", id, None, bodies.encode({**body, "status": status}))
