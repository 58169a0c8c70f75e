"""The rows: what is measured, in which unit, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Row:
    """A figure. Ratios are ours by the reference's; with ``alone`` the reference has none and our figure counts."""

    name: str
    unit: str
    must: float
    goal: float
    higher: bool  # whether more is better
    alone: bool = False

    def holds(self, figure: float, bound: float) -> bool:
        return figure >= bound if self.higher else figure <= bound


ROWS: Final = (
    Row("sequential p50", "ms", 0.55, 0.40, False),
    Row("sequential p99", "ms", 0.8, 0.8, False),
    Row("sequential refused", "requests", 0, 0, False, alone=True),
    Row("sequential p50 at info", "ms", 1.0, 1.0, False),
    Row("async, 1 connection", "1/s", 2.8, 3.5, True),
    Row("async, 16 connections", "1/s", 4.0, 5.0, True),
    Row("64 clients of 10 ms", "1/s", 2.5, 2.8, True),
    Row("yields as JSON", "1/s", 15, 25, True),
    Row("events", "1/s", 200_000, 300_000, True, alone=True),
    Row("first event", "ms", 2, 2, False, alone=True),
    Row("printed lines", "1/s", 1.1, 1.4, True),
    Row("printed lines at info", "1/s", 1.0, 1.0, True),
    Row("32 MiB in", "MB/s", 3, 3.5, True),
    Row("32 MiB out", "MB/s", 5, 7, True),
    Row("32 MiB file", "MB/s", 4, 5, True),
    Row("exec to READY", "s", 0.95, 0.85, False),
    Row("idle memory", "MiB", 0.75, 0.75, False),
    Row("memory after big payloads", "MiB", 1.1, 1.1, False),
)
