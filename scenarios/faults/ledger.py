"""The judge: every run that was accepted, what was seen of it, and whether that may be.

Whatever shows the end of a run (a reply, a poll, an event, a webhook) comes to ``ended``. The first one is judged by
the plan of the run and by what was done to it; all later ones must say exactly the same.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from scenarios.faults.plans import NAME, Plan

ENDS: Final = ("succeeded", "failed", "canceled")
LOST: Final = (  # causes that only a fatal act may bring
    "Worker died: ",
    "Worker was shut down",
    "Worker killed: ",
    "Server is shutting down",
    "The worker is gone, predictions can't run: ",
    "the prediction stopped before its output files were taken",
)
RETAIN: Final = 100  # finished runs that the server keeps
RETAIN_BYTES: Final = 8 * 2**20
FULL: Final = "[Errno 27] File too large"  # how a disk shows that is full by a limit of the process
TIMED_OUT: Final = "Prediction timed out after "


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
    disk_full: bool = False  # at some moment of its life
    asked: float = field(default_factory=trio.current_time)
    seen_ended: float = math.inf  # when somebody was first shown its end
    end: dict[str, Any] | None = None  # its terminal state, from the first that showed it


@dataclass
class Ledger:
    """What happened in one life of a server."""

    runs: dict[str, Run] = field(default_factory=dict)
    did: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    fatal: bool = False  # the worker was killed, or the server was told to end
    limit: float | None = None  # seconds of --predict-timeout

    def ended(self, run: Run, seen: dict[str, Any]) -> None:
        """Somebody has shown the end of this run."""
        shown = {key: value for key, value in seen.items() if key != "input"}
        if run.end is None:
            self._judge(run, shown)
            run.end, run.seen_ended = shown, trio.current_time()
            self.statuses[shown["status"]] += 1
        elif run.end != shown:
            raise Violation(f"{run.id} ended as {_short(run.end)}, now it is {_short(shown)}")

    def looks_right(self, run: Run, seen: dict[str, Any]) -> None:
        """Nothing of another run is in it."""
        strangers = set(NAME.findall(json.dumps(seen))) - {run.plan.name}
        if strangers or seen["id"] != run.id:
            raise Violation(f"{run.id} shows {strangers or seen['id']}: {_short(seen)}")

    def may_be_forgotten(self, run: Run) -> bool:
        """Whether those that may have ended since it was asked for can have taken the room of it."""
        since = [other.plan.weight for other in self.runs.values() if other.seen_ended >= run.asked]
        return len(since) > RETAIN or sum(since) > RETAIN_BYTES

    @property
    def endless(self) -> list[Run]:
        """Accepted, and nobody has seen the end."""
        return [run for run in self.runs.values() if run.accepted and run.end is None]

    def _judge(self, run: Run, seen: dict[str, Any]) -> None:
        self.looks_right(run, seen)
        plan, status, output = run.plan, seen["status"], seen.get("output") or []
        error = seen.get("error") or ""
        if status == "succeeded":
            right = plan.error is None and plan.around is None and not error
            right = right and plan.is_output(output) and seen["logs"] == plan.logs
            right = right and (self.limit is None or plan.steps > 0 or plan.seconds < self.limit)
        elif status == "failed" and error == plan.error:
            right = plan.is_output(output) and seen["logs"].startswith(plan.logs[: -len(f"{plan.name} ends")])
        elif status == "failed" and plan.around is not None and error.startswith(plan.around):
            right = plan.is_output(output, failed=True)
        elif status == "failed" and FULL in error:
            right = run.disk_full and plan.is_output(output, failed=True)
        elif status == "failed" and error.startswith(TIMED_OUT):
            right = self.limit is not None and plan.is_output(output, begun=True)
        elif status == "failed":
            right = self.fatal and error.startswith(LOST) and plan.is_output(output, failed=True)
        else:
            right = status == "canceled" and (run.stopped or self.fatal) and plan.is_output(output, failed=True)
        if not right:
            raise Violation(f"{run} ended as {_short(seen)}")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) < 2_000 else f"{text[:1_500]} ... {text[-400:]}"
