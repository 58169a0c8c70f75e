"""One run of the command line, as a real process: what it has said so far, on stdout and stderr apart, and its end.

``open_command`` starts ``python -m cog_trio``; on a terminal both streams are one, the terminal's. Leaving the block
sees that nothing is left: no process that it started, no temporary file.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from cog_trio.testing.processes import MARK, kill_marked, nothing_left

END: Final = 30.0  # seconds in which a command must end


class Command:
    """A running command."""

    def __init__(self, process: trio.Process, mark: str) -> None:
        self.process = process
        self.mark = mark
        self.out = b""
        self.err = b""
        self.reading = trio.CancelScope()  # of stdout
        self._came = trio.lowlevel.ParkingLot()

    async def until(self, text: str, *, err: bool = False) -> None:
        """Wait until it has said this."""
        with trio.move_on_after(END):
            while text.encode() not in (self.err if err else self.out):
                await self._came.park()
            return
        raise AssertionError(f"no {text!r} in {self.out!r}, {self.err!r}")

    async def end(self) -> int:
        """Wait for its end; the exit code."""
        with trio.fail_after(END):
            return await self.process.wait()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def stop_reading(self) -> None:
        """Close stdout at our end."""
        self.reading.cancel()

    def say(self, out: bytes, err: bytes) -> None:
        self.out += out
        self.err += err
        self._came.unpark_all()


@asynccontextmanager
async def open_command(
    *arguments: str,
    temporary: Path,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
    terminal: bool = False,
) -> AsyncIterator[Command]:
    """A command for the length of a block; what is left of it then is an error."""
    mark = uuid.uuid4().hex
    temporary.mkdir(exist_ok=True)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("COG_", "NO_COLOR", "PORT"))}
    ours |= {MARK: mark, "TMPDIR": str(temporary), "TERM": "xterm-256color", "COLUMNS": "100", **(env or {})}
    master, ends = pty.openpty() if terminal else (-1, -1)
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "cog_trio", *arguments],
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=ends if terminal else subprocess.PIPE,
        stderr=ends if terminal else subprocess.PIPE,
        env=ours,
        cwd=cwd,
    )
    command = Command(process, mark)
    try:
        async with trio.open_nursery() as nursery:
            if terminal:
                os.close(ends)
                nursery.start_soon(_read_terminal, command, trio.lowlevel.FdStream(master))
            else:
                assert process.stdout is not None
                assert process.stderr is not None
                nursery.start_soon(_read, command, process.stdout, False)
                nursery.start_soon(_read, command, process.stderr, True)
            if stdin is not None:
                assert process.stdin is not None
                await process.stdin.send_all(stdin)
                await process.stdin.aclose()
            yield command
            await command.end()
        await nothing_left(mark)
        assert sorted(path.name for path in temporary.iterdir()) == []
    finally:
        with trio.CancelScope(shield=True):
            kill_marked(mark)
            with trio.fail_after(END):
                await process.wait()


async def run_command(
    *arguments: str,
    temporary: Path,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str, str]:
    """A command that ends by itself: exit code, stdout, stderr."""
    async with open_command(*arguments, temporary=temporary, cwd=cwd, stdin=stdin, env=env) as command:
        code = await command.end()
    return code, command.out.decode(), command.err.decode()


async def _read(command: Command, stream: trio.abc.ReceiveStream, err: bool) -> None:
    with trio.CancelScope() if err else command.reading:
        async with stream:
            async for chunk in stream:
                command.say(b"" if err else bytes(chunk), bytes(chunk) if err else b"")


async def _read_terminal(command: Command, stream: trio.lowlevel.FdStream) -> None:
    async with stream:
        with suppress(OSError, trio.BrokenResourceError):  # EIO: the terminal has lost its last program
            async for chunk in stream:
                command.say(bytes(chunk), b"")
