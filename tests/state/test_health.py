"""The health of the service: the table, the overlay, the setup log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import cog_trio
from cog_trio.bridge.protocol import logs_truncated
from cog_trio.state.health import (
    FAILED_LINE,
    MAX_OPEN_LINE,
    NEXT,
    READY_LINE,
    Health,
    HealthFact,
    HealthState,
    IllegalHealthTransition,
    SetupLog,
    SetupStatus,
)

DIAGRAM = Path(__file__).parent.parent.parent / "docs" / "design" / "health.md"
CAUSE = "Worker died: signal 9 (SIGKILL), possibly out of memory"


def clock() -> Callable[[], datetime]:
    """One second later at each look."""
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def now() -> datetime:
        nonlocal moment
        moment += timedelta(seconds=1)
        return moment

    return now


def state(fact: HealthFact, health: Health) -> Callable[[], None]:
    return {
        HealthFact.SPAWNED: health.spawned,
        HealthFact.SET_UP: health.set_up,
        HealthFact.SETUP_BROKE: lambda: health.setup_broke(CAUSE),
        HealthFact.LOST: lambda: health.lost(CAUSE),
        HealthFact.RESPAWNED: lambda: health.respawned(CAUSE),
    }[fact]


PATHS = {
    HealthState.UNKNOWN: [],
    HealthState.STARTING: [HealthFact.SPAWNED],
    HealthState.READY: [HealthFact.SPAWNED, HealthFact.SET_UP],
    HealthState.SETUP_FAILED: [HealthFact.SPAWNED, HealthFact.SETUP_BROKE],
    HealthState.DEFUNCT: [HealthFact.SPAWNED, HealthFact.SET_UP, HealthFact.LOST],
}


def make(reached: HealthState, *, log_limit: int = 2**20) -> Health:
    health = Health(clock(), log_limit)
    for fact in PATHS[reached]:
        state(fact, health)()
    return health


def body(health: Health, *, busy: bool = False, draining: bool = False, error: str | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(
        health.snapshot(busy=busy, draining=draining, user_healthcheck_error=error).json()
    )
    return shown


@pytest.mark.parametrize(("reached", "fact"), list(product(HealthState, HealthFact)))
def test_each_pair_of_state_and_fact(reached: HealthState, fact: HealthFact) -> None:
    health = make(reached)
    before = body(health), health.cause
    if fact in NEXT[reached]:
        state(fact, health)()
        assert health.state is NEXT[reached][fact]
    else:
        with pytest.raises(IllegalHealthTransition):
            state(fact, health)()
        assert (body(health), health.cause) == before
        assert health.state is reached


def test_the_diagram_is_the_table() -> None:
    block = DIAGRAM.read_text().split("```mermaid")[1].split("```")[0]
    drawn = set(re.findall(r"^\s*(\w+) --> (\w+): (\w+)$", block, re.MULTILINE))
    assert drawn == {(s.value, t.value, f.value) for s, row in NEXT.items() for f, t in row.items()}


def test_spellings() -> None:
    assert [reached.value for reached in HealthState] == ["UNKNOWN", "STARTING", "READY", "SETUP_FAILED", "DEFUNCT"]
    assert [status.value for status in SetupStatus] == ["starting", "succeeded", "failed"]


def test_the_version_is_the_distributions() -> None:
    pyproject = (Path(__file__).parent.parent.parent / "pyproject.toml").read_text()
    assert f'version = "{cog_trio.__version__}"' in pyproject


def test_unknown_has_no_setup() -> None:
    assert body(make(HealthState.UNKNOWN)) == {
        "status": "UNKNOWN",
        "version": {"coglet": f"0.23.1+trio.{cog_trio.__version__}", "cog_trio": cog_trio.__version__},
    }


@pytest.mark.covers("worker:W6")
def test_W6_logs_are_visible_while_setup_runs() -> None:
    health = make(HealthState.STARTING)
    assert body(health)["setup"] == {"started_at": "2026-01-02T03:04:06+00:00", "status": "starting"}
    health.log.user("stdout", "loading\n10%")
    health.log.user("stderr", "warn\n")
    assert body(health)["setup"]["logs"] == "[coglet::setup] loading\n[coglet::setup] warn\n[coglet::setup] 10%"


@pytest.mark.covers("http:W29")
def test_W29_ready_and_the_setup_result_come_together() -> None:
    health = make(HealthState.STARTING)
    health.log.user("stdout", "half a line")
    health.set_up()
    shown = body(health)
    assert shown["status"] == "READY"
    assert shown["setup"] == {
        "started_at": "2026-01-02T03:04:06+00:00",
        "completed_at": "2026-01-02T03:04:07+00:00",
        "status": "succeeded",
        "logs": f"[coglet::setup] half a line\n{READY_LINE}",
    }


@pytest.mark.covers("http:W8")
def test_W8_a_failed_setup_keeps_its_logs_and_the_cause() -> None:
    health = make(HealthState.STARTING)
    health.log.user("stdout", "loading\n")
    health.log.user("stderr", "Traceback (most recent call last):\n  File x\nValueError: bad weights\n")
    health.setup_broke("ValueError: bad weights")
    setup = body(health)["setup"]
    assert setup["status"] == "failed"
    assert setup["logs"].splitlines() == [
        "[coglet::setup] loading",
        "[coglet::setup] Traceback (most recent call last):",
        "[coglet::setup]   File x",
        "[coglet::setup] ValueError: bad weights",
        f"{FAILED_LINE}ValueError: bad weights",
    ]


@pytest.mark.parametrize(
    ("busy", "error", "status"),
    [(False, None, "READY"), (True, None, "BUSY"), (False, "x", "UNHEALTHY"), (True, "x", "UNHEALTHY")],
)
def test_unhealthy_lies_over_busy_over_ready(busy: bool, error: str | None, status: str) -> None:
    health = make(HealthState.READY)
    shown = body(health, busy=busy, error=error)
    assert shown["status"] == status
    assert shown.get("user_healthcheck_error") == error
    assert health.state is HealthState.READY


@pytest.mark.parametrize("reached", [state for state in HealthState if state is not HealthState.READY])
def test_nothing_lies_over_the_other_states(reached: HealthState) -> None:
    shown = body(make(reached), busy=True, error="x")
    assert shown["status"] == reached.value
    assert "user_healthcheck_error" not in shown


@pytest.mark.covers("D39")
def test_D39_draining_stands_beside_the_status() -> None:
    shown = body(make(HealthState.READY), busy=True, draining=True)
    assert (shown["status"], shown["draining"]) == ("BUSY", True)
    assert "draining" not in body(make(HealthState.READY))


def test_the_cause_is_kept() -> None:
    health = make(HealthState.DEFUNCT)
    assert health.snapshot(busy=False, draining=False).cause == CAUSE


def test_the_setup_log_is_bounded_and_the_cause_still_there() -> None:
    health = Health(clock(), 40)
    health.spawned()
    health.log.user("stdout", "x" * 100 + "\n")
    health.setup_broke(CAUSE)
    logs = body(health)["setup"]["logs"]
    assert logs_truncated(40) in logs
    assert logs.endswith(FAILED_LINE + CAUSE)


def test_pieces_of_lines_are_joined_a_source_at_a_time() -> None:
    log = SetupLog(2**20)
    log.user("stdout", "a")
    log.user("stderr", "1")
    log.user("stdout", "b\nc")
    log.user("stderr", "2\n")
    log.runtime("cog_trio.worker", "told")
    log.close("end")
    assert log.text.splitlines() == [
        "[coglet::setup] ab",
        "[coglet::setup] 12",
        "[cog_trio.worker] told",
        "[coglet::setup] c",
        "end",
    ]


def test_a_line_without_end_is_not_kept_open_for_ever() -> None:
    log = SetupLog(2**20)
    for _ in range(3):
        log.user("stdout", "x" * MAX_OPEN_LINE)
    assert len(log.text) > 2 * MAX_OPEN_LINE
    assert sum(map(len, log._open.values())) <= MAX_OPEN_LINE


@pytest.mark.covers("worker:W7")
def test_W7_a_burst_of_lines_all_arrives_in_order() -> None:
    log = SetupLog(32 * 2**20)
    for number in range(20_000):
        log.user("stdout", f"line {number}\n")
    log.close(READY_LINE)
    assert log.text.splitlines() == [*(f"[coglet::setup] line {n}" for n in range(20_000)), READY_LINE]
