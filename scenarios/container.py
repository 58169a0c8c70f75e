"""The entry of an image as a container starts it: PID 1 of a PID namespace of its own, with and without tini.

The namespace has its own ``/proc``; what is in it is read through ``/proc/<pid>/root``. When PID 1 ends the kernel
kills the rest, as in a container. ``unshare`` needs root; where it or tini is missing, the tests skip with the reason.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import psutil
import pytest
import trio

from cog_trio.testing.server_process import SOON, STOP, Server, open_server

NAMESPACE: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--")
TINI: Final = ("tini", "--")
ENTRY: Final = (sys.executable, "-m", "cog_trio.server.http")
EXEC: Final = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
POLL: Final = 0.02  # seconds between two looks


@dataclass
class Container:
    """A server inside of a namespace, seen from outside."""

    server: Server
    init: psutil.Process  # PID 1

    def send(self, number: signal.Signals) -> None:
        """What ``docker stop`` or the kubelet does: signals go to PID 1."""
        self.init.send_signal(number)

    async def stopped(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return await self.server.ended(STOP)

    @property
    def main(self) -> psutil.Process:
        """The server's process: the child of tini, or of what stands in for it."""
        return next(child for child in self.init.children() if child.name() != "sleep")

    def inside(self) -> dict[int, tuple[str, str]]:
        """Number, name and state of each process of the namespace, with the numbers that they have in there."""
        found = {}
        for folder in Path(f"/proc/{self.init.pid}/root/proc").glob("[0-9]*"):
            try:
                text = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[int(folder.name)] = (text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2])
        return found

    def zombies(self) -> list[str]:
        return [name for name, state in self.inside().values() if state == "Z"]

    async def until_no(self, name: str) -> None:
        """Wait until no process with this name is left in there, dead ones included."""
        with trio.move_on_after(SOON):
            while any(name == found for found, _ in self.inside().values()):
                await trio.sleep(POLL)
            return
        raise AssertionError(f"{name} is still there: {self.inside()}")


@cache
def lacks(tini: bool) -> str | None:
    """Why no container can be played here; None if it can."""
    for tool in ("unshare", *(["tini"] if tini else [])):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else f"no PID namespace can be made: {done.stderr.strip()}"


def need(*, tini: bool = True) -> None:
    """Skip the test where no container can be played; in continuous integration that is a failure."""
    if reason := lacks(tini):
        pytest.skip(reason)


@asynccontextmanager
async def open_container(
    model: Path, temporary: Path, *flags: str, env: Mapping[str, str] | None = None, tini: bool = True
) -> AsyncIterator[Container]:
    """Start the entry in a namespace, in the folder of ``model``, until the block is left; it must have ended by then,
    or is stopped by SIGTERM to PID 1, and must leave with ``server.expected``."""
    need(tini=tini)
    command = ("-c", EXEC, *NAMESPACE, *(TINI if tini else ()), *ENTRY, *flags)
    variables = {"PORT": "0", "COG_PREDICT_TYPE_STUB": model.name, "COG_TRIO_HOST": "127.0.0.1", **(env or {})}
    async with open_server("", command=command, env=variables, cwd=model.parent, temporary=temporary) as server:
        (init,) = psutil.Process(server.process.pid).children()
        container = Container(server, init)
        yield container
        if server.process.poll() is None:
            code = await container.stopped()
            assert code == (server.expected or 0)


async def run_entry(*arguments: str, cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run the entry under tini to its end; exit code and stderr."""
    need()
    with trio.fail_after(STOP):
        done = await trio.run_process(
            [*NAMESPACE, *TINI, *ENTRY, *arguments], cwd=cwd, env=dict(env), check=False, capture_stderr=True
        )
    return done.returncode, done.stderr.decode()
