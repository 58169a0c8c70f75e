"""The judge: every run that was accepted, what was seen of it, and whether that may be.

Whatever shows the end of a run (a reply, a poll, an event, a webhook) comes to ``ended``. The first one is judged by
the plan of the run and by what was done to it; all later ones must say exactly the same.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from scenarios.faults.plans import NAME, Plan

ENDS: Final = ("succeeded", "failed", "canceled")
LOST: Final = (  # causes that only a fatal act may bring
    "Worker died: ",
    "Worker was shut down",
    "Worker killed: ",
    "Server is shutting down",
    "The worker is gone, predictions can't run: ",
)


class Violation(AssertionError):
    """Something is that must never be."""


@dataclass
class Run:
    """One prediction that some client asked for."""

    plan: Plan
    id: str
    webhook: bool = False
    accepted: bool = False  # the server said so
    unsure: bool = False  # whether the server took it, nobody was told
    stopped: bool = False  # somebody cancelled it or left it, or may have
    end: dict[str, Any] | None = None  # its terminal state, from the first that showed it


@dataclass
class Ledger:
    """What happened in one life of a server."""

    runs: dict[str, Run] = field(default_factory=dict)
    did: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    fatal: bool = False  # the worker was killed, or the server was told to end

    def ended(self, run: Run, seen: dict[str, Any]) -> None:
        """Somebody has shown the end of this run."""
        shown = {key: value for key, value in seen.items() if key != "input"}
        if run.end is None:
            self._judge(run, shown)
            run.end = shown
            self.statuses[shown["status"]] += 1
        elif run.end != shown:
            raise Violation(f"{run.id} ended as {_short(run.end)}, now it is {_short(shown)}")

    def looks_right(self, run: Run, seen: dict[str, Any]) -> None:
        """Nothing of another run is in it."""
        strangers = set(NAME.findall(json.dumps(seen))) - {run.plan.name}
        if strangers or seen["id"] != run.id:
            raise Violation(f"{run.id} shows {strangers or seen['id']}: {_short(seen)}")

    def _judge(self, run: Run, seen: dict[str, Any]) -> None:
        self.looks_right(run, seen)
        plan, status, output = run.plan, seen["status"], seen.get("output") or []
        error = seen.get("error")
        if status == "succeeded":
            right = plan.error is None and output == plan.output and seen["logs"] == plan.logs and error is None
        elif status == "failed" and error == plan.error:
            right = output == plan.output and seen["logs"].startswith(plan.logs[: -len(f"{plan.name} ends")])
        elif status == "failed":
            right = self.fatal and error is not None and error.startswith(LOST) and _begins(plan, output)
        else:
            right = status == "canceled" and (run.stopped or self.fatal) and _begins(plan, output)
        if not right:
            raise Violation(f"{run} ended as {_short(seen)}")


def _begins(plan: Plan, output: list[str]) -> bool:
    return output == plan.output[: len(output)]


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) < 2_000 else f"{text[:1_500]} ... {text[-400:]}"
