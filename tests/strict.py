"""With COG_TRIO_REQUIRE_ALL set, as in continuous integration, a test that skips itself fails.

Skips that a mark states in advance (another Python, another system) stay skips: they say what the test is for, not
what the machine lacks.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("COG_TRIO_REQUIRE_ALL") and not any(item.iter_markers("skipif")):
        report.outcome = "failed"
        report.longrepr = f"a machine that runs all tests must not skip this one: {report.longrepr}"
    return report
