"""The page of results: what it says is what the JSON holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.bench.chart import gains
from scenarios.bench.page import figure, page, verdict
from scenarios.bench.rows import ROWS, Row

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
LOWER = Row("time", "ms", 0.8, 0.5, False)
HIGHER = Row("rate", "1/s", 2, 3, True)


def test_the_page_is_the_one_of_its_json() -> None:
    assert (REFERENCE / "performance.md").read_text() == page(json.loads((REFERENCE / "performance.json").read_text()))


def test_every_row_is_measured_and_lost_rows_are_shown() -> None:
    results = json.loads((REFERENCE / "performance.json").read_text())
    assert set(results["rows"]) == {row.name for row in ROWS}
    lost = [row for row in ROWS if not row.holds(figure(row, results["rows"][row.name]), row.must)]
    assert page(results).count("**missed**") == len(lost)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert figure(LOWER, {"cog-trio": [1, 2, 9], "coglet": [2, 2, 3]}) == 1
    with pytest.raises(ValueError, match="shorter"):
        figure(LOWER, {"cog-trio": [1, 2], "coglet": [2]})


@pytest.mark.parametrize(
    ("row", "value", "said"),
    [
        (LOWER, 0.5, "goal"),
        (LOWER, 0.8, "must"),
        (LOWER, 0.81, "**missed**"),
        (HIGHER, 3.0, "goal"),
        (HIGHER, 2.0, "must"),
        (HIGHER, 1.9, "**missed**"),
    ],
)
def test_bounds_belong_to_what_they_ask(row: Row, value: float, said: str) -> None:
    assert verdict(row, value) == said


def test_the_chart_shows_a_shorter_time_as_a_gain() -> None:
    values = {"cog-trio": [1.0], "coglet": [2.0]}
    assert gains({"rows": {"sequential p50": values, "32 MiB in": values}}) == {"sequential p50": 2.0, "32 MiB in": 0.5}
