"""Both families of routes: the same answers, told apart in four places."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from cog_trio.bridge.protocol import Mode
from cog_trio.state.refusals import ABSENT
from cog_trio.transport.http.api.route_families import FAMILIES, PREDICTIONS, TRAININGS, RouteFamily
from tests.transport.http.support import Client, FakeService, Response, app_of, connect

ASYNC = "prefer: respond-async"
SSE = "accept: text/event-stream"
BOTH = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.path)


@pytest.fixture
async def service() -> FakeService:
    return FakeService(modes=set(Mode), slots=3)


@pytest.fixture
async def client(nursery: trio.Nursery, service: FakeService) -> Client:
    return connect(nursery, app_of(service))


async def ask(client: Client, method: str, path: str, body: object = b"", *headers: str) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.request(method, path, raw, *headers)


@pytest.mark.covers("http:W26")
@pytest.mark.parametrize(
    ("modes", "named"),
    [({Mode.PREDICT}, {"predictions"}), ({Mode.TRAIN}, {"trainings"}), (set(Mode), {"predictions", "trainings"})],
)
async def test_discovery_names_what_is_served(
    client: Client, service: FakeService, modes: set[Mode], named: set[str]
) -> None:
    service.modes = modes
    found: dict[str, Any] = (await ask(client, "GET", "/")).json
    assert {name.partition("_")[0] for name in found if "ings_" in name or "tions_" in name} == named
    if "trainings" in named:
        assert found["trainings_url"] == "/trainings"
        assert found["trainings_idempotent_url"] == "/trainings/{training_id}"
        assert found["trainings_cancel_url"] == "/trainings/{training_id}/cancel"


@BOTH
async def test_a_family_creates_its_own_kind(client: Client, service: FakeService, family: RouteFamily) -> None:
    assert (await ask(client, "POST", family.path, {"id": "a"}, ASYNC)).status == 202
    assert (await ask(client, "PUT", f"{family.path}/b", {}, ASYNC)).status == 202
    assert [service.open[id].mode for id in "ab"] == [family.mode] * 2


@pytest.mark.covers("http:W26")
@BOTH
async def test_W26_a_family_without_a_function_is_404_with_a_text(
    client: Client, service: FakeService, family: RouteFamily
) -> None:
    service.modes = set(Mode) - {family.mode}
    service.ready = False
    for method, path in (("POST", family.path), ("PUT", f"{family.path}/a")):
        for body in (b"{}", b"{"):
            response = await ask(client, method, path, body)
            assert (response.status, response.json) == (404, {"error": ABSENT[family.mode]})
    assert (await ask(client, "GET", family.path)).json["results"] == []


@pytest.mark.covers("D18")
@BOTH
async def test_reads_joins_and_cancels_go_by_the_id_alone(
    client: Client, service: FakeService, family: RouteFamily
) -> None:
    other = TRAININGS if family is PREDICTIONS else PREDICTIONS
    await ask(client, "PUT", f"{other.path}/a", {}, ASYNC)
    assert (await ask(client, "GET", f"{family.path}/a")).json["id"] == "a"
    assert (await ask(client, "PUT", f"{family.path}/a", {}, ASYNC)).json["status"] == "starting"
    assert (await ask(client, "POST", family.path, {"id": "a"})).status == 409
    assert (await ask(client, "POST", f"{family.path}/a/cancel")).status == 200
    assert service.open["a"].cancel_requested
    service.modes = {other.mode}  # cancels are asked of nobody's function
    assert (await ask(client, "POST", f"{family.path}/a/cancel")).status == 200
    assert (await ask(client, "POST", f"{family.path}/b/cancel")).body == b"{}"


@BOTH
async def test_put_id_mismatch_says_what_it_is(client: Client, family: RouteFamily) -> None:
    response = await ask(client, "PUT", f"{family.path}/a", {"id": "b"})
    noun = "training" if family is TRAININGS else "prediction"
    fault = {"loc": ["body", "id"], "msg": f"{noun} ID must match the ID supplied in the URL", "type": "value_error"}
    assert (response.status, response.json) == (422, {"detail": [fault]})


async def test_streams_of_trainings_are_406(client: Client, service: FakeService) -> None:
    text = "Training endpoints do not support streaming responses."
    await ask(client, "PUT", "/trainings/running", {}, ASYNC)
    for method, path, given in (
        ("POST", "/trainings", {}),
        ("PUT", "/trainings/a", {"id": "a"}),
        ("PUT", "/trainings/running", {"id": "running"}),
        ("GET", "/trainings/running", {"id": "running"}),
    ):
        response = await ask(client, method, path, {} if method != "GET" else b"", SSE)
        assert (response.status, response.json) == (406, {"error": text, **given})
    assert list(service.open) == ["running"]


@pytest.mark.covers("D7")
async def test_D7_503_comes_before_406(client: Client, service: FakeService) -> None:
    service.ready = False
    assert (await ask(client, "POST", "/trainings", {}, SSE)).status == 503
