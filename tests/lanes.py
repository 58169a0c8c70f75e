"""Which lane a test is in: ``unit``, ``process`` or ``scenario``. ``make test-fast`` runs the unit tests alone.

A test of ``scenarios/`` is a scenario. A test is a process test if it says so by ``pytest.mark.process``, or if it uses
a fixture or a helper module that starts processes. Every other test is a unit test, and must not start a process: the
interpreter itself reports each start (an audit event), so that no way to start one is overlooked.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

SCENARIOS: Final = Path(__file__).parent.parent / "scenarios"
LANES: Final = ("unit", "process", "scenario")
FIXTURES: Final = frozenset({"serve_model"})  # that start processes
HELPERS: Final = frozenset({"tests.worker.rig", "tests.worker.stage"})  # that start processes
STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
GUARDED = pytest.StashKey["list[str]"]()  # what a unit test has started

_running: list[list[str]] = []  # what the unit test that runs now has started; empty while another test runs


class StartsProcess(BaseException):
    """A unit test has started a process. Code that expects a start to fail must not take it for such a failure."""


@cache
def _uses_helper(module: ModuleType) -> bool:
    """Whether a test file imports a helper module that starts processes, or a name from one."""
    return any(
        getattr(value, "__module__" if not isinstance(value, ModuleType) else "__name__", None) in HELPERS
        for value in vars(module).values()
    )


def lane_of(item: pytest.Item) -> str:
    """Return the lane of a test."""
    if item.path.is_relative_to(SCENARIOS):
        return "scenario"
    module = item.getparent(pytest.Module)
    if (
        item.get_closest_marker("process")
        or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or (module is not None and _uses_helper(module.obj))
    ):
        return "process"
    return "unit"


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(lane_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    started: list[str] = []
    item.stash[GUARDED] = started
    if item.get_closest_marker("unit"):
        _running.append(started)
    try:
        return (yield)
    finally:
        _running.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail the test also where what the guard raised was swallowed."""
    result = yield
    if started := item.stash[GUARDED]:
        pytest.fail(f"a unit test has started a process ({started[0]}); mark it with pytest.mark.process")
    return result


def _guard(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS and _running:
        _running[0].append(event)
        raise StartsProcess(f"a unit test starts a process: {event} {arguments[:2]}")


sys.addaudithook(_guard)
