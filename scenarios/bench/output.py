"""What one prediction gives out bit by bit: yields, events, printed lines."""

from __future__ import annotations

import re
import statistics
import time

from scenarios.bench.core import Plan, Side, Values, both, in_turn, request
from scenarios.bench.sequential import INFO

COUNT = 20_000
EVENTS = "text/event-stream"


def rate(side: Side, data: bytes, wanted: bytes, count: int) -> float:
    """Return items a second; raises RuntimeError if one is lost."""
    taken, body = side.ask(data)
    if (found := body.count(wanted)) != count:
        raise RuntimeError(f"{side.name}: {found} items instead of {count}")
    return count / taken


def first_event(side: Side) -> float:
    """Return the milliseconds from the first yield until its event is here."""
    side.connection.socket.sendall(request({"count": 1, "pause": 0.02}, EVENTS))
    heard = b""
    while not (found := re.search(rb'"chunk":\s*"([\d.]+)"', heard)):
        heard += side.connection.socket.recv(2**16)
    late = (time.time() - float(found[1])) * 1e3
    while not heard.endswith(b"0\r\n\r\n"):
        heard += side.connection.socket.recv(2**16)
    return late


def yields(plan: Plan) -> dict[str, Values]:
    asked, events = request({"count": COUNT}), request({"count": COUNT}, EVENTS)
    with both(plan, "yields.py:Runner") as sides:
        ours = sides[:1]
        return {
            "yields as JSON": in_turn(plan, sides, lambda side: rate(side, asked, b'"token"', COUNT)),
            "events": in_turn(plan, ours, lambda side: rate(side, events, b"event: output\n", COUNT)),
            "first event": in_turn(
                plan, ours, lambda side: statistics.median(first_event(side) for _ in range(plan.count(20)))
            ),
        }


def lines(plan: Plan) -> dict[str, Values]:
    asked, rows = request({"lines": COUNT}), {}
    for name, environ in {"printed lines": {}, "printed lines at info": INFO}.items():
        with both(plan, "prints.py:Runner", **environ) as sides:
            rows[name] = in_turn(plan, sides, lambda side: rate(side, asked, b"this is line ", COUNT))
    return rows
