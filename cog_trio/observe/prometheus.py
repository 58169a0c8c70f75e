"""The figures of a service for Prometheus.

What happens is counted from the first moment on, in plain numbers: ``hear`` is an observer of the service. The
library is loaded by the first ``scrape``, in a thread, and turns the numbers into text; nobody who does not scrape
pays for it. What is true at the moment of a scrape (slots, queue, health) is asked of the service then. Each service
has figures and a registry of its own.

``FAMILIES`` is all that is shown. Labels have values of ours alone, each from a fixed set: no text of a client or of a
model can add a series.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import trio

from cog_trio.bridge.protocol import Mode
from cog_trio.state import internal_errors
from cog_trio.state.health import HealthState, SetupStatus
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

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from cog_trio.state.health import HealthSnapshot

LIBRARY: Final = "prometheus_client.core"  # the module that ``collect`` needs; it loads all others
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)  # seconds
STATES: Final = (*(state.value for state in HealthState), "BUSY")
REFUSALS: Final = {
    "NotReady": "not_ready",
    "SetupFailed": "not_ready",
    "ShuttingDown": "not_ready",
    "NotOffered": "not_offered",
    "InvalidInput": "invalid_input",
    "MalformedInput": "invalid_input",
    "AlreadyRunning": "already_running",
    "AtCapacity": "at_capacity",
    "QueueTimedOut": "queue_timeout",
}
FAILURES: Final = {
    "PredictionFailed": "model",
    "WorkerDied": "worker_died",
    "PredictionTimedOut": "predict_timeout",
    "PredictionLost": "service",
    "ServiceEnded": "shutdown",
    "QueueTimedOut": "queue_timeout",
}
OTHER: Final = "other"  # in both


class MetricFamily(NamedTuple):
    """One metric."""

    name: str
    kind: str  # gauge, counter, histogram
    help: str
    labels: tuple[str, ...] = ()


FAMILIES: Final = (
    MetricFamily("cog_slots", "gauge", "Slots of the workers that are ready"),
    MetricFamily("cog_slots_idle", "gauge", "Slots that are free"),
    MetricFamily("cog_predictions_running", "gauge", "Predictions in flight that do not wait for a slot"),
    MetricFamily("cog_queue_waiting", "gauge", "Predictions that wait for a slot"),
    MetricFamily("cog_workers_ready", "gauge", "Workers that are ready"),
    MetricFamily("cog_health", "gauge", "1 for the state that health is in, 0 for all others", ("status",)),
    MetricFamily("cog_draining", "gauge", "1 while the service shuts down"),
    MetricFamily("cog_predictions_retained", "gauge", "Finished predictions that can still be read"),
    MetricFamily("cog_predictions_retained_bytes", "gauge", "What keeping them costs"),
    MetricFamily("cog_webhooks_pending", "gauge", "Predictions whose webhooks are not all delivered yet"),
    MetricFamily("cog_build_info", "gauge", "1; the labels say what runs", ("version", "cog", "python")),
    MetricFamily("cog_predictions_created", "counter", "Predictions that were created", ("mode",)),
    MetricFamily("cog_predictions", "counter", "Predictions that have ended, by how", ("mode", "status")),
    MetricFamily("cog_predictions_failed", "counter", "Those that failed, by whose doing it was", ("mode", "reason")),
    MetricFamily("cog_predictions_refused", "counter", "Predictions that were not created, by why", ("mode", "reason")),
    MetricFamily("cog_webhooks_failed", "counter", "Webhooks that were given up", ("event",)),
    MetricFamily("cog_log_lines_dropped", "counter", "Log lines that were dropped, by where", ("by",)),
    MetricFamily("cog_internal_errors", "counter", "Faults of the server that failed one thing each", ("where",)),
    MetricFamily("cog_workers_lost", "counter", "Workers that ended unasked"),
    MetricFamily("cog_worker_restarts", "counter", "Workers that took the place of one that was lost"),
    MetricFamily("cog_setup_seconds", "gauge", "From the start of the first worker to ready"),
    MetricFamily(
        "cog_prediction_run_seconds", "histogram", "From the start of a prediction to its end", ("mode", "status")
    ),
    MetricFamily(
        "cog_prediction_queue_seconds", "histogram", "From the creation of a prediction to its start", ("mode",)
    ),
)


class MetricsSource(Protocol):
    """What is asked of the service."""

    def statistics(self) -> Statistics: ...
    def health(self) -> HealthSnapshot: ...
    def observe(self, callback: Callback) -> Callable[[], None]: ...


class Histogram:
    """How often a time was in which bucket."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0  # seconds

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Bounds, and how many times were not above them."""
        pairs, total = [], 0
        for bound, count in zip((*map(str, map(float, BUCKETS)), "+Inf"), self.counts, strict=True):
            total += count
            pairs.append((bound, float(total)))
        return pairs


class Metrics:
    """The figures of one service; ``hear`` is what counts."""

    def __init__(self, service: MetricsSource) -> None:
        failures, refusals = {*FAILURES.values(), OTHER}, {*REFUSALS.values(), OTHER}
        self._service = service
        self._registry: CollectorRegistry | None = None
        # Every series is there from the start, as 0: an increase from nothing is none to Prometheus.
        self._created = Counter(dict.fromkeys(Mode, 0))
        self._ended = Counter({(mode, end): 0 for mode in Mode for end in TERMINAL})
        self._failed = Counter({(mode, reason): 0 for mode in Mode for reason in sorted(failures)})
        self._refused = Counter({(mode, reason): 0 for mode in Mode for reason in sorted(refusals)})
        self._run = {(mode, end): Histogram() for mode in Mode for end in TERMINAL}
        self._queue = {(mode,): Histogram() for mode in Mode}
        self._lost = 0

    def hear(self, event: ServiceEvent) -> None:
        """Count what has happened."""
        match event:
            case PredictionCreated():
                self._created[event.mode] += 1
            case PredictionStarted():
                self._queue[event.mode,].add(event.waited)
            case PredictionFinished():
                key = event.mode, event.status
                self._ended[key] += 1
                if event.status is Status.FAILED:
                    self._failed[event.mode, FAILURES.get(event.reason or "", OTHER)] += 1
                if event.ran is not None:
                    self._run[key].add(event.ran)
            case PredictionRefused():
                self._refused[event.mode, REFUSALS.get(event.reason, OTHER)] += 1
            case WorkerEnded():
                self._lost += event.cause is not None

    async def scrape(self) -> bytes:
        """All figures, as text for Prometheus. The first call loads the library, in a thread.

        Cancellation: nothing is lost.
        """
        if not hasattr(sys.modules.get(LIBRARY), "__all__"):  # which its last line sets
            await trio.to_thread.run_sync(import_module, LIBRARY)
        from prometheus_client import CollectorRegistry, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for: one family after the other."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds: Mapping[str, Any] = {
            "gauge": GaugeMetricFamily,
            "counter": CounterMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        figures = self._figures()
        for family in FAMILIES:
            metric = kinds[family.kind](family.name, family.help, labels=family.labels)
            for values, value in figures[family.name]:
                labels = [label.value if isinstance(label, Enum) else label for label in values]
                if isinstance(value, Histogram):
                    metric.add_metric(labels, value.cumulated(), value.sum)
                else:
                    metric.add_metric(labels, value)
            yield metric

    def _figures(self) -> Mapping[str, Iterable[tuple[tuple[str, ...], float | Histogram]]]:
        """The series of each family: values of its labels, and the value."""
        now, health = self._service.statistics(), self._service.health()
        versions = health.versions
        build = versions.get("cog_trio", ""), versions.get("coglet", ""), versions.get("python", "")
        return {
            "cog_slots": [((), now.slots)],
            "cog_slots_idle": [((), now.idle)],
            "cog_predictions_running": [((), now.running)],
            "cog_queue_waiting": [((), now.queued)],
            "cog_workers_ready": [((), now.workers)],
            "cog_health": [((status,), float(status == health.status)) for status in STATES],
            "cog_draining": [((), float(health.draining))],
            "cog_predictions_retained": [((), now.retained)],
            "cog_predictions_retained_bytes": [((), now.retained_bytes)],
            "cog_webhooks_pending": [((), now.webhooks)],
            "cog_build_info": [(build, 1)],
            "cog_predictions_created": [((mode,), count) for mode, count in self._created.items()],
            "cog_predictions": self._ended.items(),
            "cog_predictions_failed": self._failed.items(),
            "cog_predictions_refused": self._refused.items(),
            "cog_webhooks_failed": [(("completed",), now.webhooks_failed), (("progress",), now.webhooks_lost)],
            "cog_log_lines_dropped": [
                (("log_limit",), now.lines_over_limit),
                (("service_log",), now.service_lines_dropped),
                (("worker",), now.worker_lines_dropped),
            ],
            "cog_internal_errors": [((where.value,), count) for where, count in internal_errors.counts.items()],
            "cog_workers_lost": [((), self._lost)],
            "cog_worker_restarts": [((), now.respawns)],
            "cog_setup_seconds": [((), seconds) for seconds in _setup(health)],
            "cog_prediction_run_seconds": self._run.items(),
            "cog_prediction_queue_seconds": self._queue.items(),
        }


@contextmanager
def observing(service: MetricsSource) -> Iterator[Metrics]:
    """The figures of a service from here on, kept while the block lasts."""
    metrics = Metrics(service)
    stop = service.observe(metrics.hear)
    try:
        yield metrics
    finally:
        stop()


def _setup(health: HealthSnapshot) -> Iterator[float]:
    """How long setup took, if it is over and well."""
    setup = health.setup
    if setup is not None and setup.status is SetupStatus.SUCCEEDED and isinstance(setup.completed_at, str):
        began, ended = map(datetime.fromisoformat, (setup.started_at, setup.completed_at))
        yield (ended - began).total_seconds()
