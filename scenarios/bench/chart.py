"""The chart of the ratios: ``.venv-bench/bin/python -m scenarios.bench.chart``, where matplotlib is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from scenarios.bench.page import Results, figure
from scenarios.bench.rows import ROWS

JSON: Final = Path(__file__).parents[2] / "docs" / "reference" / "performance.json"


def gains(results: Results) -> dict[str, float]:
    """Return by row how many times better than coglet we are; below 1 we lose."""
    found = {}
    for row in ROWS:
        if row.name in results["rows"] and not row.alone:
            ratio = figure(row, results["rows"][row.name])
            found[row.name] = ratio if row.higher else 1 / ratio
    return found


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cog-trio"  # the same results give the same file
    from matplotlib import pyplot

    bars = gains(json.loads(JSON.read_text()))
    drawing, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    axes.barh(list(bars), list(bars.values()), color=["#2a7f62" if gain >= 1 else "#b3452c" for gain in bars.values()])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("times better than coglet; left of 1 we lose")
    axes.invert_yaxis()
    drawing.savefig(JSON.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
