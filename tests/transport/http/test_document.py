"""docs/reference/openapi.yaml is what the server does: its routes are the router's, and each status that it names is
brought about here, for each operation, with a body of the form that it names (D17)."""

from __future__ import annotations

import ast
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import prometheus_client.core  # the first scrape would load it in a thread, which knows no faked clock
import pytest
import trio
import trio.testing
from openapi_schema_validator import OAS30Validator
from openapi_spec_validator import validate

from cog_trio.bridge.protocol import Mode
from cog_trio.config.settings import Settings
from cog_trio.inputs.validation import Fault, InvalidInput
from cog_trio.observe.prometheus import Metrics
from cog_trio.state.event_log import Subscription, TooManyFollowers
from cog_trio.state.health import HealthSnapshot
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.refusals import AtCapacity
from cog_trio.transport.http.playground.assets import playground_routes
from cog_trio.transport.http.protocol import server
from cog_trio.transport.http.protocol.server_state import ServerState
from cog_trio.transport.http.routes import make_app
from scenarios.faults.document import complete, pointed, read
from tests.transport.http.support import (
    Client,
    FakeService,
    InstantService,
    Response,
    app_of,
    connect,
    request,
)

DOCUMENT: Final = read()
assert prometheus_client
METHODS: Final = ("get", "put", "post")
WEBSOCKET: Final = "/predictions/ws"
HTTP: Final = Path(server.__file__).parent.parent
JSON: Final = "content-type: application/json"
ASYNC: Final = "prefer: respond-async"
SSE: Final = "accept: text/event-stream"
UPGRADE: Final = (
    *("upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"),
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item[method]


OPERATIONS: Final = {(method, path): operation for method, path, operation in _operations()}
DOCUMENTED: Final = [(*key, int(status)) for key, operation in OPERATIONS.items() for status in operation["responses"]]


# The document by itself.


def test_it_is_valid() -> None:
    validate(DOCUMENT)


MODEL: Final[Any] = {
    "components": {
        "schemas": {
            "Input": {"type": "object", "properties": {"a": {"$ref": "#/components/schemas/a"}}, "required": ["a"]},
            "Output": {"type": "array", "items": {"type": "string"}},
            "a": {"type": "string", "enum": ["x"]},
            "Status": {"type": "string"},
        }
    }
}


@pytest.mark.parametrize("made", [complete, lambda model: pointed(complete(model))])
def test_with_the_schemas_of_a_model_it_is_valid_too(made: Callable[[Any], Any]) -> None:
    document = made(MODEL)
    validate(document)
    schemas = document["components"]["schemas"]
    assert schemas["Input"] == MODEL["components"]["schemas"]["Input"]
    assert schemas["TrainingInput"] == DOCUMENT["components"]["schemas"]["TrainingInput"]
    assert schemas["PredictionRequest"]["required"] == ["input"]
    assert "required" not in schemas["TrainingRequest"]


def test_every_component_is_used() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "openapi.yaml").read_text()
    for kind, names in DOCUMENT["components"].items():
        for name in names:
            assert kind == "securitySchemes" or f"#/components/{kind}/{name}" in text, (kind, name)


def test_it_names_every_operation_id_once() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)


# Against the router.


def _routes() -> Any:
    service = FakeService()
    return make_app(service, Settings(), Metrics(service), loopback=True)._routes


def _routed() -> dict[tuple[str, str], bool]:
    """Every operation of the router, and whether it is open to all."""
    routes = _routes()
    pages = playground_routes()  # for people, and no part of the API
    found = {
        (method, path.decode()): one.is_open({})
        for path, one in routes.fixed.items()
        for method in one.allowed
        if path not in pages
    }
    for (first, last), one in routes.with_id.items():
        family = first.decode()
        path = f"/{family}/{{{family.removesuffix('s')}_id}}" + ("" if last is None else f"/{last.decode()}")
        found |= {(method, path): one.is_open({}) for method in one.allowed}
    found["GET", routes.websocket.decode()] = found["HEAD", routes.websocket.decode()] = False
    return found


@pytest.mark.covers("D17")
def test_its_operations_are_those_of_the_router() -> None:
    routed = _routed()
    assert set(OPERATIONS) == {key for key in routed if key[0] != "HEAD"}
    assert {path for method, path in routed if method == "HEAD"} == {path for method, path in routed if method == "GET"}


def test_what_needs_no_token_says_so() -> None:
    for key, operation in OPERATIONS.items():
        assert _routed()[key] == (operation.get("security") == []), key
        assert (401 in {int(status) for status in operation["responses"]}) != _routed()[key], key


# Against the code: which statuses there are at all.


