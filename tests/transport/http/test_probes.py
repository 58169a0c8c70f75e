"""``/livez`` and ``/readyz`` (D39): what Kubernetes is told in each state, by the status alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import trio

from cog_trio.state.health import HealthSnapshot, HealthState
from tests.transport.http.support import FakeService, app_of, connect

#: what is shown, whether requests should come, whether a new process could help
STATES = {
    "UNKNOWN": (503, 200),
    "STARTING": (503, 200),
    "READY": (200, 200),
    "BUSY": (200, 200),  # polls, cancels and joins are for this very process
    "UNHEALTHY": (503, 200),
    "SETUP_FAILED": (503, 200),  # another start of the same image fails the same way
    "DEFUNCT": (503, 503),
}


@dataclass
class Shown(FakeService):
    """A service in one state."""

    status: str = "READY"
    checks: int = 0

    def health(self) -> HealthSnapshot:
        return dataclasses.replace(super().health(), status=self.status)

    @property
    def has_health_check(self) -> bool:
        return True

    async def check_health(self) -> HealthSnapshot:
        self.checks += 1
        return self.health()


def test_every_state_is_in_the_table() -> None:
    assert {*STATES} == {*(state.value for state in HealthState), "BUSY", "UNHEALTHY"}


@pytest.mark.parametrize(("status", "answers"), STATES.items(), ids=STATES)
async def test_what_each_state_answers(nursery: trio.Nursery, status: str, answers: tuple[int, int]) -> None:
    client = connect(nursery, app_of(Shown(status=status)))
    for path, expected in zip(("/readyz", "/livez"), answers, strict=True):
        response = await client.request("GET", path)
        assert (response.status, response.json) == (expected, {"status": status})
        assert response.headers["content-type"] == "application/json"
        head = await client.request("HEAD", path)
        assert (head.status, head.body) == (expected, b"")
        assert head.headers["content-length"] == str(len(response.body))
        assert (await client.request("POST", path)).headers["allow"] == "GET,HEAD"


@pytest.mark.covers("D39")
@pytest.mark.parametrize("status", ["READY", "BUSY"])
async def test_D39_a_server_that_drains_is_alive_and_not_ready(nursery: trio.Nursery, status: str) -> None:
    for path, expected in (("/readyz", 503), ("/livez", 200)):
        response = await connect(nursery, app_of(Shown(status=status, draining=True))).request("GET", path)
        assert (response.status, response.json) == (expected, {"status": status, "draining": True})
        assert response.headers["connection"] == "close"


async def test_the_check_of_the_model_is_asked_for_readiness_and_never_holds_up_liveness(
    nursery: trio.Nursery,
) -> None:
    service = Shown()
    client = connect(nursery, app_of(service))
    assert (await client.request("GET", "/livez")).status == 200
    assert service.checks == 0
    assert (await client.request("GET", "/readyz")).status == 200
    assert service.checks == 1
