"""The figures: what is counted, what a scrape shows, and that docs/reference/metrics.md lists it all."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cog_trio.bridge.protocol import Mode
from cog_trio.inputs.validation import InvalidInput, MalformedInput
from cog_trio.observe.prometheus import BUCKETS, FAILURES, FAMILIES, OTHER, REFUSALS, Metrics, observing
from cog_trio.state import prediction_errors, refusals
from cog_trio.state.health import HealthSnapshot, HealthState, SetupResult, SetupStatus
from cog_trio.state.service_events import (
    Callback,
    PredictionCreated,
    PredictionFinished,
    PredictionRefused,
    PredictionStarted,
    ServiceEvent,
    Statistics,
    WorkerEnded,
)
from cog_trio.state.status import TERMINAL, Status

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "reference" / "metrics.md"
AT: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
NOTHING: Final = Statistics(**dict.fromkeys((number.name for number in fields(Statistics)), 0))

READY: Final = HealthSnapshot("READY", None, {"coglet": "0.23.1", "cog_trio": "1", "python": "3.11"})


@dataclass
class Fake:
    """A service whose numbers tests set."""

    numbers: Statistics = NOTHING
    snapshot: HealthSnapshot = READY
    observers: list[Callback] = field(default_factory=list)

    def statistics(self) -> Statistics:
        return self.numbers

    def health(self) -> HealthSnapshot:
        return self.snapshot

    def observe(self, callback: Callback) -> Callable[[], None]:
        self.observers.append(callback)
        return lambda: self.observers.remove(callback)


async def shown(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Every sample of a scrape, as Prometheus reads it: by its name and the values of its labels, in their order."""
    text = (await metrics.scrape()).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def finished(status: Status, reason: str | None = None, ran: float | None = 0.2, mode: Mode = Mode.PREDICT) -> Any:
    return PredictionFinished(AT, "a", mode, status, None, reason, 1.0, ran)


async def told(*events: ServiceEvent) -> dict[tuple[str, ...], float]:
    metrics = Metrics(Fake())
    for event in events:
        metrics.hear(event)
    return await shown(metrics)


async def test_what_is_true_now_is_asked_at_the_scrape() -> None:
    service = Fake()
    metrics = Metrics(service)
    assert (await shown(metrics))["cog_slots",] == 0
    service.numbers = replace(NOTHING, slots=4, idle=1, running=3, queued=7, workers=2, respawns=5, retained=8)
    service.numbers = replace(service.numbers, retained_bytes=9, webhooks=10, webhooks_failed=11, webhooks_lost=12)
    service.numbers = replace(service.numbers, lines_over_limit=13, worker_lines_dropped=14, service_lines_dropped=15)
    now = await shown(metrics)
    assert {name: value for (name, *labels), value in now.items() if not labels and not name.endswith("_info")} == {
        "cog_slots": 4,
        "cog_slots_idle": 1,
        "cog_predictions_running": 3,
        "cog_queue_waiting": 7,
        "cog_workers_ready": 2,
        "cog_draining": 0,
        "cog_predictions_retained": 8,
        "cog_predictions_retained_bytes": 9,
        "cog_webhooks_pending": 10,
        "cog_workers_lost_total": 0,
        "cog_worker_restarts_total": 5,
    }
    assert now["cog_webhooks_failed_total", "completed"] == 11
    assert now["cog_webhooks_failed_total", "progress"] == 12
    assert now["cog_log_lines_dropped_total", "log_limit"] == 13
    assert now["cog_log_lines_dropped_total", "worker"] == 14
    assert now["cog_log_lines_dropped_total", "service_log"] == 15
    assert now["cog_build_info", "0.23.1", "3.11", "1"] == 1


@pytest.mark.parametrize("status", [*(state.value for state in HealthState), "BUSY"])
async def test_health_is_one_state_of_all(status: str) -> None:
    service = Fake()
    service.snapshot = replace(service.snapshot, status=status, draining=True)
    now = await shown(Metrics(service))
    assert [key[1] for key, value in now.items() if key[0] == "cog_health" and value] == [status]
    assert now["cog_draining",] == 1


async def test_ends_are_counted_by_mode_and_status() -> None:
    now = await told(
        PredictionCreated(AT, "a", Mode.PREDICT, False),
        finished(Status.SUCCEEDED),
        finished(Status.SUCCEEDED, mode=Mode.TRAIN),
        finished(Status.CANCELED, "PredictionCanceled"),
        finished(Status.FAILED, "PredictionFailed"),
    )
    assert now["cog_predictions_created_total", "predict"] == 1
    assert {key[1:]: value for key, value in now.items() if key[0] == "cog_predictions_total"} == {
        ("predict", "succeeded"): 1,
        ("predict", "canceled"): 1,
        ("predict", "failed"): 1,
        ("train", "succeeded"): 1,
        ("train", "canceled"): 0,
        ("train", "failed"): 0,
    }


@pytest.mark.parametrize(("name", "reason"), [*FAILURES.items(), ("Strange", OTHER)])
async def test_a_failure_has_its_reason(name: str, reason: str) -> None:
    now = await told(finished(Status.FAILED, name))
    assert [key[1:] for key, value in now.items() if key[0] == "cog_predictions_failed_total" and value] == [
        ("predict", reason)
    ]


@pytest.mark.parametrize(("name", "reason"), [*REFUSALS.items(), ("Strange", OTHER)])
async def test_a_refusal_has_its_reason(name: str, reason: str) -> None:
    now = await told(PredictionRefused(AT, "a", Mode.TRAIN, name, "text"))
    assert [key[1:] for key, value in now.items() if key[0] == "cog_predictions_refused_total" and value] == [
        ("train", reason)
    ]


