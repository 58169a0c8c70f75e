"""Measure all rows against coglet, and write the page.

python -m scenarios.bench [--coglet PYTHON] [--rounds N] [--row NAME] [--quick] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scenarios.bench import output, resources, sequential
from scenarios.bench.core import NAMES, Plan, Values
from scenarios.bench.page import Results, figure, number, page, verdict
from scenarios.bench.rows import ROWS

ROOT: Final = Path(__file__).parents[2]
JSON: Final = ROOT / "docs" / "reference" / "performance.json"
FAMILIES: Final[dict[str, Callable[[Plan], dict[str, Values]]]] = {
    "sequential": sequential.one_by_one,
    "async": sequential.many,
    "yields": output.yields,
    "lines": output.lines,
    "payloads": resources.payloads,
    "start": resources.start,
}


def version_of(python: str) -> str:
    """Return the version of cog that an interpreter has; raises CalledProcessError if it has none."""
    code = "import importlib.metadata as m; print(m.version('cog'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scenarios.bench", description="all rows against coglet")
    parser.add_argument("--coglet", default=os.environ.get("COGLET_PYTHON", str(ROOT / ".venv-bench/bin/python")))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--row", choices=sorted(FAMILIES), help="one family of rows")
    parser.add_argument("--quick", action="store_true", help="2 rounds of a fifth of the requests")
    parser.add_argument("--write", action="store_true", help=f"write {JSON.name} and the page beside it")
    chosen = parser.parse_args()
    if chosen.write and chosen.row:
        parser.error("--write takes all rows")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended then, too
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    pythons = dict(zip(NAMES, (sys.executable, chosen.coglet), strict=True))
    plan = Plan(pythons, rounds, 0.2 if chosen.quick else 1.0)
    results: Results = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "reference": version_of(chosen.coglet),
        "quick": chosen.quick,
        "rounds": rounds,
        "rows": {},
    }
    for name, measure in FAMILIES.items():
        if chosen.row in (None, name):
            results["rows"].update(measure(plan))
    for row in ROWS:
        if row.name in results["rows"]:
            value = figure(row, results["rows"][row.name])
            print(f"{row.name:26} {number(value):>9}  must {number(row.must)}  {verdict(row, value)}")
    if chosen.write:
        JSON.write_text(json.dumps(results, indent=1) + "\n")
        JSON.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
