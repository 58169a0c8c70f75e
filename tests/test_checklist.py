"""Every row of the checklists is shown by a test (rows.py), and the numbers in them are those of the code."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from cog_trio.config.settings import Settings
from tests.rows import Coverage, named_rows

ROOT = Path(__file__).parent.parent

NUMBERS = {  # of the checklist and the decisions; tests that count take them from the code
    "orchestrator.health_checks.LIMIT": 10.0,
    "bridge.protocol.MAX_FRAME": 8 * 2**20,
    "bridge.protocol.MAX_INLINE": 6 * 2**20,
    "bridge.protocol.MAX_LOG_LINE": 4 * 2**20,
    "inputs.compiled_schema.MAX_SHOWN": 100,
    "state.event_log.LAG": 4 * 2**20,
    "state.event_log.MAX_FOLLOWERS": 1024,
    "state.event_log.PATIENCE": 10.0,
    "transport.http.api.sse.SILENCE": 15.0,
    "transport.http.api.bodies.MAX_DEPTH": 127,
    "service.webhook_sender.TRY_LIMIT": 30.0,
    "service.webhook_policy.FIRST_BACKOFF": 0.2,
    "service.webhook_policy.LARGEST_BACKOFF": 102.4,
    "worker.model.healthcheck.LIMIT": 5.0,
}
DEFAULTS = {
    "body_limit": 104_857_600,
    "cancel_grace": None,
    "max_concurrency": None,
    "predict_timeout": None,
    "queue": 0,
    "retain": 256,
    "retain_age": 3600.0,
    "retain_bytes": 64 * 2**20,
    "setup_timeout": None,
    "stream_grace": 0.0,
    "stream_history": 1024,
    "throttle_interval": 0.5,
    "upload_timeout": 25.0,
    "webhook_grace": 10.0,
}


@pytest.mark.timeout(180)
@pytest.mark.process  # which collects all tests, of which this run may be a part
def test_each_row_is_shown_by_a_test_and_each_test_names_its_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.rows", "http:W1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "http:W1     scenarios/test_predictions.py::" in done.stdout


def test_what_is_wrong_with_a_marker_and_what_a_row_lacks_is_told() -> None:
    coverage = Coverage()
    coverage.add("tests/x.py::test_W2_first", {"http:W1", "http:W52"})
    coverage.add("tests/x.py::test_second", {"http:W1"})
    assert coverage.tests["http:W1"] == ["tests/x.py::test_W2_first", "tests/x.py::test_second"]
    assert coverage.faults[:3] == [
        "tests/x.py::test_W2_first covers http:W52, which is not a row",
        "tests/x.py::test_W2_first has W2 in its name and not in a marker",
        "no test covers http:W2",
    ]


def test_a_row_in_a_name_is_looked_for_in_the_marker() -> None:
    assert named_rows("tests/x.py::test_W3_D18_what_it_does") == {"W3", "D18"}
    assert named_rows("tests/x.py::test_row_02_13_W4_more") == {"2", "13", "W4"}
    assert named_rows("tests/x.py::test_rows_of_a_table") == set()


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_those_of_the_checklist(name: str) -> None:
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(f"cog_trio.{module}"), constant) == NUMBERS[name]


def test_defaults_are_those_of_the_checklist() -> None:
    assert {name: getattr(Settings(), name) for name in DEFAULTS} == DEFAULTS
