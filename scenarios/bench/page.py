"""The page of results, from their JSON; pure."""

from __future__ import annotations

import statistics
from typing import Any

from scenarios.bench.rows import ROWS, Row

Results = dict[str, Any]  # as in docs/reference/performance.json


def figure(row: Row, values: dict[str, list[float]]) -> float:
    """Return what the bounds are about: the median over rounds of the ratio, or of our figure."""
    ours = values["cog-trio"]
    if row.alone:
        return statistics.median(ours)
    return statistics.median(a / b for a, b in zip(ours, values["coglet"], strict=True))


def verdict(row: Row, value: float) -> str:
    if row.holds(value, row.goal):
        return "goal"
    return "must" if row.holds(value, row.must) else "**missed**"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def spread(values: list[float]) -> str:
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})" if values else "none"


def page(results: Results) -> str:
    """Return the whole page; rows that were not measured are left out."""
    kind = "a quick run (`--quick`)" if results["quick"] else "a full run"
    lines = [
        "# Performance",
        "",
        f"cog-trio against coglet of cog {results['reference']}, measured on {results['date']} by {kind}; rounds:"
        f" {results['rounds']}.",
        f"{results['cpus']} processors ({results['machine']}), Python {results['python']},"
        f" load average {results['load']} at the start.",
        "Both servers are up at once and are asked in turn. A figure is the median of the rounds, with least and most.",
        "A ratio is ours by coglet's, the median of the ratios of the rounds; the rows that we lose are here too.",
        "With a load well above 0 at the start neither figures nor ratios are to be relied on.",
        "",
        "To repeat it: `make bench`.",
        "",
        "![How many times better than coglet each row is](performance.svg)",
        "",
        "| row | unit | cog-trio | coglet | ratio or figure | must | goal | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        if row.name not in results["rows"]:
            continue
        values = results["rows"][row.name]
        value, sign = figure(row, values), "≥" if row.higher else "≤"
        theirs = spread(values.get("coglet", []))
        lines.append(
            f"| {row.name} | {row.unit} | {spread(values['cog-trio'])} | {theirs} | {number(value)} |"
            f" {sign} {number(row.must)} | {sign} {number(row.goal)} | {verdict(row, value)} |"
        )
    return "\n".join(lines) + "\n"
