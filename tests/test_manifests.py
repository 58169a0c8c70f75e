"""The manifests of docs/examples/deploy: valid against the schemas of who reads them, and true to what the server does.

Kubernetes' own kinds are checked by kubernetes-validate, strictly; Knative, KEDA and Compose by the schemas in
tests/schemas, which hold the fields that their specifications name for what is used here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import fastjsonschema
import pytest
import yaml

from cog_trio.config import settings
from cog_trio.observe.prometheus import FAMILIES
from cog_trio.orchestrator.orchestrator import FAREWELL

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / "docs" / "examples" / "deploy"
FILES: Final = ("compose", "kubernetes", "hpa", "keda", "knative")
KUBERNETES: Final = "1.31"
DEFAULTS: Final = settings.Settings()
LEAST: Final = DEFAULTS.drain_grace + DEFAULTS.webhook_grace + FAREWELL[1]  # seconds that an end may take

Document = dict[str, Any]


def _load(name: str) -> list[Document]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def _kind(kind: str) -> Document:
    (found,) = (document for name in FILES for document in _load(name) if document.get("kind") == kind)
    return found


def _core(document: Document) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def _by(name: str) -> Callable[[Document], Any]:
    checked: Callable[[Document], Any] = fastjsonschema.compile(
        json.loads((ROOT / "tests" / "schemas" / f"{name}.json").read_text())
    )
    return checked


def _knative(document: Document) -> None:
    """Its own fields, then the pod that it becomes: the name, and the ports of probes, are Knative's to fill in."""
    _by("knative")(document)
    spec = copy.deepcopy(document["spec"]["template"]["spec"])
    for field in ("containerConcurrency", "timeoutSeconds"):
        spec.pop(field, None)
    (container,) = spec["containers"]
    container.setdefault("name", "user-container")
    for probe in ("readinessProbe", "livenessProbe"):
        container.get(probe, {}).get("httpGet", {}).setdefault("port", 5000)
    _core({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec})


CHECKS: Final[dict[str, Callable[[Document], Any]]] = {
    "Service": _core,
    "Deployment": _core,
    "PodDisruptionBudget": _core,
    "HorizontalPodAutoscaler": _core,
    "serving.knative.dev/v1": _knative,
    "keda.sh/v1alpha1": _by("keda"),
    "": _by("compose"),
}


def _check(document: Document) -> None:
    version = str(document.get("apiVersion", ""))
    (CHECKS.get(version) or CHECKS[document.get("kind", "")])(document)


@pytest.mark.parametrize("name", FILES)
def test_manifest_is_valid(name: str) -> None:
    for document in _load(name):
        _check(document)


POD: Final = "spec.template.spec"
BOX: Final = f"{POD}.containers.0"


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("kubernetes", f"{BOX}.ports.0.containerPort", "5000"),
        ("kubernetes", f"{BOX}.livenessprobe", {}),
        ("kubernetes", f"{BOX}.env.0.value", 8),
        ("kubernetes", f"{POD}.terminationGracePeriodSeconds", "65"),
        ("kubernetes", "spec.selector", None),
        ("hpa", "spec.metrics.0.pods.target", None),
        ("hpa", "spec.maxReplicas", "10"),
        ("keda", "spec.scaleTargetRef.name", None),
        ("keda", "spec.triggers.0.metadata.threshold", 0.8),
        ("keda", "spec.triggers.0.metadata.query", None),
        ("keda", "spec.minReplicas", 1),
        ("knative", f"{POD}.containerConcurrency", "1"),
        ("knative", f"{BOX}.ports.0.name", "http"),
        ("knative", f"{BOX}.lifecycle", {"preStop": {"exec": {"command": ["sleep", "5"]}}}),
        ("knative", f"{BOX}.readinessProbes", {}),
        ("knative", "spec.template.metadata.annotations.autoscaling\0knative\0dev/min-scale", 0),
        ("compose", "services.model.stop_grace_period", 60),
        ("compose", "services.model.readonly", True),
        ("compose", "services.model.build", None),
        ("compose", "service", {}),
    ],
)
def test_what_is_wrong_is_found(name: str, place: str, value: Any) -> None:
    """The checks above can fail: one change each, a wrong type, an unknown field or a missing one."""
    document = _load(name)[0]
    *path, last = (part.replace("\0", ".") for part in place.split("."))
    at: Any = document
    for part in path:
        at = at[int(part)] if isinstance(at, list) else at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    with pytest.raises(Exception, match=r"."):
        _check(document)


