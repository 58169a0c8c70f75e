"""Large payloads, the time to READY, and memory."""

from __future__ import annotations

import re
from pathlib import Path

from scenarios.bench.core import Plan, Side, Values, both, in_turn, request

SIZE = 32 * 2**20


def memory(side: Side) -> float:
    """Return the MiB (PSS) of the server's process and all its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended in the meantime
    family = {side.process.pid}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in family]
    return sum(int(found[1]) for text in texts if (found := re.search(r"^Pss:\s+(\d+)", text, re.M))) / 1024


def payloads(plan: Plan) -> dict[str, Values]:
    asked = {
        "32 MiB in": request({"text": "0123456789abcdef" * (SIZE // 16)}),
        "32 MiB out": request({"times": SIZE}),
        "32 MiB file": request({"file": SIZE}),
    }
    rows = {}
    with both(plan, "payload.py:Runner") as sides:
        for name, data in asked.items():
            rows[name] = in_turn(plan, sides, lambda side, data=data: SIZE / side.ask(data)[0] / 1e6)  # type: ignore[misc]
        rows["memory after big payloads"] = {side.name: [memory(side)] for side in sides}
    return rows


def start(plan: Plan) -> dict[str, Values]:
    rows: dict[str, Values] = {name: {side: [] for side in plan.pythons} for name in ("exec to READY", "idle memory")}
    for number in range(plan.rounds + 1):
        with both(plan, "../bench/model.py:Runner") as sides:
            for side in sides if number else ():  # the first start warms the page cache and the bytecode
                rows["exec to READY"][side.name].append(side.ready)
                rows["idle memory"][side.name].append(memory(side))
    return rows
