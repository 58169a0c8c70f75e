"""Printed lines a second, from the request to the reply that carries them all, against coglet.

    .venv/bin/python -m scenarios.bench.logs [--coglet PYTHON] [--rounds N] [--lines N]

A model prints; the reply must hold every line, in order: a lost one ends the run. Both servers are up at the same
time and are asked in turn; PYTHON (or COGLET_PYTHON) as in ``sequential``. Above 1.0 we are faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack

from scenarios.bench.sequential import HEADERS, Side, started


def ask(side: Side, body: bytes) -> tuple[float, bytes]:
    """One prediction: the seconds it took, and the reply. Coglet may refuse at first: its slot comes back late."""
    for _ in range(100):
        began = time.perf_counter()
        side.connection.request("POST", "/predictions", body, HEADERS)
        reply = side.connection.getresponse()
        data = reply.read()
        taken = time.perf_counter() - began
        if reply.status == 200:
            return taken, data
        side.refused += 1
        time.sleep(0.01)
    raise SystemExit(f"{side.name}: {reply.status} {data[:300]!r}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="printed lines a second, ours against coglet")
    parser.add_argument("--coglet", default=os.environ.get("COGLET_PYTHON"), help="python with cog and coglet")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--lines", type=int, default=20_000, help="in a prediction")
    chosen = parser.parse_args()
    body = json.dumps({"input": {"lines": chosen.lines}}).encode()
    wanted = "".join(f"this is line {number}, as long as many are\n" for number in range(chosen.lines))
    with ExitStack() as stack:
        start = {"model": "../models/prints.py:Runner"}
        sides = [stack.enter_context(started("cog-trio", ["-m", "cog_trio.server.http"], sys.executable, **start))]
        if chosen.coglet:
            sides.append(stack.enter_context(started("coglet", ["-m", "cog.server.http"], chosen.coglet, **start)))
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        for number in range(chosen.rounds + 1):  # the first one warms up
            for side in sides if number % 2 else reversed(sides):
                taken, data = ask(side, body)
                logs = json.loads(data)["logs"]
                if logs != wanted:
                    raise SystemExit(f"{side.name}: {logs.count(chr(10))} lines instead of {chosen.lines}")
                if number:
                    rates[side.name].append(chosen.lines / taken)
        for name, measured in rates.items():
            print(
                f"{name:9} median {statistics.median(measured):,.0f} lines/s, from {min(measured):,.0f} to "
                f"{max(measured):,.0f}, {len(measured)} x {chosen.lines} lines, none lost"
            )
        if len(sides) == 2:
            ours, theirs = rates.values()
            print(f"ratio {statistics.median(ours) / statistics.median(theirs):.2f}")
        else:
            print("no coglet to compare with: give --coglet PYTHON or COGLET_PYTHON")


if __name__ == "__main__":
    main()