def _below(base: type[Exception], module: Any) -> set[str]:
    found = {value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)}
    return {error.__name__ for error in found}


def test_every_error_of_ours_has_a_reason() -> None:
    refused = _below(refusals.Rejected, refusals) - {"Rejected"} | {InvalidInput.__name__, MalformedInput.__name__}
    assert set(REFUSALS) == refused
    cut = _below(prediction_errors.PredictionError, prediction_errors) - {"PredictionError", "PredictionCanceled"}
    assert cut <= set(FAILURES)
    assert set(FAILURES) - cut <= refused


async def test_times_fall_into_buckets() -> None:
    times = [0.0, 0.005, 0.0051, 1.5, 4000.0]
    now = await told(
        *(finished(Status.SUCCEEDED, ran=time) for time in times),
        finished(Status.CANCELED, ran=None),  # it never ran
        PredictionStarted(AT, "a", Mode.PREDICT, 3.0),
    )
    run = {
        key[1]: value for key, value in now.items() if key[0] == RUN + "_bucket" and key[2:] == ("predict", "succeeded")
    }
    assert run == {str(float(bound)): sum(time <= bound for time in times) for bound in BUCKETS} | {"+Inf": 5}
    assert now[RUN + "_count", "predict", "succeeded"] == 5
    assert now[RUN + "_sum", "predict", "succeeded"] == pytest.approx(sum(times))
    assert now[RUN + "_count", "predict", "canceled"] == 0
    assert now["cog_prediction_queue_seconds_sum", "predict"] == 3


RUN: Final = "cog_prediction_run_seconds"


async def test_workers_that_end_unasked_are_lost() -> None:
    now = await told(WorkerEnded(AT, 3, "Worker died: signal 9 (SIGKILL)"), WorkerEnded(AT, 0, None))
    assert now["cog_workers_lost_total",] == 1


@pytest.mark.parametrize(("status", "shows"), [(status, status is SetupStatus.SUCCEEDED) for status in SetupStatus])
async def test_setup_has_a_length_once_it_is_over_and_well(status: SetupStatus, shows: bool) -> None:
    service = Fake()
    began, ended = AT.isoformat(), AT.replace(second=2, microsecond=500_000).isoformat()
    setup = SetupResult(began, status) if status is SetupStatus.STARTING else SetupResult(began, status, ended)
    service.snapshot = replace(service.snapshot, setup=setup)
    now = await shown(Metrics(service))
    assert now.get(("cog_setup_seconds",)) == (2.5 if shows else None)


@pytest.mark.covers("D53")
async def test_no_text_of_a_client_is_a_label() -> None:
    """However many ids, errors and reasons there are, the series are the same."""
    none = set(await told())
    strange = 'x"\n{} \\'
    assert none == set(
        await told(
            PredictionCreated(AT, strange, Mode.PREDICT, True),
            PredictionStarted(AT, strange, Mode.PREDICT, 0.1),
            PredictionFinished(AT, strange, Mode.PREDICT, Status.FAILED, strange, strange, 1.0, 0.5),
            PredictionRefused(AT, strange, Mode.PREDICT, strange, strange),
        )
    )


async def test_two_services_have_figures_of_their_own() -> None:
    one, other = Metrics(Fake()), Metrics(Fake(replace(NOTHING, slots=2)))
    one.hear(finished(Status.SUCCEEDED))
    first, second = await shown(one), await shown(other)
    key = "cog_predictions_total", "predict", "succeeded"
    assert (first[key], second[key]) == (1, 0)
    assert (first["cog_slots",], second["cog_slots",]) == (0, 2)


async def test_it_listens_for_as_long_as_the_block_lasts() -> None:
    service = Fake()
    with observing(service) as metrics:
        (callback,) = service.observers
        callback(finished(Status.SUCCEEDED))
    assert not service.observers
    assert (await shown(metrics))["cog_predictions_total", "predict", "succeeded"] == 1


@pytest.mark.covers("D53")
async def test_every_series_is_there_before_anything_happens() -> None:
    now = await told()
    ends = {(mode.value, status.value) for mode in Mode for status in TERMINAL}
    assert {key[1:] for key in now if key[0] == "cog_predictions_total"} == ends
    assert {key[1:] for key in now if key[0] == RUN + "_count"} == ends


def test_the_reference_lists_what_there_is() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows] == [
        (family.name + ("_total" if family.kind == "counter" else ""), family.kind, family.labels)
        for family in FAMILIES
    ]


@pytest.mark.parametrize("values", [{*FAILURES.values(), OTHER}, {*REFUSALS.values(), OTHER}])
def test_the_reference_lists_the_values_of_labels(values: set[str]) -> None:
    assert values <= set(re.findall(r"`(\w+)`", PAGE.read_text()))


FIRST_SCRAPE: Final = """
import sys, threading
from dataclasses import fields
import trio
from cog_trio.observe.prometheus import Metrics
from cog_trio.state.health import HealthSnapshot
from cog_trio.state.service_events import Statistics

class Service:
    def statistics(self):
        return Statistics(**dict.fromkeys((number.name for number in fields(Statistics)), 0))
    def health(self):
        return HealthSnapshot(status="READY", setup=None, versions={})

class Finder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            print("imported on the loop:", name)

async def main():
    metrics = Metrics(Service())
    await trio.to_thread.run_sync(lambda: None)
    sys.meta_path.insert(0, Finder())
    assert b"cog_slots 0.0" in await metrics.scrape()

trio.run(main)
"""


@pytest.mark.process
def test_the_first_scrape_imports_nothing_on_the_event_loop() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_SCRAPE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