def test_every_status_in_the_code_is_in_the_document() -> None:
    """A number that is given to what makes replies is a status."""
    makers = {"Response", "BadBody", "_refuse", "refuse", "shown", "Refused"}
    named: set[int] = set()
    for file in HTTP.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                values = [*node.args[:1], *(word.value for word in node.keywords)] if called in makers else []
            elif isinstance(node, ast.Return) and node.value is not None and file.name == "error_replies.py":
                values = [node.value]
            for value in values:
                for part in ast.walk(value):
                    if isinstance(part, ast.Constant) and type(part.value) is int and 100 <= part.value < 600:
                        named.add(part.value)
    told = {status for *_, status in DOCUMENTED}
    assert named - told == {302, 405}  # for a browser, and of what is not an operation
    assert {200, 202, 204, 400, 404, 406, 409, 413, 415, 422, 429, 500, 503} <= named


# Against the server: each status of each operation.


def check(response: Response, method: str, path: str) -> None:
    """What has come is what the document names for this operation and this status."""
    told = OPERATIONS[method, path]["responses"][str(response.status)]
    if "$ref" in told:
        told = DOCUMENT["components"]["responses"][told["$ref"].rpartition("/")[2]]
    if "content" not in told:
        assert response.body == b""
        return
    kind = response.headers["content-type"].partition(";")[0]
    assert kind in told["content"]
    if kind == "application/json":
        schema = {**told["content"][kind]["schema"], "components": DOCUMENT["components"]}
        OAS30Validator(schema).validate(response.json)
    for header in told.get("headers", {}):
        assert header != "www-authenticate" or header in response.headers


class Broken:
    """A service in which everything is broken."""

    draining = False

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Crowded(InstantService):
    def follow(self, prediction: Any, after: str | None = None) -> Subscription:
        raise TooManyFollowers


class Ill(FakeService):
    def health(self) -> HealthSnapshot:
        return replace(super().health(), status="DEFUNCT")


Case: TypeAlias = "Callable[[trio.Nursery, str, str], Awaitable[Response]]"


def asks(
    service: Callable[[], Any], *headers: str, body: bytes = b"", id: str = "a", settings: Settings | None = None
) -> Case:
    """A case: this request of the operation, to such a service."""

    async def ask(nursery: trio.Nursery, method: str, path: str) -> Response:
        client = connect(nursery, app_of(service(), settings), settings)
        return await client.request(method, re.sub(r"{\w+}", id, path), body, *headers)

    return ask


def with_query(query: str, service: Callable[[], Any]) -> Case:
    """A case: this request of the operation, with a query."""

    async def ask(nursery: trio.Nursery, method: str, path: str) -> Response:
        return await connect(nursery, app_of(service())).request(method, path + query, b"")

    return ask


def raw(end: bytes, *headers: str) -> Case:
    """A case: such a head, whose end is cut off and replaced."""

    async def send(nursery: trio.Nursery, method: str, path: str) -> Response:
        client = connect(nursery, app_of(FakeService()))
        await client.send(request(method, re.sub(r"{\w+}", "a", path), b"", *headers)[:-2] + end)
        return await client.response()

    return send


async def crowd(nursery: trio.Nursery, method: str, path: str) -> Response:
    """One connection more than the server takes."""
    state = ServerState(Settings())
    state.limit = 0
    ours, theirs = trio.testing.memory_stream_pair()
    there: Any = theirs
    nursery.start_soon(server._accepted, app_of(FakeService()), state, there)
    client = Client(ours)
    await client.send(request(method, re.sub(r"{\w+}", "a", path)))
    return await client.response()


def both(**more: Any) -> FakeService:
    return FakeService(modes=set(Mode), streaming=True, **more)


def runs(kind: Callable[..., Any] = both, mode: Mode = Mode.PREDICT, id: str = "a") -> Callable[[], Any]:
    def make() -> FakeService:
        service: FakeService = kind()
        service.create(NewPrediction(id=id, mode=mode))
        return service

    return make


def over() -> FakeService:
    service = both()
    service.create(NewPrediction(id="a"))
    service.finish("a")
    return service


def instant() -> FakeService:
    return InstantService(modes=set(Mode), streaming=True)


def crowded() -> FakeService:
    return Crowded(modes=set(Mode), streaming=True)


def invalid() -> FakeService:
    return both(refusal=InvalidInput([Fault(loc=["body", "input", "x"], msg="Field required", type="value_error")]))


