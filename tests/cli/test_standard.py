"""Standard streams that are closed, full or left: what is printed goes nowhere else, the exit code says what was."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = [sys.executable, "-c", "from cog_trio.cli import main; main()", "completion", "bash"]


def shell(rest: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", f'"$@" {rest}', "bash", *PROGRAM], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("rest", "code", "told"),
    [
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 1, "cog-trio: stdout can't be written: No space left on device\n"),
        ("| true; exit ${PIPESTATUS[0]}", None, ""),
    ],
)
def test_standard_streams_that_take_nothing(rest: str, code: int | None, told: str) -> None:
    done = shell(rest)
    assert done.stderr == told
    assert done.returncode in ((0, 1, 141) if code is None else (code,))  # the reader may have left in time, or not


def test_a_closed_stream_is_no_place_for_files_of_ours() -> None:
    program = "import click, os; from cog_trio.cli.options import run_command; run_command(click.Command('x'), 'x')"
    check = "assert {os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)} == {os.devnull}"
    line = f'exec "{sys.executable}" -c "{program}; {check}" <&- >&- 2>&-'
    assert subprocess.run(["bash", "-c", line], timeout=60).returncode == 0