def _seconds(text: str) -> int:
    return sum(int(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def test_there_is_time_for_the_end() -> None:
    """Whoever stops the container waits longer than the drain, the last webhooks and the end of the worker."""
    pod = _kind("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (_, pause) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > LEAST + int(pause)
    assert _seconds(_load("compose")[0]["services"]["model"]["stop_grace_period"]) > LEAST
    revision = _load("knative")[0]["spec"]["template"]["spec"]
    drain = next(int(entry["value"]) for entry in revision["containers"][0]["env"] if "DRAIN" in entry["name"])
    assert revision["timeoutSeconds"] > drain + LEAST - DEFAULTS.drain_grace


def test_addresses_variables_and_folders_are_the_servers() -> None:
    known = {option.variable for option in settings.OPTIONS}
    containers = [_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]]
    containers += [_load("knative")[0]["spec"]["template"]["spec"]["containers"][0]]
    for container in containers:
        assert {entry["name"] for entry in container["env"]} <= known
        assert [port["containerPort"] for port in container["ports"]] == [settings.CONTAINER["port"]]
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert str(Path(settings.READY_FILE).parent) in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert set(_load("compose")[0]["services"]["model"]["environment"]) <= known


def test_knative_sends_as_many_requests_as_there_are_slots() -> None:
    revision = _load("knative")[0]["spec"]["template"]["spec"]
    slots = next(entry["value"] for entry in revision["containers"][0]["env"] if entry["name"] == "COG_MAX_CONCURRENCY")
    assert revision["containerConcurrency"] == int(slots)


@pytest.mark.parametrize("name", ["hpa", "keda"])
def test_metrics_that_are_scaled_on_exist(name: str) -> None:
    named = set(re.findall(r"cog_\w+", (FOLDER / f"{name}.yaml").read_text()))
    assert {"cog_predictions_running", "cog_queue_waiting"} <= named <= {family.name for family in FAMILIES}


NAMES: Final = {
    name
    for family in FAMILIES
    for name in {
        "counter": [f"{family.name}_total"],
        "gauge": [family.name],
        "histogram": [f"{family.name}_{end}" for end in ("bucket", "sum", "count")],
    }[family.kind]
}
LABELS: Final = {label for family in FAMILIES for label in family.labels} | {"instance", "le"}


def _check_expression(text: str) -> None:
    """It speaks of metrics and labels that there are, and its brackets match."""
    assert set(re.findall(r"\bcog_\w+", text)) <= NAMES, text
    for labels in re.findall(r"{([^}]*)}", text) + re.findall(r"by \(([^)]*)\)", text):
        assert set(re.findall(r"(\w+)(?==|!|,|$)", re.sub(r'"[^"]*"', "", labels))) <= LABELS, text
    for opened, closed in ("()", "[]", "{}"):
        assert text.count(opened) == text.count(closed), text


def test_alert_rules_speak_of_metrics_that_there_are() -> None:
    (document,) = _load("alerts")
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 8
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
        _check_expression(rule["expr"])


def test_the_dashboard_speaks_of_metrics_that_there_are() -> None:
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) == 8
    for target in targets:
        _check_expression(target["expr"])
    shown = {name for target in targets for name in re.findall(r"\bcog_\w+", target["expr"])}
    assert {"cog_slots", "cog_queue_waiting", "cog_predictions_total", "cog_health"} <= shown