FULL: Final = partial(both, refusal=AtCapacity("a"))
EVERYWHERE: Final[dict[int, Case]] = {
    400: raw(b"no header at all\r\n\r\n"),
    401: asks(FakeService, settings=Settings(auth_token="t")),
    403: asks(FakeService, "host: example.org"),
    408: raw(b""),
    431: raw(b"x: " + b"y" * 70_000),
    500: asks(Broken),
    501: raw(b"transfer-encoding: gzip\r\n\r\n"),
}
CREATE: Final[dict[int, list[Case]]] = {
    200: [asks(instant)],
    202: [asks(both, ASYNC)],
    400: [asks(both, JSON, body=b"{")],
    404: [asks(partial(FakeService, modes=set()))],
    409: [asks(FULL)],
    413: [asks(both, JSON, body=b"{      }", settings=Settings(body_limit=4))],
    415: [asks(both, "content-type: text/plain", body=b"{}"), asks(both, JSON, "content-encoding: br", body=b"{}")],
    422: [asks(invalid), asks(both, JSON, body=b"[]")],
    503: [asks(partial(both, ready=False)), crowd],
}
PUT: Final[dict[int, list[Case]]] = {
    **CREATE,
    422: [*CREATE[422], asks(both, id="%00"), asks(both, JSON, body=b'{"id": "b"}')],
}
CANCEL: Final[dict[int, list[Case]]] = {
    200: [asks(runs())],
    400: [asks(both, id="%ff")],
    404: [asks(both)],
    422: [asks(both, id="%00")],
    503: [crowd],
}
LOOK: Final[dict[int, list[Case]]] = {
    400: [asks(both, id="%ff")],
    404: [asks(both)],
    422: [asks(both, id="%00")],
    503: [crowd],
}
LIST: Final[dict[int, list[Case]]] = {
    200: [asks(both), asks(runs()), asks(over), with_query("?status=succeeded", over)],
    422: [with_query("?status=done", both), with_query("?cursor=x", both)],
    503: [crowd],
}
AGAIN: Final = (SSE, "last-event-id: run1-2")
GONE: Final = (SSE, "last-event-id: elsewhere-2")
CASES: Final[dict[tuple[str, str], dict[int, list[Case]]]] = {
    ("GET", "/"): {200: [asks(both), asks(FakeService)], 503: [crowd]},
    ("GET", "/health-check"): {200: [asks(both), asks(partial(both, draining=True))], 503: [crowd]},
    ("GET", "/livez"): {200: [asks(both)], 503: [asks(Ill), crowd]},
    ("GET", "/readyz"): {200: [asks(both)], 503: [asks(Ill), asks(partial(both, draining=True)), crowd]},
    ("GET", "/metrics"): {200: [asks(both)], 503: [crowd]},
    ("GET", "/openapi.json"): {
        200: [asks(partial(both, schema=b'{"openapi":"3.0.2","info":{},"paths":{},"components":{}}'))],
        503: [asks(partial(both, schema=None)), crowd],
    },
    ("POST", "/shutdown"): {200: [asks(both)], 503: [crowd]},
    ("GET", "/predictions"): LIST,
    ("GET", "/trainings"): LIST,
    ("POST", "/predictions"): {**CREATE, 200: [asks(instant), asks(instant, SSE)], 406: [asks(FakeService, SSE)]},
    ("PUT", "/predictions/{prediction_id}"): {
        **PUT,
        200: [asks(instant), asks(runs(), SSE)],
        202: [asks(both, ASYNC), asks(runs(), ASYNC)],
        204: [asks(over, *AGAIN)],
        404: [*CREATE[404], asks(both, *AGAIN)],
        406: [asks(FakeService, SSE)],
        409: [*CREATE[409], asks(over, *GONE)],
        429: [asks(runs(crowded), *AGAIN)],
    },
    ("GET", "/predictions/{prediction_id}"): {
        **LOOK,
        200: [asks(runs()), asks(over, "prefer: wait=5"), asks(over, SSE)],
        204: [asks(over, *AGAIN)],
        404: [asks(both), asks(both, SSE)],
        406: [asks(runs(FakeService), SSE)],
        409: [asks(over, *GONE)],
        429: [asks(runs(crowded), SSE)],
    },
    ("POST", "/predictions/{prediction_id}/cancel"): CANCEL,
    ("POST", "/trainings"): {**CREATE, 406: [asks(both, SSE)]},
    ("PUT", "/trainings/{training_id}"): {
        **PUT,
        202: [asks(both, ASYNC), asks(runs(mode=Mode.TRAIN), ASYNC)],
        404: [*CREATE[404], asks(both, *AGAIN)],
        406: [asks(both, SSE)],
    },
    ("GET", "/trainings/{training_id}"): {**LOOK, 200: [asks(runs())], 406: [asks(runs(mode=Mode.TRAIN), SSE)]},
    ("POST", "/trainings/{training_id}/cancel"): CANCEL,
    ("GET", WEBSOCKET): {
        101: [asks(both, *UPGRADE)],
        200: [asks(runs(id="ws"))],
        404: [asks(both)],
        426: [asks(both, *UPGRADE[:2], UPGRADE[3]), asks(both, *UPGRADE[:2], "sec-websocket-version: 8", UPGRADE[3])],
        503: [crowd],
    },
}


@pytest.mark.covers("D17")
@pytest.mark.parametrize(("method", "path", "status"), DOCUMENTED)
async def test_each_status_of_each_operation(
    method: str, path: str, status: int, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    cases = CASES[method, path].get(status, [])
    if status in EVERYWHERE:
        cases = [*cases, EVERYWHERE[status]]
    assert cases
    for case in cases:
        response = await case(nursery, method, path)
        assert response.status == status
        check(response, method, path)


def test_each_status_that_is_brought_about_is_in_the_document() -> None:
    for key, cases in CASES.items():
        assert set(cases) <= {int(status) for status in OPERATIONS[key]["responses"]}, key
