"""A unit test that starts a process fails, however it does it; what may start one is in another lane."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = """
import os, subprocess, sys
import pytest, trio
from cog_trio.orchestrator.spawn import spawn

TRUE = [sys.executable, "-c", ""]

def test_runs():
    subprocess.run(TRUE)

def test_swallows():
    try:
        subprocess.run(TRUE)
    except BaseException:
        pass

def test_forks():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def test_opens():
    trio.run(trio.run_process, TRUE)

def test_spawns_a_worker():
    with spawn():
        pass

@pytest.fixture
def started():
    subprocess.run(TRUE)

def test_has_a_fixture_that_runs(started):
    pass

@pytest.mark.process
def test_says_so():
    subprocess.run(TRUE)

def test_comes_after_it():
    pass
"""
HELPED = """
from tests.worker.rig import open_worker

def test_is_in_the_lane_of_its_helper(request):
    assert [mark.name for mark in request.node.iter_markers()] == ["process"]
"""


@pytest.mark.process
def test_who_starts_a_process_without_saying_so_fails(tmp_path: Path) -> None:
    (tmp_path / "test_starts.py").write_text(TESTS)
    (tmp_path / "test_helped.py").write_text(HELPED)
    plugins = [f"-p{name}" for name in ("tests.lanes", "no:cacheprovider", "no:anyio", "no:schemathesis")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", f"--rootdir={tmp_path}", *plugins, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    ends: dict[str, set[str]] = {}
    for end, name in re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE):
        ends.setdefault(name, set()).add(end)
    raised = {"FAILED", "ERROR"}  # by the call, and once more behind it
    assert ends == {
        "test_runs": raised,
        "test_swallows": {"PASSED", "ERROR"},
        "test_forks": raised,
        "test_opens": raised,
        "test_spawns_a_worker": raised,
        "test_has_a_fixture_that_runs": {"ERROR"},
        "test_says_so": {"PASSED"},
        "test_comes_after_it": {"PASSED"},
        "test_is_in_the_lane_of_its_helper": {"PASSED"},
    }, done.stdout
    assert done.returncode == 1


def test_this_one_is_a_unit_test(request: pytest.FixtureRequest) -> None:
    assert {mark.name for mark in request.node.iter_markers()} & {"unit", "process", "scenario"} == {"unit"}


def test_readme_names_the_fast_lane() -> None:
    assert "`make test-fast`" in (ROOT / "README.md").read_text()
