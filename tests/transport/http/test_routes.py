"""The routes, spoken to over raw HTTP: every edge of them, and rows of the HTTP checklist."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from cog_trio.config.settings import Settings
from cog_trio.inputs.validation import SMALL, InvalidInput, MalformedInput, check_input
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.snapshot import WebhookEvent
from cog_trio.state.status import Fact
from cog_trio.transport.http.api import bodies
from tests.transport.http import support
from tests.transport.http.support import (
    Client,
    FakeService,
    InstantService,
    Response,
    app_of,
    connect,
    request,
)

JSON = "content-type: application/json"
ASYNC = "prefer: respond-async"
SSE = "accept: text/event-stream"


@pytest.fixture
async def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def client(nursery: trio.Nursery, service: FakeService) -> Client:
    return connect(nursery, app_of(service))


@pytest.fixture
async def instant(nursery: trio.Nursery) -> Client:
    return connect(nursery, app_of(InstantService()))


async def ask(client: Client, method: str, path: str, body: object = b"", *headers: str) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.request(method, path, raw, *headers)


async def test_trace_context_goes_with_the_prediction(client: Client, service: FakeService) -> None:
    headers = ("traceparent: 00-0AF7-b7ad-01", "tracestate: a=b, c=d", "tracestate: e=f")
    await ask(client, "POST", "/predictions", {"id": "p"}, JSON, ASYNC, *headers)
    trace = service.open["p"].trace
    assert trace == ((b"traceparent", b"00-0AF7-b7ad-01"), (b"tracestate", b"a=b, c=d, e=f"))


# Routes (spec 1).


@pytest.mark.covers("http:W25")
async def test_discovery_object_is_complete_and_its_docs_are_there_W25(client: Client) -> None:
    response = await ask(client, "GET", "/")
    assert response.status == 200
    assert response.json == {
        "cog_version": "0.23.1",
        "docs_url": "/docs",
        "openapi_url": "/openapi.json",
        "shutdown_url": "/shutdown",
        "healthcheck_url": "/health-check",
        "predictions_url": "/predictions",
        "predictions_idempotent_url": "/predictions/{prediction_id}",
        "predictions_cancel_url": "/predictions/{prediction_id}/cancel",
    }
    assert (await ask(client, "GET", "/docs")).status == 200


async def test_health_check_is_the_snapshot(client: Client, service: FakeService) -> None:
    response = await ask(client, "GET", "/health-check")
    assert (response.status, response.body) == (200, service.health().json())
    assert response.headers["content-type"] == "application/json"


@pytest.mark.covers("D17")
async def test_openapi_is_503_until_described_D17(client: Client, service: FakeService) -> None:
    assert (await ask(client, "GET", "/openapi.json")).body == service.schema
    service.schema = None
    response = await ask(client, "GET", "/openapi.json")
    assert (response.status, response.json) == (503, {"error": "OpenAPI schema not available"})


async def test_shutdown_answers_and_then_drains(client: Client, service: FakeService) -> None:
    response = await ask(client, "POST", "/shutdown", b"not json", "content-type: text/plain")
    assert (response.status, response.json) == (200, {})
    assert service.shutdowns == 1
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/", "/health-check", "/openapi.json", "/predictions/known"])
async def test_get_routes_answer_head_without_body(client: Client, service: FakeService, path: str) -> None:
    service.create(NewPrediction(id="known"))
    whole = await ask(client, "GET", path)
    response = await client.request("HEAD", path)
    assert (response.status, response.body) == (200, b"")
    assert response.headers["content-length"] == whole.headers["content-length"]
    assert (await ask(client, "GET", path)).status == 200  # nothing was left on the wire


@pytest.mark.covers("http:W19")
@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/health-check/",
        "/predictions/",
        "/docs/x",
        "/predictions//cancel",
        "/predictions/a/b",
        "/trainings/a/b",
    ],
)
async def test_unknown_paths_are_404_json_W19(client: Client, path: str) -> None:
    response = await ask(client, "POST", path)
    assert (response.status, response.json) == (404, {"detail": "Not Found"})
    assert response.headers["content-type"] == "application/json"


@pytest.mark.covers("http:W19")
@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/predictions", "GET,POST,HEAD"),
        ("GET", "/shutdown", "POST"),
        ("DELETE", "/predictions/x", "GET,PUT,HEAD"),
        ("POST", "/predictions/x", "GET,PUT,HEAD"),
        ("GET", "/predictions/x/cancel", "POST"),
        ("OPTIONS", "/predictions", "GET,POST,HEAD"),
        ("POST", "/health-check", "GET,HEAD"),
        ("PATCH", "/", "GET,HEAD"),
    ],
)
async def test_wrong_methods_are_405_json_with_allow_W19(client: Client, method: str, path: str, allow: str) -> None:
    response = await ask(client, method, path)
    assert (response.status, response.json) == (405, {"detail": "Method Not Allowed"})
    assert response.headers["allow"] == allow


@pytest.mark.parametrize("method", ["get", "Head", "head", "options"])
async def test_a_method_in_lower_case_is_another_method(client: Client, method: str) -> None:
    """It was taken for that in upper case, and head got a length without a body."""
    for _ in range(2):
        response = await ask(client, method, "/health-check")
        assert (response.status, response.json) == (405, {"detail": "Method Not Allowed"})
        assert response.headers["allow"] == "GET,HEAD"


async def test_query_string_is_ignored(client: Client) -> None:
    assert (await ask(client, "GET", "/health-check?a=b&c")).status == 200


async def test_absolute_target_is_routed_by_its_path(client: Client) -> None:
    assert (await ask(client, "GET", "http://localhost/health-check")).status == 200
    assert (await ask(client, "GET", "http://localhost")).status == 200
    assert (await ask(client, "OPTIONS", "*")).status == 404


@pytest.mark.covers("D9")
@pytest.mark.parametrize(
    ("raw", "id"),
    [
        ("a%20b%2Fc", "a b/c"),
        ("..%2F..%2Fx", "../../x"),
        ("%2Fetc%2Fpasswd", "/etc/passwd"),
        ("ws", "ws"),
        ("%C3%A9", "é"),
        ("a%25b", "a%b"),
        ("..", ".."),
        ("x" * 256, "x" * 256),
        ("%", "%"),
        ("a%2", "a%2"),
        ("a%zz", "a%zz"),
        ("a+b;c", "a+b;c"),
        ("Ã©", "é"),  # UTF-8 as it is
        (".", "."),
        ("cancel", "cancel"),
    ],
)
async def test_ids_are_split_before_they_are_decoded_D9(
    client: Client, service: FakeService, raw: str, id: str
) -> None:
    response = await ask(client, "PUT", f"/predictions/{raw}", {}, ASYNC)
    assert (response.status, response.json) == (202, {"id": id, "status": "starting"})
    assert service.calls[0]["id"] == id
    assert (await ask(client, "GET", f"/predictions/{raw}")).json["id"] == id
    assert (await ask(client, "POST", f"/predictions/{raw}/cancel")).status == 200


async def test_a_fragment_is_no_part_of_an_id(client: Client) -> None:
    assert (await ask(client, "PUT", "/predictions/a#b", {}, ASYNC)).json["id"] == "a"
    assert (await ask(client, "GET", "/health-check#x")).status == 200


@pytest.mark.covers("D9")
@pytest.mark.parametrize("path", ["/%68ealth-check", "/%70redictions/a", "/predictions/a/canc%65l", "/predictions%2Fa"])
async def test_names_of_routes_are_not_decoded(client: Client, path: str) -> None:
    assert (await ask(client, "POST", path)).status == 404


async def test_id_that_is_not_utf8_is_400(client: Client) -> None:
    response = await ask(client, "PUT", "/predictions/%ff", {})
    assert response.status == 400
    assert response.json["detail"][0]["loc"] == ["path", "id"]
    assert response.json["detail"][0]["msg"] == "Invalid URL: Invalid UTF-8 in `id`"


@pytest.mark.covers("http:W4", "D9")
@pytest.mark.parametrize("raw", ["%00", "a%0Ab", "%7F", "%C2%85", "x" * 257, "%C3%A9" * 129])
@pytest.mark.parametrize(("method", "tail"), [("PUT", ""), ("GET", ""), ("POST", "/cancel")])
async def test_W4_bad_ids_in_paths_are_422(client: Client, raw: str, method: str, tail: str) -> None:
    response = await ask(client, method, f"/predictions/{raw}{tail}")
    assert response.status == 422
    assert response.json["detail"][0]["loc"] == ["path", "id"]


@pytest.mark.covers("http:W4")
@pytest.mark.parametrize("id", ["", "\x00", "a\nb", "\x7f", "\x85", "x" * 257, "é" * 129])
async def test_W4_bad_ids_in_bodies_are_422(client: Client, service: FakeService, id: str) -> None:
    response = await ask(client, "POST", "/predictions", {"id": id})
    assert response.status == 422
    assert response.json["detail"][0]["loc"] == ["body", "id"]
    assert not service.calls


async def test_no_server_header_and_no_cors(client: Client) -> None:
    response = await ask(client, "GET", "/", b"", "origin: http://elsewhere.example")
    assert "server" not in response.headers
    assert not [name for name in response.headers if name.startswith("access-control")]


# Bodies (spec 2.1, 2.2).


@pytest.mark.covers("http:W18")
async def test_W18_missing_content_type_with_a_body_is_json(client: Client, service: FakeService) -> None:
    await ask(client, "POST", "/predictions", {"input": {"a": 1}}, ASYNC)
    assert json.loads(service.calls[0]["input"]) == {"a": 1}


@pytest.mark.covers("http:W18")
async def test_no_body_and_no_type_means_no_input(client: Client, service: FakeService) -> None:
    assert (await ask(client, "POST", "/predictions", b"", ASYNC)).status == 202
    assert service.calls[0]["input"] == b"{}"


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json", "application/json;a=b"]
)
async def test_json_types_are_decoded(instant: Client, kind: str) -> None:
    assert (await ask(instant, "POST", "/predictions", {}, f"content-type: {kind}")).status == 200


@pytest.mark.covers("http:W19")
@pytest.mark.parametrize(
    "kind", ["text/plain", "text/json", "application/x-www-form-urlencoded", "json", "a/b+json", ""]
)
async def test_W19_other_types_are_415_json(instant: Client, kind: str) -> None:
    response = await ask(instant, "POST", "/predictions", {}, f"content-type: {kind}")
    assert response.status == 415
    assert response.json["detail"] == [
        {"loc": ["body"], "msg": "Expected request with `Content-Type: application/json`", "type": "value_error"}
    ]
    assert (await ask(instant, "GET", "/health-check")).status == 200


MALFORMED = {
    "empty": b"",
    "malformed": b'{"input":',
    "BOM": b"\xef\xbb\xbf{}",
    "NaN": b'{"input":{"a":NaN}}',
    "Infinity": b'{"input":{"a":-Infinity}}',
    "number out of range": b'{"input":{"a":1e999}}',
    "integer of 4,301 digits": b'{"input":{"a":' + b"9" * 4301 + b"}}",
    "lone surrogate": b'{"input":{"a":"\\ud800"}}',
    "lone low surrogate": b'{"input":{"a":"\\udc00"}}',
    "bad UTF-8": b'{"input":{"a":"\xff"}}',
    "bad UTF-8 in what is ignored": b'{"other":"\xff"}',
    "trailing data": b"{} {}",
    "nesting of 128": b'{"input":' + b"[" * 127 + b"]" * 127 + b"}",
    "nesting of 200": b'{"input":' + b"[" * 199 + b"]" * 199 + b"}",
    "nesting of 100,000": b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "wrong shape before malformed": b'{"id":5,"input":',
}


@pytest.mark.covers("http:W19")
@pytest.mark.parametrize("name", MALFORMED)
async def test_W19_what_is_no_json_is_400_json(instant: Client, name: str) -> None:
    response = await ask(instant, "POST", "/predictions", MALFORMED[name], JSON)
    assert response.status == 400
    (fault,) = response.json["detail"]
    assert fault["loc"] == ["body"]
    assert fault["msg"].startswith("Failed to parse the request body as JSON: ")


async def test_integers_of_4300_digits_and_nesting_of_127_pass(client: Client, service: FakeService) -> None:
    digits = b"9" * 4300
    await ask(client, "POST", "/predictions", b'{"input":{"a":' + digits + b"}}", ASYNC)
    assert service.calls[0]["input"] == b'{"a":' + digits + b"}"
    service.slots = 2
    deep = b'{"a":"[[[[{{{{","input":' + b"[" * 126 + b"]" * 126 + b"}"
    assert (await ask(client, "POST", "/predictions", deep, ASYNC)).status == 202


async def test_large_bodies_are_looked_at_in_a_thread(
    client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    decode = bodies.decode_create

    def decode_create(body: bytes) -> bodies.CreateRequest:
        threads.append(threading.get_ident())
        return decode(body)

    monkeypatch.setattr(bodies, "decode_create", decode_create)
    for size, end in ((SMALL - 100, b'"}'), (SMALL, b'"}'), (SMALL, b'"')):
        response = await ask(client, "PUT", "/predictions/p", b'{"input":"' + b"x" * size + end, ASYNC)
        assert response.status == (202 if end == b'"}' else 400)
    assert [thread == threading.get_ident() for thread in threads] == [True, False, False]


WRONG = {
    "null": (b"null", ["body"]),
    "string": (b'"x"', ["body"]),
    "W20_array": (b'[null,{"a":1}]', ["body"]),
    "id": (b'{"id":5}', ["body", "id"]),
    "context null": (b'{"context":null}', ["body", "context"]),
    "context value": (b'{"context":{"a":1}}', ["body", "context", "a"]),
    "webhook type": (b'{"webhook":5}', ["body", "webhook"]),
    "filter null": (b'{"webhook_events_filter":null}', ["body", "webhook_events_filter"]),
    "filter name": (b'{"webhook_events_filter":["start","nope"]}', ["body", "webhook_events_filter/1"]),
    "filter case": (b'{"webhook_events_filter":["Start"]}', ["body", "webhook_events_filter/0"]),
    "filter type": (b'{"webhook_events_filter":[5]}', ["body", "webhook_events_filter/0"]),
}


@pytest.mark.covers("http:W19", "http:W20")
@pytest.mark.parametrize("name", WRONG)
async def test_W19_W20_wrong_shapes_are_422_json(instant: Client, name: str) -> None:
    body, loc = WRONG[name]
    response = await ask(instant, "POST", "/predictions", body, JSON)
    assert response.status == 422
    (fault,) = response.json["detail"]
    assert fault["loc"] == loc
    assert fault["msg"].startswith("Failed to deserialize the JSON body into the target type: ")


@pytest.mark.covers("lesson:41")
async def test_every_fault_of_the_envelope_is_listed(instant: Client) -> None:
    body = {"id": 1, "context": {"a": 1, "b": "x", "c": []}, "webhook_events_filter": ["x", "logs", 3]}
    response = await ask(instant, "POST", "/predictions", body)
    locs = [fault["loc"] for fault in response.json["detail"]]
    assert locs == [
        ["body", "id"],
        ["body", "context", "a"],
        ["body", "context", "c"],
        ["body", "webhook_events_filter/0"],
        ["body", "webhook_events_filter/2"],
    ]
    assert "webhook_events_filter[0]: unknown variant `x`" in response.json["detail"][3]["msg"]


@pytest.mark.parametrize("large", [False, True])
async def test_a_repeated_member_is_422_and_unknown_ones_are_ignored(
    client: Client, service: FakeService, large: bool
) -> None:
    text = '"%s"' % ("x" * (SMALL if large else 1))
    wrong = {
        f'{{"id":"a","input":{{"n":{text}}},"i\\u0064":"b"}}': ["id"],
        f'{{"input":{{"n":1}},"id":"a","input":{{"n":{text}}},"id":"b"}}': ["id", "input"],
        f'{{"input":{{"n":{text}}},"input":{{"n":{text}}}}}': ["input"],
        f'{{"x":{text},"context":{{}},"context":{{}}}}': ["context"],
    }
    for body, names in wrong.items():
        response = await ask(client, "POST", "/predictions", body.encode(), ASYNC)
        assert response.status == 422
        assert [fault["loc"] for fault in response.json["detail"]] == [["body", name] for name in names]
        assert response.json["detail"][0]["msg"].endswith(f"target type: duplicate field `{names[0]}`")
    assert not service.calls
    inside = f'"id":"c","id":"d","input":{text},"input":1'
    body = f'{{"other":1,"id":"b","other":2,"input":{{{inside}}},"output_file_prefix":1}}'
    assert (await ask(client, "POST", "/predictions", body.encode(), ASYNC)).json["id"] == "b"


async def test_inside_an_input_the_last_member_wins_and_unknown_ones_are_ignored(
    client: Client, service: FakeService
) -> None:
    body = b'{"id":"b","input":{"id":1,"input":2,"a":{"id":3},"a":4},"created_at":1,"created_at":{"id":5}}'
    assert (await ask(client, "POST", "/predictions", body, ASYNC)).status == 202
    assert service.calls[0]["id"] == "b"
    assert json.loads(service.calls[0]["input"]) == {"id": 1, "input": 2, "a": 4}


async def test_fields_reach_the_service(client: Client, service: FakeService) -> None:
    body = {
        "input": None,
        "context": {"k": "v"},
        "webhook": "https://example.org/hook",
        "webhook_events_filter": ["logs", "logs", "completed"],
    }
    await ask(client, "POST", "/predictions", body, ASYNC)
    assert service.calls == [
        {
            "id": None,
            "input": b"{}",
            "context": {"k": "v"},
            "webhook": "https://example.org/hook",
            "events": frozenset({WebhookEvent.LOGS, WebhookEvent.COMPLETED}),
            "watched": False,
        }
    ]


async def test_empty_filter_means_no_event_and_absent_all(client: Client, service: FakeService) -> None:
    service.slots = 2
    await ask(client, "POST", "/predictions", {"webhook_events_filter": []}, ASYNC)
    await ask(client, "POST", "/predictions", {"webhook": None, "id": None}, ASYNC)
    assert service.calls[0]["events"] == frozenset()
    assert service.calls[1]["events"] == frozenset(WebhookEvent)


@pytest.mark.covers("http:W40")
@pytest.mark.parametrize(
    "url", ["", "nonsense", "ftp://x/y", "http://", "//host/x", "/x", "http://a b", "http://x:99999/", "file:///x"]
)
async def test_W40_a_webhook_must_be_an_absolute_http_url(instant: Client, url: str) -> None:
    response = await ask(instant, "POST", "/predictions", {"webhook": url})
    assert response.status == 422
    assert response.json["detail"][0]["loc"] == ["body", "webhook"]


@pytest.mark.covers("http:W40")
@pytest.mark.parametrize("url", ["http://x", "HTTPS://x.example:8080/a?b#c", "http://[::1]:80/", "http://u:p@h/"])
async def test_W40_absolute_http_urls_pass(instant: Client, url: str) -> None:
    assert (await ask(instant, "POST", "/predictions", {"webhook": url})).status == 200


# Prefer and Accept (spec 2.3).


@pytest.mark.covers("http:W21")
@pytest.mark.parametrize(
    "headers",
    [
        ["prefer: respond-async"],
        ["prefer: Respond-Async"],
        ["prefer: respond-async, wait=5"],
        ["prefer: wait=5;x=y, respond-async;foo"],
        ["prefer: return=minimal", "prefer: respond-async"],
        ['prefer: x="a, b", respond-async'],
    ],
)
async def test_W21_respond_async_in_any_form(client: Client, headers: list[str]) -> None:
    response = await ask(client, "POST", "/predictions", {}, *headers)
    assert response.status == 202
    assert response.headers["preference-applied"] == "respond-async"
    assert response.headers["vary"] == "accept, prefer"


@pytest.mark.covers("http:W21", "D10")
@pytest.mark.parametrize("value", ["wait=5", "return=minimal", "respond-asynchronous", 'x="respond-async"', ""])
async def test_W21_other_preferences_are_sync(instant: Client, value: str) -> None:
    response = await ask(instant, "POST", "/predictions", {}, f"prefer: {value}")
    assert response.status == 200
    assert "preference-applied" not in response.headers
    assert response.headers["vary"] == "accept, prefer"


@pytest.mark.covers("http:W21")
@pytest.mark.parametrize(
    "headers",
    [
        ["accept: text/event-stream"],
        ["accept: Text/Event-Stream"],
        ["accept: text/event-stream ;q=1"],
        ["accept: application/json, text/event-stream"],
        ["accept: text/event-stream;q=0.5, */*;q=0.1"],
        ["accept: application/json", "accept: text/event-stream"],
        ["accept: text/event-stream", "prefer: respond-async"],
    ],
)
async def test_W21_sse_in_any_form_is_406(client: Client, headers: list[str]) -> None:
    response = await ask(client, "POST", "/predictions", {}, *headers)
    assert response.status == 406
    assert response.json == {
        "error": "This model does not support streaming responses. Add @cog.streaming to predict() to enable SSE."
    }


@pytest.mark.covers("http:W21")
@pytest.mark.parametrize(
    "value", ["text/event-stream;q=0", "text/*", "*/*", "text/html", "text/event-stream;q=0.1, application/json", ""]
)
async def test_W21_other_accepts_are_json(instant: Client, value: str) -> None:
    assert (await ask(instant, "POST", "/predictions", {}, f"accept: {value}")).status == 200


# Order of checks (D7).


@pytest.mark.covers("D7")
async def test_D7_each_check_answers_before_the_next(client: Client, service: FakeService) -> None:
    service.ready = False
    service.refusal = InvalidInput([])
    assert (await ask(client, "PUT", "/predictions/%ff", b"x", "content-type: text/plain", SSE)).status == 400
    assert (await ask(client, "PUT", "/predictions/a", b"x", "content-type: text/plain", SSE)).status == 415
    assert (await ask(client, "PUT", "/predictions/a", b"x", SSE)).status == 400
    assert (await ask(client, "PUT", "/predictions/a", {"id": "b"}, SSE)).status == 422
    assert (await ask(client, "PUT", "/predictions/a", {}, SSE)).status == 503
    service.ready = True
    assert (await ask(client, "PUT", "/predictions/a", {}, SSE)).status == 406
    assert (await ask(client, "PUT", "/predictions/a", {})).status == 422
    service.refusal, service.slots = None, 0
    assert (await ask(client, "PUT", "/predictions/a", {})).status == 409


async def test_put_id_mismatch(client: Client) -> None:
    response = await ask(client, "PUT", "/predictions/a", {"id": "b"})
    assert response.json == {
        "detail": [
            {
                "loc": ["body", "id"],
                "msg": "prediction ID must match the ID supplied in the URL",
                "type": "value_error",
            }
        ]
    }


@pytest.mark.covers("http:W11")
@pytest.mark.parametrize(
    ("given", "extra"), [({}, {}), ({"id": "mine"}, {"id": "mine"})], ids=["no id", "W11: the id that was given"]
)
async def test_refusals_have_the_form_of_a_failed_prediction(
    client: Client, service: FakeService, given: dict[str, str], extra: dict[str, str]
) -> None:
    service.slots = 0
    response = await ask(client, "POST", "/predictions", given)
    text = "At capacity - all prediction slots busy"
    assert (response.status, response.json) == (409, {"error": text, "status": "failed", **extra})
    service.ready = False
    response = await ask(client, "POST", "/predictions", given)
    text = "Setup has not finished yet. Wait until it has finished, or GET /health-check for status."
    assert (response.status, response.json) == (503, {"error": text, "status": "failed", **extra})


@pytest.mark.covers("http:W14", "D2", "D39")
async def test_W14_creates_are_503_while_draining_and_joins_pass(client: Client, service: FakeService) -> None:
    service.create(NewPrediction(id="a"))
    service.draining = True
    await client.send(b"")
    response = await ask(client, "PUT", "/predictions/a", {}, ASYNC)
    assert response.status == 202
    assert response.headers["connection"] == "close"


@pytest.mark.covers("http:W14")
async def test_W14_health_read_and_cancel_answer_while_draining(nursery: trio.Nursery, service: FakeService) -> None:
    service.create(NewPrediction(id="a"))
    service.draining = True
    for method, path in (("GET", "/health-check"), ("GET", "/predictions/a"), ("POST", "/predictions/a/cancel")):
        response = await ask(connect(nursery, app_of(service)), method, path)
        assert response.status == 200
        assert response.headers["connection"] == "close"
    response = await ask(connect(nursery, app_of(service)), "POST", "/predictions", {})
    assert (response.status, response.json["error"]) == (503, "Server is shutting down")


async def test_invalid_input_lists_what_the_service_found(client: Client, service: FakeService) -> None:
    service.refusal = InvalidInput([{"loc": ["body", "input", "n"], "msg": "Field required", "type": "x"}])
    response = await ask(client, "POST", "/predictions", {})
    assert (response.status, response.json) == (
        422,
        {"detail": [{"loc": ["body", "input", "n"], "msg": "Field required", "type": "x"}]},
    )
    service.refusal = MalformedInput("number out of range")
    assert (await ask(client, "POST", "/predictions", {})).status == 400


# Replies and joins (spec 4, 5).


async def test_sync_reply_is_the_terminal_snapshot(client: Client, service: FakeService) -> None:
    await client.send(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
    await service.created.wait()
    prediction = service.open["pred_1"]
    assert prediction.watched
    service.finish("pred_1")
    response = await client.response()
    assert (response.status, response.body) == (200, prediction.snapshot())
    assert response.headers["content-length"] == str(len(response.body))


async def test_async_reply_is_id_and_starting_only(client: Client, service: FakeService) -> None:
    response = await ask(client, "POST", "/predictions", {"id": "a"}, ASYNC)
    assert (response.status, response.json) == (202, {"id": "a", "status": "starting"})
    assert not service.open["a"].watched


@pytest.mark.covers("http:W3", "D3")
async def test_W3_post_with_a_running_id_is_409_with_its_own_text(client: Client, service: FakeService) -> None:
    service.create(NewPrediction(id="a"))
    response = await ask(client, "POST", "/predictions", {"id": "a"})
    assert response.status == 409
    assert response.json == {"error": "A prediction with this id is already running", "id": "a", "status": "failed"}
    assert len(service.calls) == 1


@pytest.mark.covers("D2")
async def test_D2_async_put_of_a_running_id_shows_its_state_and_input(client: Client, service: FakeService) -> None:
    prediction = service.create(NewPrediction(id="a", input=b'{"n":1}'))
    response = await ask(client, "PUT", "/predictions/a", {"input": {"n": 2}}, ASYNC)
    assert (response.status, response.body) == (202, prediction.snapshot(with_input=True))
    assert response.json["input"] == {"n": 1}
    assert len(service.calls) == 1


@pytest.mark.covers("D2")
async def test_D2_sync_put_of_a_running_id_waits_for_its_end(client: Client, service: FakeService) -> None:
    prediction = service.create(NewPrediction(id="a"))
    await client.send(b"PUT /predictions/a HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await trio.testing.wait_all_tasks_blocked()
    assert prediction.watchers == 1
    service.finish("a")
    response = await client.response()
    assert (response.status, response.body) == (200, prediction.snapshot())


@pytest.mark.covers("D4")
async def test_a_join_that_leaves_does_not_end_an_async_run_D4(client: Client, service: FakeService) -> None:
    prediction = service.create(NewPrediction(id="a"))
    await client.send(b"PUT /predictions/a HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await trio.testing.wait_all_tasks_blocked()
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert (prediction.watchers, prediction.cancel_requested) == (0, False)


@pytest.mark.covers("D4")
@pytest.mark.parametrize("extra", [b"", b"\r\n", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"garbage"])
async def test_a_client_that_leaves_ends_its_sync_run_D4(client: Client, service: FakeService, extra: bytes) -> None:
    body = b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
    await client.send(body + extra)
    await service.created.wait()
    prediction = service.open["pred_1"]
    await trio.testing.wait_all_tasks_blocked()
    assert not prediction.cancel_requested
    await client.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert prediction.cancel_requested


async def test_a_half_closed_client_counts_as_gone(client: Client, service: FakeService) -> None:
    await client.send(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
    await service.created.wait()
    await client.stream.send_eof()
    await trio.testing.wait_all_tasks_blocked()
    assert service.finished["pred_1"].cancel_requested


async def test_the_normal_end_of_a_request_cancels_nothing(client: Client, service: FakeService) -> None:
    for number in range(1, 4):
        service.created = trio.Event()
        await client.send(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await service.created.wait()
        service.finish(f"pred_{number}")
        assert (await client.response()).json["status"] == "succeeded"
    assert not any(prediction.cancel_requested for prediction in service.finished.values())


@pytest.mark.covers("D16")
async def test_cancel_is_200_in_flight_and_404_with_an_empty_object_otherwise_D16(
    client: Client, service: FakeService
) -> None:
    service.create(NewPrediction(id="a"))
    for _ in range(2):
        response = await ask(client, "POST", "/predictions/a/cancel", b"{broken", JSON)
        assert (response.status, response.json) == (200, {})
    response = await ask(client, "POST", "/predictions/b/cancel")
    assert (response.status, response.json) == (404, {})


@pytest.mark.covers("http:W24")
async def test_W24_get_shows_running_and_finished_with_input(client: Client, service: FakeService) -> None:
    service.create(NewPrediction(id="a", input=b'{"n":1}'))
    response = await ask(client, "GET", "/predictions/a")
    assert (response.status, response.json["status"], response.json["input"]) == (200, "starting", {"n": 1})
    service.finish("a")
    response = await ask(client, "GET", "/predictions/a")
    assert (response.json["status"], response.json["input"]) == ("succeeded", {"n": 1})
    response = await ask(client, "GET", "/predictions/b")
    assert (response.status, response.json) == (404, {"detail": "Not Found"})


@pytest.mark.covers("D10")
async def test_D10_get_waits_as_preferred(
    client: Client, service: FakeService, autojump_clock: trio.testing.MockClock
) -> None:
    service.create(NewPrediction(id="a"))
    start = trio.current_time()
    response = await ask(client, "GET", "/predictions/a", b"", "prefer: wait=7")
    assert trio.current_time() - start == 7.0
    assert (response.json["status"], response.headers["preference-applied"]) == ("starting", "wait=7")
    await client.send(b'GET /predictions/a HTTP/1.1\r\nhost: localhost\r\nprefer: wait="60"\r\n\r\n')
    await trio.testing.wait_all_tasks_blocked()
    service.finish("a")
    assert (await client.response()).json["status"] == "succeeded"


@pytest.mark.covers("D11")
async def test_D11_get_with_sse_never_creates(client: Client, service: FakeService) -> None:
    assert (await ask(client, "GET", "/predictions/a", b"", SSE)).status == 404
    service.create(NewPrediction(id="a"))
    assert (await ask(client, "GET", "/predictions/a", b"", SSE)).status == 406


async def test_a_route_that_fails_is_500_json(
    client: Client, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.refusal = ZeroDivisionError("bug")
    response = await ask(client, "POST", "/predictions", {})
    assert (response.status, response.json) == (500, {"detail": "Internal Server Error"})
    assert "ZeroDivisionError" in caplog.text
    assert (await ask(client, "GET", "/")).status == 200


async def test_websocket_at_another_path_is_refused_with_404(client: Client) -> None:
    await client.send(
        b"GET /predictions/x HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    response = await client.response()
    assert (response.status, response.json) == (404, {"detail": "Not Found"})


# The body limit (W47).


async def limited(nursery: trio.Nursery) -> tuple[Client, FakeService]:
    service = FakeService()
    settings = Settings(body_limit=1000)
    return connect(nursery, app_of(service, settings), settings), service


@pytest.mark.covers("http:W47", "lesson:36")
async def test_W47_a_large_content_length_is_413_at_once(nursery: trio.Nursery) -> None:
    client, service = await limited(nursery)
    await client.send(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1001\r\n\r\n")
    response = await client.response()
    assert response.status == 413
    assert response.json == {
        "detail": [
            {
                "loc": ["body"],
                "msg": "Failed to buffer the request body: length limit exceeded",
                "type": "value_error",
            }
        ]
    }
    await client.send(b" " * 1001)  # what was on its way is dropped, the connection goes on
    assert (await ask(client, "GET", "/health-check")).status == 200
    assert not service.calls


@pytest.mark.covers("http:W47")
async def test_W47_a_chunked_body_is_413_when_it_crosses_the_limit(nursery: trio.Nursery) -> None:
    client, _ = await limited(nursery)
    await client.send(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(11):
        await client.send(b"64\r\n" + b" " * 100 + b"\r\n")
    assert (await client.response()).status == 413
    await client.send(b"64\r\n" + b" " * 100 + b"\r\n0\r\n\r\n")
    assert (await ask(client, "GET", "/health-check")).status == 200


@pytest.mark.covers("http:W47")
async def test_W47_the_limit_itself_passes(nursery: trio.Nursery) -> None:
    client, service = await limited(nursery)
    body = json.dumps({"input": {"a": ""}}).encode()
    body = json.dumps({"input": {"a": "x" * (1000 - len(body))}}).encode()
    assert len(body) == 1000
    assert (await ask(client, "POST", "/predictions", body, ASYNC)).status == 202
    assert len(service.calls) == 1


@pytest.mark.covers("http:W47")
async def test_W47_a_body_far_over_the_limit_closes_the_connection(nursery: trio.Nursery) -> None:
    client, _ = await limited(nursery)
    await client.send(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n")
    response = await client.response()
    assert (response.status, response.headers["connection"]) == (413, "close")
    assert await client.eof() == b""


async def test_chunked_and_continued_bodies(client: Client, service: FakeService) -> None:
    service.slots = 2
    await client.send(
        b"POST /predictions HTTP/1.1\r\nhost: localhost\r\nprefer: respond-async\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'6\r\n{"id":\r\n4\r\n"a"}\r\n0\r\n\r\n'
    )
    assert (await client.response()).json["id"] == "a"
    await client.send(
        b"POST /predictions HTTP/1.1\r\nhost: localhost\r\nprefer: respond-async\r\nexpect: 100-continue\r\n"
        b"content-length: 10\r\n\r\n"
    )
    assert (await client.response()).status == 100
    await client.send(b'{"id":"b"}')
    assert (await client.response()).json["id"] == "b"


@pytest.mark.parametrize("coding", ["br", "gzip", "identity, br", "x"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/predictions"), ("PUT", "/predictions/a")])
async def test_a_content_encoding_is_415(instant: Client, coding: str, method: str, path: str) -> None:
    response = await ask(instant, method, path, {}, f"content-encoding: {coding}")
    assert response.status == 415
    assert response.headers["accept-encoding"] == "identity"
    assert response.json["detail"][0]["msg"] == "This server takes request bodies without a Content-Encoding only"
    assert (await ask(instant, method, path, {}, "content-encoding: Identity")).status == 200


async def test_a_cancel_can_be_repeated_as_long_as_the_prediction_can_be_read(nursery: trio.Nursery) -> None:
    service = FakeService()
    client = connect(nursery, app_of(service))
    assert (await client.request("POST", "/predictions/a/cancel")).status == 404
    await ask(client, "PUT", "/predictions/a", {}, "prefer: respond-async")
    assert (await client.request("POST", "/predictions/a/cancel")).status == 200
    service.finish("a", Fact.CUT)
    for _ in range(2):
        response = await client.request("POST", "/predictions/a/cancel")
        assert (response.status, response.body) == (200, b"{}")
    del service.finished["a"]
    assert (await client.request("POST", "/predictions/a/cancel")).status == 404


@pytest.mark.parametrize("size", [SMALL - 100, SMALL, 2**20])
async def test_large_bodies_and_inputs_are_decoded_and_checked_in_a_thread(
    nursery: trio.Nursery, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One decode for the envelope and one for the input; none of them on the event loop over 64 KiB."""
    threads: list[bool] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            threads.append(threading.current_thread() is not threading.main_thread())
            return function(*args)

        return call

    monkeypatch.setattr(bodies, "decode_create", noted(bodies.decode_create))
    monkeypatch.setattr(support, "check_input", noted(check_input))
    client = connect(nursery, app_of(InstantService()))
    assert (await ask(client, "POST", "/predictions", {"input": {"text": "x" * size}})).status == 200
    assert threads == [size >= SMALL] * 2


async def test_one_large_body_is_decoded_at_a_time(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    now = most = 0
    lock, more = threading.Lock(), threading.Semaphore(0)
    decode = bodies.decode_create

    def slow(body: bytes) -> bodies.CreateRequest:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        more.acquire()
        with lock:
            now -= 1
        return decode(body)

    monkeypatch.setattr(bodies, "decode_create", slow)
    app = app_of(InstantService(slots=10))
    clients = [connect(nursery, app) for _ in range(6)]
    for client in clients:
        await client.send(request("POST", "/predictions", b'{"x":"%b"}' % (b"x" * SMALL), JSON))
    for _ in clients:
        more.release()
    for client in clients:
        assert (await client.response()).status == 200
    assert most == 1
