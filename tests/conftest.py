"""For all tests: what continuous integration may not skip, and the lane of each test."""

from tests.lanes import pytest_itemcollected, pytest_runtest_protocol, pytest_runtest_teardown
from tests.strict import pytest_runtest_makereport

__all__ = [
    "pytest_itemcollected",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
]
