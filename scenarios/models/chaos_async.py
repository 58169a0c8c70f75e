"""Four slots of async code that does all that a model may do; ``Trio`` does the same.

What it writes anywhere bears the name of its run.
"""

import asyncio
import base64
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import trio
from chaos import hold, leave_helper
from cog import BaseRunner, Path, concurrent, current_scope, streaming
from cog import trio as on_trio


async def wait(how: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    if how == "sleep":
        await asyncio.sleep(seconds)
    elif how == "busy":  # blocks the loop, and all beside it
        while time.monotonic() < end:
            pass
    elif how == "hold":
        hold(seconds)
    elif how == "lock":
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), seconds)
    elif how == "child":
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"
        )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    elif how == "stuck":  # by nothing but a kill
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.05)
            except BaseException:
                print("no")
    elif how == "deaf":
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.01)
            except Exception as error:
                print(error)


class Runner(BaseRunner):
    async def setup(self) -> None:
        self.folder = Path(os.environ["CHAOS_FOLDER"])

    async def wait(self, how: str, seconds: float) -> None:
        await wait(how, seconds)

    @concurrent(max=4)
    @streaming
    async def run(
        self,
        name: str,
        file: Path = None,
        steps: int = 0,
        size: int = 0,
        how: str = "sleep",
        seconds: float = 0.0,
        files: int = 0,
        lines: int = 0,
        ends: str = "returns",
        helper: float = 0.0,
        text: str = "",
    ) -> AsyncIterator[Any]:
        try:
            print(f"{name} begins")
            current_scope().record_metric("name", name)
            if file is not None:
                yield base64.b64encode(file.read_bytes()).decode()
                if helper:
                    leave_helper(file.parent, helper)
            if text:
                print(f"{name} got {len(text)}")
            for number in range(lines):
                print(f"{name} line {number}")
            for number in range(steps):
                current_scope().record_metric("steps", 1, mode="incr")
                yield f"{name} {number} " + "x" * size
                await self.wait(how, seconds)
            for number in range(files):
                path = self.folder / f"{name}.txt"
                path.write_text(f"{name} file {number}")
                yield path
                path.unlink()
            if not steps:
                await self.wait(how, seconds)
            if ends == "raises":
                raise ValueError(f"{name} fails")
            if ends == "exits":
                sys.exit(3)
        finally:
            print(f"{name} ends", end="")


async def wait_on_trio(how: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    if how == "sleep":
        await trio.sleep(seconds)
    elif how == "busy":
        while time.monotonic() < end:
            pass
    elif how == "hold":
        hold(seconds)
    elif how == "lock":
        with trio.move_on_after(seconds):
            await trio.Event().wait()
    elif how == "child":
        await trio.run_process([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"])
    elif how == "stuck":
        while time.monotonic() < end:
            try:
                await trio.sleep(0.05)
            except BaseException:
                print("no")
    elif how == "deaf":
        while time.monotonic() < end:
            try:
                await trio.sleep(0.01)
            except Exception as error:
                print(error)


@on_trio
class Trio(Runner):
    async def wait(self, how: str, seconds: float) -> None:
        await wait_on_trio(how, seconds)
