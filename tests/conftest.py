"""For all tests: what continuous integration may not skip, the lane of each test, the signals of programs, and no time
limit for an example of Hypothesis."""

from hypothesis import HealthCheck, settings

from tests.ignored_signals import catch_ignored_signals
from tests.lanes import pytest_itemcollected, pytest_runtest_protocol, pytest_runtest_teardown
from tests.strict import pytest_runtest_makereport

__all__ = [
    "pytest_itemcollected",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
]

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # also a busy one
settings.load_profile("any machine")
catch_ignored_signals()
