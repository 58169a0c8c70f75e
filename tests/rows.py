"""Which tests show which row of the specification: ``make rows`` prints it, and says what no test shows.

A test names the rows that it shows: ``@pytest.mark.covers("http:W7", "D18")``. It would fail if the row were not so.
Three checklists say what Cog does and what is required of us; each has numbers of its own, so the id names the list:

- ``http:W1`` to ``http:W51``: the HTTP server;
- ``worker:W1`` to ``worker:W69``: the worker process and what its parent knows of it;
- ``sdk:1`` to ``sdk:61``: what each signature advertises, takes and refuses; ``sdk:W1`` to ``sdk:W31``: weaknesses of
  Cog's SDK;
- ``D1`` and so on: the decisions in docs/design/records/;
- ``lesson:29`` and so on: what was learned from Cog in the field about files, webhooks, streams and validation.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
RECORDS: Final = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "design" / "records").glob("*.md")))
ROWS: Final = (
    *(f"http:W{number}" for number in range(1, 52)),
    *(f"worker:W{number}" for number in range(1, 70)),
    *(f"sdk:{number}" for number in range(1, 62)),
    *(f"sdk:W{number}" for number in range(1, 32)),
    *sorted(re.findall(r"^## .* \((D\d+)\)$", RECORDS, re.MULTILINE), key=lambda row: int(row[1:])),
    *(f"lesson:{number}" for number in (*range(29, 51), *range(60, 66))),
)


class Coverage:
    """What the tests of a collection cover; as a plugin of pytest it looks at all that were collected."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {row: [] for row in ROWS}
        self._faults: dict[str, None] = {}  # in order, each once: a test is added for each set of its parameters

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            rows = {str(row) for mark in item.iter_markers("covers") for row in mark.args}
            self.add(item.nodeid.partition("[")[0], rows)

    def add(self, test: str, rows: set[str]) -> None:
        """Note that a test covers these rows."""
        for row in rows:
            if row not in self.tests:
                self._faults[f"{test} covers {row}, which is not a row"] = None
            elif test not in self.tests[row]:
                self.tests[row].append(test)
        if unnamed := named_rows(test) - {row.rpartition(":")[2] for row in rows}:
            self._faults[f"{test} has {', '.join(sorted(unnamed))} in its name and not in a marker"] = None

    @property
    def faults(self) -> list[str]:
        """What is wrong with the markers, and the rows that no test covers."""
        return [*self._faults, *(f"no test covers {row}" for row, tests in self.tests.items() if not tests)]


def named_rows(test: str) -> set[str]:
    """Return the numbers of rows in the name of a test."""
    name = test.rpartition("::")[2]
    rows = re.match(r"test_row((?:_\d+)+)_", name)
    return {
        *re.findall(r"(?<=_)[WD]\d+(?=_|$)", name),
        *(str(int(row)) for row in re.findall(r"\d+", rows[1] if rows else "")),
    }


def collect() -> Coverage:
    """Collect all tests, and return what they cover.

    Raises:
      RuntimeError: if the collection fails, with its output.
    """
    coverage, output = Coverage(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider"], plugins=[coverage])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(output.getvalue())
    return coverage


def lines(coverage: Coverage, wanted: list[str]) -> Iterator[str]:
    """The report: each row with its tests; the wanted ones, or all."""
    for row, tests in coverage.tests.items():
        if not wanted or row in wanted:
            for number, test in enumerate(sorted(tests) or ["-"]):
                yield f"{'' if number else row:12}{test}"


def main() -> None:
    coverage = collect()
    print("\n".join(lines(coverage, sys.argv[1:])))
    sys.exit("\n".join(coverage.faults) or None)


if __name__ == "__main__":
    main()
