"""Yields a second through one slot, as JSON and as server-sent events, and how soon an event is here after its yield.

    .venv/bin/python -m scenarios.bench.stream [--coglet PYTHON] [--rounds N] [--count N]

From the request to the last byte of the reply; all items must be there. Both servers are up at the same time and are
asked in turn; PYTHON (or COGLET_PYTHON) as in ``sequential``. The ratio is to coglet's JSON figure: it streams only
models with a schema that its build tool made.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack

from scenarios.bench.sequential import HEADERS, Side, started

STREAM = {**HEADERS, "accept": "text/event-stream"}


def ask(side: Side, headers: dict[str, str], **input: float) -> http.client.HTTPResponse:
    """A request, until it is accepted: coglet's slot comes back late."""
    for _ in range(100):
        side.connection.request("POST", "/predictions", json.dumps({"input": input}).encode(), headers)
        reply = side.connection.getresponse()
        if reply.status == 200:
            return reply
        reply.read()
        time.sleep(0.01)
    raise SystemExit(f"{side.name}: {reply.status}")


def rate(side: Side, count: int, *, events: bool) -> float:
    """Items a second of one run."""
    began = time.perf_counter()
    data = ask(side, STREAM if events else HEADERS, count=count).read()
    taken = time.perf_counter() - began
    found = data.count(b"event: output\n") if events else len(json.loads(data)["output"])
    if found != count or b"event: error" in data:
        raise SystemExit(f"{side.name}: {found} items instead of {count}")
    return count / taken


def delays(side: Side, count: int) -> list[float]:
    """Milliseconds from each yield to the arrival of its event."""
    reply, found = ask(side, STREAM, count=count, pause=0.02), []
    while line := reply.readline():
        if line.startswith(b'data: {"chunk":'):
            found.append((time.time() - float(json.loads(line[6:])["chunk"])) * 1000)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="yields a second, ours against coglet")
    parser.add_argument("--coglet", default=os.environ.get("COGLET_PYTHON"), help="python with cog and coglet")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=20_000, help="items of a run")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        model = "../models/yields.py:Runner"
        ours = stack.enter_context(started("cog-trio", ["-m", "cog_trio.server.http"], sys.executable, model=model))
        kinds = [("ours, JSON", ours, False), ("ours, events", ours, True)]
        if chosen.coglet:
            theirs = stack.enter_context(started("coglet", ["-m", "cog.server.http"], chosen.coglet, model=model))
            kinds.append(("coglet, JSON", theirs, False))
        rates: dict[str, list[float]] = {name: [] for name, _, _ in kinds}
        for number in range(chosen.rounds + 1):  # the first one warms up
            for name, side, events in kinds if number % 2 else reversed(kinds):
                measured = rate(side, chosen.count, events=events)
                if number:
                    rates[name].append(measured)
        for name, found in rates.items():
            print(f"{name:13} median {statistics.median(found):9,.0f}/s, from {min(found):9,.0f} to {max(found):9,.0f}")
        if chosen.coglet:
            base = statistics.median(rates["coglet, JSON"])
            ratios = [f"{name} {statistics.median(found) / base:.1f}" for name, found in rates.items()]
            print(f"ratios to coglet's JSON: {'; '.join(ratios[:2])}")
        late = delays(ours, 100)
        print(
            f"from yield to event: first {late[0]:.2f} ms, median {statistics.median(late):.2f}, most {max(late):.2f}"
        )


if __name__ == "__main__":
    main()
