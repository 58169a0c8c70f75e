"""For all tests: what continuous integration may not skip, the lane of each test, and the signals of programs."""

from tests.ignored_signals import catch_ignored_signals
from tests.lanes import pytest_itemcollected, pytest_runtest_protocol, pytest_runtest_teardown
from tests.strict import pytest_runtest_makereport

__all__ = [
    "pytest_itemcollected",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
]

catch_ignored_signals()
