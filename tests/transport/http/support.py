"""A raw HTTP client over any stream, a server over memory streams, and a service that tests steer by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from typing import Any

import trio
import trio.testing

from cog_trio.bridge.protocol import Mode
from cog_trio.config.settings import Settings
from cog_trio.inputs.decoding_thread import run_in_decoding_thread
from cog_trio.inputs.validation import Checked, MalformedInput, check_input
from cog_trio.observe.prometheus import Metrics
from cog_trio.service.watchers import is_abandoned
from cog_trio.state.event_log import Subscription
from cog_trio.state.health import HealthSnapshot
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Bounds, Prediction
from cog_trio.state.refusals import ABSENT, SHUTTING_DOWN, STARTING, AlreadyRunning, AtCapacity, NotReady
from cog_trio.state.service_events import Callback, Statistics
from cog_trio.state.status import Fact, Outcome, Status
from cog_trio.transport.http.protocol.connection import PROTOCOLS, App, serve_connection
from cog_trio.transport.http.protocol.server_state import ServerState
from cog_trio.transport.http.routes import make_app

import_module(PROTOCOLS)  # else the first test of a WebSocket waits for a real thread, beside its fake clock

HOST = b"host: localhost\r\n"


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Closed(Exception):
    """The server closed where a response was expected; holds what came before."""


class Client:
    """Speaks raw HTTP/1.1; ``send`` anything, read responses one by one."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _more(self) -> None:
        with trio.fail_after(1000):
            data = await self.stream.receive_some(2**16)
        if not data:
            raise Closed(self.buffer)
        self.buffer += data

    async def response(self, *, head: bool = False) -> Response:
        while b"\r\n\r\n" not in self.buffer:
            await self._more()
        raw, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        status, *lines = raw.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            key = name.strip().lower()
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        response = Response(int(status.split()[1]), headers)
        length = 0 if head else int(headers.get("content-length", 0))
        while len(self.buffer) < length:
            await self._more()
        response.body, self.buffer = self.buffer[:length], self.buffer[length:]
        return response

    async def request(self, method: str, path: str, body: bytes = b"", *headers: str) -> Response:
        await self.send(request(method, path, body, *headers))
        return await self.response(head=method == "HEAD")

    async def eof(self) -> bytes:
        """What comes until the server closes."""
        while True:
            try:
                await self._more()
            except (Closed, trio.BrokenResourceError):
                return self.buffer


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *headers]
    if not any(line.lower().startswith("host:") for line in headers):
        lines.append("host: localhost")
    if body and not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def connect(nursery: trio.Nursery, app: App, settings: Settings | None = None) -> Client:
    """A client at the other end of a connection that is being served."""
    return connect_to(nursery, app, ServerState(settings or Settings()))


def connect_to(nursery: trio.Nursery, app: App, state: ServerState) -> Client:
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(partial(serve_connection, app, state, theirs))
    return Client(ours)


