"""A trivial prediction, one after the other on one connection; and with many connections on an async model."""

from __future__ import annotations

import statistics

from scenarios.bench.core import Plan, Side, Values, both, in_turn, request, throughput

INFO = {"COG_LOG_LEVEL": "info", "LOG_FORMAT": "json"}


def one_by_one(plan: Plan) -> dict[str, Values]:
    data = request({"text": "hello"})
    tails: Values = {name: [] for name in plan.pythons}

    def median(side: Side) -> float:
        times = [side.ask(data)[0] * 1e3 for _ in range(plan.count(500))]
        tails[side.name].append(statistics.quantiles(times, n=100)[98])
        return statistics.median(times)

    with both(plan, "../bench/model.py:Runner") as sides:
        medians = in_turn(plan, sides, median)
        refused = {side.name: [float(side.refused)] for side in sides}
    kept = {name: values[1:] for name, values in tails.items()}  # without the round that warms up
    with both(plan, "../bench/model.py:Runner", **INFO) as sides:
        return {
            "sequential p50": medians,
            "sequential p99": kept,
            "sequential refused": refused,
            "sequential p50 at info": in_turn(plan, sides, median),
        }


def many(plan: Plan) -> dict[str, Values]:
    quick, slow = request({"pause": 0}), request({"pause": 0.01})
    with both(plan, "bench_async.py:Runner", COG_MAX_CONCURRENCY="64") as sides:
        return {
            "async, 1 connection": in_turn(plan, sides, lambda side: throughput(side, quick, 1, plan.count(500))),
            "async, 16 connections": in_turn(plan, sides, lambda side: throughput(side, quick, 16, plan.count(2000))),
            "64 clients of 10 ms": in_turn(plan, sides, lambda side: throughput(side, slow, 64, plan.count(2000))),
        }
