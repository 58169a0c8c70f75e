"""Waits, blocks, starts children or ends its process: ``Async`` and ``Trio`` do the same."""

import asyncio
import atexit
import os
import signal
import subprocess
import sys
import time

import cog
import trio

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


@atexit.register
def bye() -> None:
    print("bye")


def begin(how: str) -> None:
    """What all do first; by some names it does not come back."""
    if "children" in how:  # one that is deaf, one whose parent has ended
        subprocess.Popen([sys.executable, "-c", DEAF])
        subprocess.run(["sh", "-c", "sleep 60 &"], check=True)
    print("started", flush=True)
    if "leave" in how:
        os._exit(9)
    if "kill" in how:
        os.kill(os.getpid(), signal.SIGKILL)
    if "block" in how:
        time.sleep(60)


HOW = os.environ.get("STORY_SETUP", "")


class Async(cog.BaseRunner):
    async def setup(self) -> None:
        if HOW:
            begin(HOW)
            await asyncio.sleep(60)

    @cog.concurrent(max=2)
    async def run(self, how: str = "wait", seconds: float = 60.0) -> str:
        try:
            begin(how)
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(0.05)
            print("cleaned up")
        return how


@cog.trio
class Trio(cog.BaseRunner):
    async def setup(self) -> None:
        if HOW:
            begin(HOW)
            await trio.sleep(60)

    @cog.concurrent(max=2)
    async def run(self, how: str = "wait", seconds: float = 60.0) -> str:
        try:
            begin(how)
            await trio.sleep(seconds)
        finally:
            with trio.move_on_after(1, shield=True):
                await trio.sleep(0.05)
            print("cleaned up")
        return how