@dataclass
class FakeService:
    """The routes' view of the service; tests decide what becomes of predictions."""

    slots: int = 1
    ready: bool = True
    draining: bool = False
    schema: bytes | None = b'{"openapi":"3.0.2"}'
    open: dict[str, Prediction] = field(default_factory=dict)
    finished: dict[str, Prediction] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    shutdowns: int = 0
    refusal: Exception | None = None  # what create raises
    streaming: bool = False
    event_log: int = 1024  # events
    modes: set[Mode] = field(default_factory=lambda: {Mode.PREDICT})
    method: str = "predict"
    asked: Mode | None = None  # for which kind it was last asked to admit one
    created: trio.Event = field(default_factory=trio.Event)
    draining_began: trio.Event = field(default_factory=trio.Event)

    def health(self) -> HealthSnapshot:
        versions = {"coglet": "0.23.1+trio.0.1.0", "cog_trio": "0.1.0", "python_sdk": "0.23.1", "python": "3.11"}
        return HealthSnapshot(status="READY", setup=None, versions=versions, draining=self.draining)

    @property
    def has_health_check(self) -> bool:
        return False

    async def check_health(self) -> HealthSnapshot:
        return self.health()

    def statistics(self) -> Statistics:
        return Statistics(**dict.fromkeys((number.name for number in fields(Statistics)), 0))

    def observe(self, callback: Callback) -> Callable[[], None]:
        return lambda: None  # nothing ever happens to it

    def on_renewal(self, renew: Callable[[Settings], None]) -> AbstractContextManager[None]:
        return nullcontext()

    def absence(self, mode: Mode) -> str | None:
        return None if mode in self.modes else ABSENT[mode]

    def admit(self, id: str | None = None, mode: Mode = Mode.PREDICT) -> None:
        self.asked = mode
        if self.draining or not self.ready:
            raise NotReady(id, SHUTTING_DOWN if self.draining else STARTING)

    def get(self, id: str) -> Prediction | None:
        return self.open.get(id) or self.finished.get(id)

    def predictions(self, mode: Mode = Mode.PREDICT) -> list[Prediction]:
        return [one for one in (*self.open.values(), *self.finished.values()) if one.mode is mode]

    def running(self, id: str) -> Prediction | None:
        return self.open.get(id)

    async def check_input(self, new: NewPrediction) -> Checked:
        self.admit(new.id, new.mode)
        return await run_in_decoding_thread(check_input, new.input, None, refusals=(MalformedInput,))

    def create(self, new: NewPrediction, checked: Checked | None = None) -> Prediction:
        self.admit(new.id)
        if checked is None:
            check_input(new.input, None)
        if self.refusal is not None:
            raise self.refusal
        if new.id in self.open:
            raise AlreadyRunning(new.id)
        if len(self.open) >= self.slots:
            raise AtCapacity(new.id)
        self.calls.append(
            {name: getattr(new, name) for name in ("id", "input", "context", "webhook", "events", "watched")}
        )
        name = new.id if new.id is not None else f"pred_{len(self.calls)}"
        prediction = Prediction(name, new, bounds=Bounds(events=self.event_log), run=f"run{len(self.calls)}")
        self.open[name] = prediction
        self.created.set()
        return prediction

    def finish(self, id: str, fact: Fact = Fact.RETURNED) -> None:
        prediction = self.open.pop(id)
        if fact is Fact.RETURNED and prediction.status is Status.STARTING:
            prediction.dispatched()
        prediction.finish(Outcome(fact, "ValueError: boom" if fact is Fact.RAISED else None))
        self.finished[id] = prediction

    def join(self, prediction: Prediction) -> Callable[[], None]:
        watch = self.watch(prediction)
        watch.__enter__()
        left: list[bool] = []

        def leave() -> None:
            if not left:
                left.append(True)
                watch.__exit__(None, None, None)

        return leave

    @contextmanager
    def watch(self, prediction: Prediction) -> Iterator[None]:
        prediction.watchers += 1
        try:
            yield
        finally:
            prediction.watchers -= 1
            self._left(prediction)

    def follow(self, prediction: Prediction, after: str | None = None) -> Subscription:
        return prediction.event_log.follow(after, lambda: self._left(prediction))

    def _left(self, prediction: Prediction) -> None:
        if is_abandoned(prediction):
            prediction.cancel()
            self.finish(prediction.id, Fact.CUT)

    def creator_left(self, prediction: Prediction) -> None:
        self._left(prediction)

    def cancel(self, id: str) -> bool:
        if id not in self.open:
            return False
        self.open[id].cancel()
        return True

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.draining = True
        self.draining_began.set()

    async def wait_shutdown(self) -> None:
        await self.draining_began.wait()


class InstantService(FakeService):
    """Each prediction is over as soon as it is created."""

    def create(self, new: NewPrediction, checked: Checked | None = None) -> Prediction:
        prediction = super().create(new, checked)
        self.finish(prediction.id)
        return prediction


def app_of(service: FakeService, settings: Settings | None = None, *, loopback: bool = True) -> App:
    return make_app(service, settings or Settings(), Metrics(service), loopback=loopback)
