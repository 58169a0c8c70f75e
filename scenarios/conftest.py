"""The scenarios stand on the fixtures of the pytest plugin alone: ``serve_model`` and the rest of its module."""

from __future__ import annotations

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
