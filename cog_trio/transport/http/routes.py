"""The routes of Cog's API: what is asked of the service, and what its answers look like on the wire.

Predictions and trainings are two families of the same routes; ``route_families.py`` has all in which they differ.
A create is decided in one fixed order: the body (400, 413, 415, 422), the id in the path against the id in the
body, the join of a running id, 503, 406, then what the service's ``create`` finds (422, 409). From there on the
prediction is the service's; a synchronous request only watches it, and races that with the end of its client.
The watcher is gone before the reply is sent, since the end of a request looks the same to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import trio

from cog_trio.config.settings import Settings
from cog_trio.inputs.decoding_thread import run_in_decoding_thread
from cog_trio.inputs.validation import SMALL
from cog_trio.observe.prometheus import CONTENT_TYPE, Metrics
from cog_trio.service.service_interface import ServiceInterface
from cog_trio.state.health import HealthSnapshot, HealthState
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.transport.http.api import bodies
from cog_trio.transport.http.api.access_control import AccessControl, ClientGone, TooLarge, read_body
from cog_trio.transport.http.api.error_replies import GONE, REFUSALS, refused
from cog_trio.transport.http.api.prediction_list import BadQuery, list_page, read_query
from cog_trio.transport.http.api.request_headers import trace, wants_page
from cog_trio.transport.http.api.route_families import FAMILIES, RouteFamily
from cog_trio.transport.http.api.router import (
    NOT_FOUND,
    App,
    Handler,
    Headers,
    HttpRequest,
    Large,
    Later,
    Receive,
    Resource,
    Response,
    Routes,
    Send,
    Stream,
    Text,
    snapshot_response,
)
from cog_trio.transport.http.api.sse import EventStream
from cog_trio.transport.http.playground.assets import playground_routes
from cog_trio.transport.websocket.conversation import Conversation

DEFUNCT: Final = HealthState.DEFUNCT.value
SERVING: Final = (HealthState.READY.value, "BUSY")
_VARY: Final = (b"vary", b"accept, prefer")
_ASYNC: Final = (_VARY, (b"preference-applied", b"respond-async"))
_EMPTY: Final = Response(200, b"{}")
_PLAIN_ONLY: Final = ((b"accept-encoding", b"identity"),)
_UNKNOWN_ID: Final = Response(404, b"{}")
_NOTHING_MORE: Final = Response(204, b"", (_VARY,))  # which tells an EventSource not to come again
_NO_SCHEMA: Final = Response(503, bodies.encode({"error": "OpenAPI schema not available"}))
_METRICS_HEADERS: Final = ((b"content-type", CONTENT_TYPE.encode()), (b"cache-control", b"no-store"))
_URLS: Final = {
    "docs_url": "/docs",
    "openapi_url": "/openapi.json",
    "shutdown_url": "/shutdown",
    "healthcheck_url": "/health-check",
}


def make_app(service: ServiceInterface, settings: Settings, metrics: Metrics, *, loopback: bool) -> App:
    """The ASGI app over a service and its figures. ``loopback``: it is bound to loopback addresses only."""
    handlers = Handlers(service, settings)

    async def converse(headers: dict[bytes, bytes], protocol: str | None, receive: Receive, send: Send) -> None:
        await Conversation(service, trace(headers), receive, send).run(protocol)

    routes = Routes(
        fixed={
            b"/": Resource(now={"GET": handlers.discover}, open=wants_page),
            b"/health-check": Resource(now={"GET": handlers.health_check_now}, GET=handlers.health_check, open=True),
            b"/livez": Resource(now={"GET": handlers.livez}, open=True),
            b"/readyz": Resource(now={"GET": handlers.readyz_now}, GET=handlers.readyz, open=True),
            b"/metrics": Resource(GET=_metrics_route(metrics)),
            b"/openapi.json": Resource(now={"GET": handlers.openapi}),
            b"/shutdown": Resource(now={"POST": handlers.shutdown}),
            **{
                family.path.encode(): Resource(
                    now={"POST": partial(handlers.create_now, family), "GET": partial(handlers.list, family)},
                    POST=partial(handlers.create, family),
                )
                for family in FAMILIES
            },
            **_openai_routes(service, settings),
            **playground_routes(),
        },
        with_id={
            (family.path[1:].encode(), last): resource
            for family in FAMILIES
            for last, resource in (
                (
                    None,
                    Resource(
                        now={"GET": handlers.read_now, "PUT": partial(handlers.put_now, family)},
                        GET=partial(handlers.read, family),
                        PUT=partial(handlers.put, family),
                    ),
                ),
                (b"cancel", Resource(now={"POST": handlers.cancel})),
            )
        },
        websocket=b"/predictions/ws",
        converse=converse,
    )
    access = AccessControl(settings, loopback=loopback)
    return App(
        routes,
        access,
        closing=lambda: service.draining,
        root=settings.root_path,
        log_requests=settings.access_log,
    )


class Handlers:
    """One method a route, or two: ``..._now`` answers what needs no wait, the coroutine does the rest."""

    def __init__(self, service: ServiceInterface, settings: Settings) -> None:
        self._service = service
        self._body_limit = settings.body_limit
        self._root = settings.root_path

    def discover(self, request: HttpRequest) -> Response:
        """What there is, as JSON; a browser is sent to the page."""
        if wants_page(request.headers):
            return Response(302, b"", ((b"location", self._root.encode() + b"/docs"), (b"vary", b"accept")))
        versions = self._service.health().versions
        version = versions.get("python_sdk") or versions["coglet"]
        urls = dict(_URLS)
        for family in FAMILIES:
            if self._service.absence(family.mode) is None:
                urls |= family.urls
        return Response(
            200, bodies.encode({"cog_version": version, **{name: self._root + url for name, url in urls.items()}})
        )

    def health_check_now(self, request: HttpRequest) -> Response | None:
        return None if self._service.has_health_check else _health(self._service.health())

    async def health_check(self, request: HttpRequest) -> Response:
        return _health(await self._service.check_health())

    def livez(self, request: HttpRequest) -> Response:
        """Whether a new process could help: the worker is gone for good. Nobody is asked, so nothing can hold it up."""
        return _probe(self._service.health(), lambda health: health.status != DEFUNCT)

    def readyz_now(self, request: HttpRequest) -> Response | None:
        return None if self._service.has_health_check else _readiness(self._service.health())

    async def readyz(self, request: HttpRequest) -> Response:
        return _readiness(await self._service.check_health())

    def openapi(self, request: HttpRequest) -> Response:
        schema = self._service.schema
        return _NO_SCHEMA if schema is None else Response(200, schema)

    def shutdown(self, request: HttpRequest) -> Response:
        self._service.shutdown()
        return _EMPTY

    def cancel(self, request: HttpRequest) -> Response:
        """Cancel what runs. What has ended and can still be read needs no cancel, so that one can be repeated."""
        found = self._service.cancel(request.id) or self._service.get(request.id) is not None
        return _EMPTY if found else _UNKNOWN_ID

    def list(self, family: RouteFamily, request: HttpRequest) -> Response:
        """What runs, waits and is retained, newest first."""
        try:
            query = read_query(request.query)
        except BadQuery as refusal:
            return Response(422, bodies.detail(refusal.faults))
        return Response(200, list_page(self._service.predictions(family.mode), query, family, self._root))

    def read_now(self, request: HttpRequest) -> Response | None:
        """The state of a prediction; None for a stream, a wait, and a state too large for one piece."""
        if request.method == "GET" and request.headers.wants_stream:
            return None
        prediction = self._service.get(request.id)
        if prediction is None:
            return NOT_FOUND
        wait = request.headers.preference.wait
        if wait and not prediction.terminal:
            return None
        state = _state(prediction, wait)
        return state if isinstance(state, Response) else None

    async def read(self, family: RouteFamily, request: HttpRequest) -> Response | Stream:
        """What ``read_now`` leaves."""
        prediction = self._service.get(request.id)
        if request.method == "GET" and request.headers.wants_stream:
            return self._join(family, request, prediction)
        if prediction is None:
            return NOT_FOUND
        wait = request.headers.preference.wait
        if wait:
            with trio.move_on_after(wait):
                await _finish_or_leave(request, prediction)
            if prediction.waits_briefly and prediction.refusal is not None:
                return NOT_FOUND  # its create has been refused meanwhile: it never was
        return _state(prediction, wait)

    def create_now(self, family: RouteFamily, request: HttpRequest) -> Response | Later | None:
        """Create a prediction in the step that reads its request; None for a stream, and for a large body."""
        if not self._is_plain(request):
            return None
        if (absence := self._service.absence(family.mode)) is not None:
            return _absent(absence)
        try:
            body = self._decode(request, request.body or b"")
        except bodies.BadBody as refusal:
            return _bad_body(refusal)
        return self._start_now(family, request, body, body.id)

    def put_now(self, family: RouteFamily, request: HttpRequest) -> Response | Later | None:
        """The same by PUT, which joins a prediction that runs."""
        if not self._is_plain(request):
            return None
        if (absence := self._service.absence(family.mode)) is not None:
            return _absent(absence)
        try:
            body = self._decode(request, request.body or b"")
        except bodies.BadBody as refusal:
            return _bad_body(refusal)
        if body.id is not None and body.id != request.id:
            return _other_id(family)
        running = self._service.running(request.id)
        if running is None:
            return self._start_now(family, request, body, request.id)
        joined = self._joined(request, running)
        return None if isinstance(joined, Large) else joined or self._watch_now(running)

    async def create(self, family: RouteFamily, request: HttpRequest) -> Response | Stream:
        """What ``create_now`` leaves, and all creates over HTTP/2."""
        if (absence := self._service.absence(family.mode)) is not None:
            return _absent(absence)
        try:
            body = await self._body(request)
        except bodies.BadBody as refusal:
            return _bad_body(refusal)
        return await self._start(family, request, body, body.id)

    async def put(self, family: RouteFamily, request: HttpRequest) -> Response | Stream:
        """What ``put_now`` leaves, and all over HTTP/2."""
        if (absence := self._service.absence(family.mode)) is not None:
            return _absent(absence)
        try:
            body = await self._body(request)
        except bodies.BadBody as refusal:
            return _bad_body(refusal)
        if body.id is not None and body.id != request.id:
            return _other_id(family)
        running = self._service.running(request.id)
        if request.headers.wants_stream and (running or _resumes(request)):
            return self._join(family, request, running or self._service.get(request.id))
        if running is None:
            return await self._start(family, request, body, request.id)
        return self._joined(request, running) or await self._watch(request, running)

    def _joined(self, request: HttpRequest, running: Prediction) -> Response | Large | None:
        """The reply to a second PUT that does not wait."""
        if request.headers.preference.respond_async:
            return snapshot_response(202, running.pieces(with_input=True), _ASYNC)
        return None

    def _no_streaming(self, family: RouteFamily, id: str | None) -> Response:
        return _refuse(406, family.no_streaming.format(method=self._service.method), id)

    def _is_plain(self, request: HttpRequest) -> bool:
        body = request.body
        return body is not None and len(body) <= min(SMALL, self._body_limit) and not request.headers.wants_stream

    async def _body(self, request: HttpRequest) -> bodies.CreateRequest:
        """Read the body and decode it, a large one in a thread.

        Raises:
          BadBody: with the refusal.
        """
        _check_type(request)
        try:
            body = await read_body(request.receive, request.headers.get(b"content-length"), self._body_limit)
        except TooLarge:
            raise bodies.BadBody(413, [bodies.fault(["body"], bodies.TOO_LARGE)]) from None
        if len(body) > SMALL:
            return await run_in_decoding_thread(bodies.decode_create, body, refusals=(bodies.BadBody,))
        return self._decode(request, bytes(body))

    def _decode(self, request: HttpRequest, body: bytes) -> bodies.CreateRequest:
        """Decode a small body.

        Raises:
          BadBody: with the refusal.
        """
        _check_type(request)
        if not body and b"content-type" not in request.headers:
            return bodies.CreateRequest()
        return bodies.decode_create(body)

    async def _start(
        self, family: RouteFamily, request: HttpRequest, body: bodies.CreateRequest, id: str | None
    ) -> Response | Stream:
        """Create a prediction and answer as the request prefers.

        There is no checkpoint between the check of a large input and ``create``, nor between that and ``watch``.
        """
        streamed = request.headers.wants_stream
        new = _new(family, request, body, id, streamed)
        try:
            if streamed:
                self._service.admit(id, family.mode)
                if not (family.streams and self._service.streaming):
                    return self._no_streaming(family, id)
            checked = await self._service.check_input(new) if len(new.input) > SMALL else None
            prediction = self._service.create(new, checked)
        except REFUSALS as refusal:
            return _rejected(refusal)
        request.id = prediction.id  # for the access log
        if not new.watched:
            if prediction.waits_briefly:
                await prediction.wait_decided()
            return _accepted(prediction)
        if streamed:
            return await self._follow(request, prediction)
        return await self._watch(request, prediction)

    def _start_now(
        self, family: RouteFamily, request: HttpRequest, body: bodies.CreateRequest, id: str | None
    ) -> Response | Later:
        """The same in one step, without a stream and with a small input."""
        new = _new(family, request, body, id)
        try:
            prediction = self._service.create(new)
        except REFUSALS as refusal:
            return _rejected(refusal)
        request.id = prediction.id  # for the access log
        if new.watched:
            return self._watch_now(prediction)
        if not prediction.waits_briefly:
            return _accepted(prediction)
        return Later(lambda reply: prediction.on_decision(lambda decided: reply(_accepted(decided))), lambda: None)

    def _watch_now(self, prediction: Prediction) -> Later:
        """Wait for the end of a prediction, without a task."""
        leave = self._service.join(prediction)

        def when(reply: Callable[[Response | Large], None]) -> None:
            def finished(ended: Prediction) -> None:
                leave()
                reply(_ended(ended))

            prediction.on_finish(finished)

        return Later(when, leave)

    async def _follow(self, request: HttpRequest, prediction: Prediction) -> Response | Stream:
        """Stream what was created for it. The reply begins when the run does: until then it may still be refused."""
        with ExitStack() as unless_begun:
            subscription = unless_begun.enter_context(self._service.follow(prediction))
            if prediction.queued:
                with trio.CancelScope() as scope, request.receive_queue.watching(scope.cancel):
                    await subscription.wait()
                if scope.cancelled_caught:
                    raise ClientGone
                if prediction.refusal is not None:
                    return _rejected(prediction.refusal)
            unless_begun.pop_all()
        return EventStream(request, prediction, subscription)

    def _join(self, family: RouteFamily, request: HttpRequest, prediction: Prediction | None) -> Response | Stream:
        """Follow a prediction that is there already, from where the client left off; it never starts one."""
        if prediction is None:
            return _refuse(404, GONE, request.id)
        if not (family.streams and self._service.streaming) or prediction.mode is not family.mode:
            return self._no_streaming(family, request.id)
        after = request.headers.get(b"last-event-id", b"").decode("latin-1").strip()
        try:
            subscription = self._service.follow(prediction, after or None)
        except REFUSALS as refusal:
            return _rejected(refusal)
        if subscription.over:
            subscription.close()
            return _NOTHING_MORE
        return EventStream(request, prediction, subscription)

    async def _watch(self, request: HttpRequest, prediction: Prediction) -> Response | Stream:
        with self._service.watch(prediction):
            await _finish_or_leave(request, prediction)
        return _ended(prediction)


def _new(
    family: RouteFamily, request: HttpRequest, body: bodies.CreateRequest, id: str | None, streamed: bool = False
) -> NewPrediction:
    """What a request asks for."""
    respond_async = not streamed and request.headers.preference.respond_async
    return NewPrediction(
        body.input_json,
        id,
        body.context,
        family.mode,
        watched=not respond_async,
        streamed=streamed,
        webhook=body.webhook,
        events=body.events,
        trace=request.headers.trace,
    )


def _check_type(request: HttpRequest) -> None:
    """See that the body is said to be plain JSON, if anything is said.

    Raises:
      BadBody: with the refusal.
    """
    if request.headers.is_encoded:
        raise bodies.BadBody(415, [bodies.fault(["body"], bodies.ENCODED)], _PLAIN_ONLY)
    if request.headers.is_other_type:
        raise bodies.BadBody(415, [bodies.fault(["body"], bodies.WRONG_TYPE)])


def _bad_body(refusal: bodies.BadBody) -> Response:
    return Response(refusal.status, bodies.detail(refusal.faults), refusal.headers)


def _other_id(family: RouteFamily) -> Response:
    return Response(422, bodies.detail([bodies.fault(["body", "id"], family.id_mismatch)]))


def _accepted(prediction: Prediction) -> Response:
    """The reply to a client that does not wait for the end."""
    if prediction.refusal is not None:
        return _rejected(prediction.refusal)
    return Response(202, bodies.accepted(prediction.id), _ASYNC)


def _ended(prediction: Prediction) -> Response | Large:
    """The reply to a client that has waited for the end."""
    if prediction.refusal is not None:
        return _rejected(prediction.refusal)
    return snapshot_response(200, prediction.pieces(), (_VARY,))


def _openai_routes(service: ServiceInterface, settings: Settings) -> Mapping[bytes, Resource]:
    if not settings.openai:
        return {}
    from cog_trio.transport.http.openai.routes import openai_routes  # most servers do without

    return openai_routes(service, settings.body_limit)


def _metrics_route(metrics: Metrics) -> Handler:
    async def answer(request: HttpRequest) -> Response | Stream:
        return Text(await metrics.scrape(), 200, _METRICS_HEADERS)

    return answer


def _health(health: HealthSnapshot) -> Response:
    return Response(200, health.json())


def _readiness(health: HealthSnapshot) -> Response:
    """Whether requests should be sent here. A server that is busy stays: it answers polls and cancels, and creates by
    409 or its queue; without it a service of one pod would have no address at all."""
    return _probe(health, lambda health: health.status in SERVING and not health.draining)


def _state(prediction: Prediction, wait: int | None) -> Response | Large:
    applied: Headers = () if wait is None else ((b"preference-applied", b"wait=%d" % wait),)
    return snapshot_response(200, prediction.pieces(with_input=True), (_VARY, *applied))


def _probe(health: HealthSnapshot, good: Callable[[HealthSnapshot], bool]) -> Response:
    body: dict[str, Any] = {"status": health.status}
    return Response(200 if good(health) else 503, bodies.encode(body | {"draining": True} if health.draining else body))


def _absent(absence: str) -> Response:
    return Response(404, bodies.encode({"error": absence}))


def _rejected(refusal: Exception) -> Response:
    status, body = refused(refusal)
    return Response(status, bodies.encode(body), (_VARY,))


def _refuse(status: int, text: str, id: str | None) -> Response:
    body = {"error": text}
    return Response(status, bodies.encode(body if id is None else {**body, "id": id}), (_VARY,))


def _resumes(request: HttpRequest) -> bool:
    """It goes on with a stream that it had before."""
    return bool(request.headers.get(b"last-event-id", b"").strip())


async def _finish_or_leave(request: HttpRequest, prediction: Prediction) -> None:
    """Wait for the end of a prediction.

    Raises:
      ClientGone: if the client leaves before.
    """
    if prediction.terminal:
        return
    with trio.CancelScope() as scope, request.receive_queue.watching(scope.cancel):
        await prediction.wait_finished()
    if not prediction.terminal:
        raise ClientGone
