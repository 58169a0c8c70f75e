"""The routes ``/v1/models``, ``/v1/completions`` and ``/v1/chat/completions``: a prediction for each completion.

A completion is a prediction like all others, with its logs, metrics and place in the queue. It lives as long as its
client: one that leaves cancels it. So does a stop text, after which nothing of the output would be shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec
import trio

from cog_trio.bridge.json_value import decode_json
from cog_trio.bridge.protocol import Json
from cog_trio.inputs.decoding_thread import run_in_decoding_thread
from cog_trio.inputs.validation import SMALL, InvalidInput, MalformedInput
from cog_trio.service.service_interface import ServiceInterface
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.refusals import NotReady, Rejected
from cog_trio.state.status import Status
from cog_trio.transport.http.api.access_control import ClientGone, TooLarge, read_body
from cog_trio.transport.http.api.bodies import encode
from cog_trio.transport.http.api.error_replies import REFUSALS
from cog_trio.transport.http.api.router import Headers, HttpRequest, Resource, Response, Send, Stream
from cog_trio.transport.http.api.sse import HEADERS, KEEP_ALIVE, SILENCE
from cog_trio.transport.http.openai import translate
from cog_trio.transport.http.openai.stop_text import StopText
from cog_trio.transport.http.openai.translate import CHAT, TEXT, ApiError, Completion, Misfit, TextModel

_BUSY: Final[Headers] = ((b"retry-after", b"1"),)
_NO_RETRY: Final[Headers] = ((b"x-should-retry", b"false"),)  # OpenAI's clients obey it


def openai_routes(service: ServiceInterface, body_limit: int) -> Mapping[bytes, Resource]:
    """The routes, by their paths."""
    completions = Completions(service, body_limit)
    return {
        b"/v1/models": Resource(now={"GET": completions.list_models}),
        b"/v1/models/" + translate.SERVED.encode(): Resource(now={"GET": completions.show_model}),
        b"/v1/completions": Resource(POST=partial(completions.create, TEXT)),
        b"/v1/chat/completions": Resource(POST=partial(completions.create, CHAT)),
    }


class Completions:
    """The handlers of these routes."""

    def __init__(self, service: ServiceInterface, body_limit: int) -> None:
        self._service = service
        self._body_limit = body_limit
        self._began = int(time.time())
        self._model: tuple[bytes, TextModel] | None = None  # of a document; a reload brings another one

    def list_models(self, request: HttpRequest) -> Response:
        return Response(200, translate.model_list(self._began))

    def show_model(self, request: HttpRequest) -> Response:
        return Response(200, translate.model_entry(self._began))

    async def create(self, kind: str, request: HttpRequest) -> Response | Stream:
        """Answer a request for a completion.

        Raises:
          ClientGone: if the client leaves before the reply has begun. The prediction is cancelled.
        """
        try:
            model = self._text_model()
            completion = translate.read_completion(kind, await self._body(request), model)
            prediction = await self._start(request, completion)
        except ApiError as error:
            return _refusal(error)
        request.id = prediction.id  # for the access log
        reply = CompletionReply(self._service, request, prediction, completion)
        if completion.stream:
            return reply
        try:
            return Response(200, await reply.whole())
        except ApiError as error:
            return _refusal(error)

    def _text_model(self) -> TextModel:
        schema = self._service.schema
        if schema is None:
            raise ApiError(503, "the model is not set up yet")
        if self._model is None or self._model[0] is not schema:
            try:
                self._model = schema, translate.read_document(msgspec.json.decode(schema))
            except Misfit as why:
                raise ApiError(501, f"this model can't be used by OpenAI's API: {why}", retry=False) from why
        return self._model[1]

    async def _body(self, request: HttpRequest) -> Json:
        if request.headers.is_other_type:
            raise ApiError(415, "the body must be JSON: Content-Type: application/json")
        try:
            body = await read_body(request.receive, request.headers.get(b"content-length"), self._body_limit)
        except TooLarge:
            raise ApiError(413, "the body is too large") from None
        faults = (msgspec.MsgspecError, UnicodeError, RecursionError)
        try:
            if len(body) > SMALL:
                return await run_in_decoding_thread(decode_json, body, refusals=faults)
            return decode_json(body)
        except faults as error:
            raise ApiError(400, f"the body is not JSON: {error}") from None

    async def _start(self, request: HttpRequest, completion: Completion) -> Prediction:
        """Create the prediction. There is no checkpoint between the check of a large input and ``create``."""
        new = NewPrediction(encode(completion.input), watched=True, streamed=True, trace=request.headers.trace)
        try:
            checked = await self._service.check_input(new) if len(new.input) > SMALL else None
            return self._service.create(new, checked)
        except REFUSALS as refusal:
            raise _translated(refusal) from refusal


class CompletionReply:
    """The reply to one completion, whole or as a stream; it follows the prediction."""

    status: Final = 200
    headers: Final = HEADERS

    def __init__(
        self, service: ServiceInterface, request: HttpRequest, prediction: Prediction, completion: Completion
    ) -> None:
        self._service = service
        self._request = request
        self._prediction = prediction
        self._completion = completion
        self._stop = StopText(completion.stops)
        self._subscription = service.follow(prediction)
        self._seen = 0  # outputs that were read
        self._over = False
        self._created = int(prediction.created_at.timestamp())

    async def whole(self) -> bytes:
        """Wait for the text; return the body of the reply.

        Raises:
          ApiError: if the prediction was refused after it had waited, or has failed.
          ClientGone: if the client leaves.
        """
        pieces: list[str] = []
        with self._subscription, trio.CancelScope() as scope, self._request.receive_queue.watching(scope.cancel):
            while not self._over:
                pieces.append(await self._next() or "")
        if not self._over:
            raise ClientGone
        self._look_for_failure()
        prediction = self._prediction
        return translate.whole(
            self._completion, prediction.id, self._created, "".join(pieces), prediction.metrics, self._stop.found
        )

    async def respond(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the text as it comes.

        Raises:
          ClientGone: if the client leaves before the end.
        """
        last: bytes | None = None
        with self._subscription:
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            with trio.CancelScope() as scope, self._request.receive_queue.watching(scope.cancel):
                first = True
                while not self._over:
                    text = await self._next()
                    if text:
                        body = self._piece(text, None, first=first)
                        first = False
                    elif text is None:
                        body = KEEP_ALIVE
                    else:
                        continue
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                last = self._ending(first)
        if last is None:
            raise ClientGone
        await send({"type": "http.response.body", "body": last})

    def _ending(self, first: bool) -> bytes:
        try:
            self._look_for_failure()
        except ApiError as error:
            return translate.error_piece(error)
        completion, prediction = self._completion, self._prediction
        finish = translate.finish_reason(completion, prediction.metrics, self._stop.found)
        pieces = [self._piece(None, finish, first=first)]
        if completion.include_usage:
            pieces.append(translate.usage_piece(completion, prediction.id, self._created, prediction.metrics))
        return b"".join([*pieces, translate.DONE])

    def _piece(self, text: str | None, finish: str | None, *, first: bool) -> bytes:
        return translate.piece(self._completion, self._prediction.id, self._created, text, finish, first=first)

    async def _next(self) -> str | None:
        """Wait for more of the text, which may be none of it; None after a silence. Up to a stop text, or the end.

        The outputs are read from the prediction, not from its events, so a client that is slow misses none.
        """
        prediction, stop = self._prediction, self._stop
        with trio.move_on_after(SILENCE) as silence:
            await self._subscription.wait()
        if silence.cancelled_caught:
            return None
        ends = self._subscription.read().ends
        fresh = [raw for raw in prediction.outputs[self._seen :] if raw is not None]
        self._seen += len(fresh)
        text = stop.feed("".join(str(msgspec.json.decode(raw)) for raw in fresh))
        if stop.found and not prediction.terminal:
            self._service.cancel(prediction.id)
        self._over = ends or stop.found
        return text if stop.found or not ends else text + stop.finish()

    def _look_for_failure(self) -> None:
        prediction = self._prediction
        if prediction.refusal is not None:
            raise _translated(prediction.refusal)
        if self._stop.found or prediction.status is Status.SUCCEEDED:
            return
        if prediction.status is Status.CANCELED:
            raise ApiError(500, "the prediction was canceled", code="canceled", retry=False)
        raise ApiError(500, prediction.error or "the prediction has failed", code="prediction_failed", retry=False)


def _refusal(error: ApiError) -> Response:
    headers = _BUSY if error.status == 429 else () if error.retry is not False else _NO_RETRY
    return Response(error.status, error.body(), headers)


def _translated(refusal: Exception) -> ApiError:
    """A refusal of the service in OpenAI's words."""
    if isinstance(refusal, InvalidInput):
        first = refusal.faults[0]
        return ApiError(400, str(refusal), param="/".join(first["loc"][2:]) or None)
    if isinstance(refusal, MalformedInput):
        return ApiError(400, str(refusal))
    if isinstance(refusal, NotReady):
        return ApiError(503, refusal.text)
    if isinstance(refusal, Rejected):
        return ApiError(429, refusal.text, code="rate_limit_exceeded")
    return ApiError(500, str(refusal))
