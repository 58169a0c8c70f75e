"""For all tests: what continuous integration may not skip."""

from tests.strict import pytest_runtest_makereport

__all__ = ["pytest_runtest_makereport"]
