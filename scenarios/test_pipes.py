"""What ``cog-trio run`` writes into a pipe or a file arrives whole, whenever it is read, without being kept in memory.

``COG_TRIO_PIPE_MIB`` sets how much is written, ``COG_TRIO_PIPE_WAIT`` how long the reader sleeps; ``make pipes`` makes
it 1 GB and 20 s.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import trio

from cog_trio.testing.processes import MARK, marked, nothing_left
from scenarios.commands import END, open_command
from scenarios.places import MODELS

MIB: Final = 2**20
AMOUNT: Final = int(os.environ.get("COG_TRIO_PIPE_MIB") or 64)  # MiB
WAIT: Final = float(os.environ.get("COG_TRIO_PIPE_WAIT") or 2)  # seconds
LIMIT: Final = 60 + AMOUNT + WAIT  # seconds
pytestmark: Final = pytest.mark.timeout(2 * LIMIT)
GROWTH: Final = 64 * MIB  # bytes that a process may grow by
POLL: Final = 0.02  # seconds between two looks at the processes
ROLES: Final = {"parent": b"\0cog_trio\0", "worker": b"cog_trio.worker"}  # by their command lines; 3.10 has -c
CHUNKS: Final = (str(MODELS / "pours.py:Chunks"),)


@pytest.fixture(params=["file", "chunks"])
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """Of a run whose output goes to stdout."""
    if request.param == "chunks":
        return CHUNKS
    return (str(MODELS / "pours.py:File"), "-o", "-", "-i", f"folder={tmp_path}")


def _digest(mib: int) -> str:
    digest = hashlib.sha256()
    for _ in range(mib):
        digest.update(b"x" * MIB)
    return digest.hexdigest()


async def _peaks(mark: str, peaks: dict[str, int]) -> None:
    """Note the largest size that each process has had, for ever."""
    while True:
        for pid in marked(mark):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it has just ended
            role = next((role for role, word in ROLES.items() if word in line), None)
            sizes = [int(row.split()[1]) * 1024 for row in status.splitlines() if row.startswith("VmHWM:")]
            if role is not None and sizes:
                peaks[role] = max(peaks.get(role, 0), sizes[0])
        await trio.sleep(POLL)


async def _shell(arguments: tuple[str, ...], rest: str, folder: Path) -> tuple[int, str, str, dict[str, int]]:
    """Run a command below a shell: its exit code, stdout and stderr of the line, and the largest sizes."""
    folder.mkdir()
    mark = f"{folder.name}-{os.getpid()}"
    line = f"{shlex.join([sys.executable, '-m', 'cog_trio', 'run', *arguments])} {rest}"
    env = {**os.environ, MARK: mark, "TMPDIR": str(folder)}
    peaks: dict[str, int] = {}
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_peaks, mark, peaks)
            done = await trio.run_process(
                ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
                env=env,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            nursery.cancel_scope.cancel()
        await nothing_left(mark)
    return done.returncode, done.stdout.decode(), done.stderr.decode(), peaks


async def test_a_late_reader_gets_all_and_no_process_keeps_it(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Given a reader that sleeps before it reads, when a model puts out a large file or many chunks, then the reader
    gets every byte, the exit code is 0, and neither process has grown with the output."""
    late = f"| (sleep {WAIT}; sha256sum)"
    small = await _shell((*arguments, "-i", "mib=1"), late, tmp_path / "small")
    large = await _shell((*arguments, "-i", f"mib={AMOUNT}"), late, tmp_path / "large")
    for mib, (code, out, err, _) in ((1, small), (AMOUNT, large)):
        assert (code, out.split()[:1], err) == (0, [_digest(mib)], "")
    grown = {role: large[3][role] - small[3][role] for role in ROLES}
    print({role: f"{size / MIB:.1f} MiB" for role, size in grown.items()})
    assert all(size < GROWTH for size in grown.values()), grown


async def test_a_plain_file_gets_all(tmp_path: Path) -> None:
    code, _, err, _ = await _shell((*CHUNKS, "-i", f"mib={AMOUNT}"), f"> {tmp_path}/out", tmp_path / "t")
    assert (code, err) == (0, "")
    assert (tmp_path / "out").stat().st_size == AMOUNT * MIB


async def test_printed_text_is_cut_at_its_limit_and_says_so(tmp_path: Path) -> None:
    printing = (*CHUNKS, "-i", "mib=0", "-i", "lines=5000", "--log-limit", "10000")
    code, out, err, _ = await _shell(printing, "| cat", tmp_path / "t")
    assert (code, out) == (0, "")
    assert "line 100\n" in err
    assert "\n[**** LOGS TRUNCATED AT 10000 BYTES ****]\n" in err
    assert "line 4999\n" not in err


async def test_an_interrupt_ends_the_wait_for_a_reader(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Given a reader that stalls, when Ctrl-C comes, then the command ends with 130 and leaves nothing behind."""
    mark = f"interrupt-{tmp_path.name}-{os.getpid()}"
    temporary = tmp_path / "t"
    temporary.mkdir()
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "cog_trio", "run", *arguments, "-i", "mib=16"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    async with process.stdout:
        with trio.fail_after(END):
            assert await process.stdout.receive_some(1) == b"x"  # it writes; from here on nobody reads
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
        await nothing_left(mark)
    assert list(temporary.iterdir()) == []


async def test_a_reader_that_leaves_ends_the_command(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Given ``| head -c``, when the reader has left, then the command ends with 141 and says nothing."""
    async with open_command("run", *arguments, "-i", "mib=64", temporary=tmp_path / "t") as command:
        await command.until("x" * 100)
        command.stop_reading()
        assert await command.end() == 141
    assert command.err == b""
