"""Models whose predictions share calls of a helper, under asyncio and under trio."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import cog
import trio
from cog import BaseRunner, concurrent

from cog_trio import batch


class _Helpers:
    """An item is ``(text, gate)``: a call lasts until the file of each gate is there. A call of four begins when there
    are four, however busy the machine is."""

    ends: str = ""

    @batch(max_size=4, max_wait=60)
    def plain(self, items: list[tuple[str, str]]) -> list[Any]:
        print("plain call of", len(items))
        os.write(2, b"")  # descriptors belong to no run here
        while not all(not gate or Path(gate).exists() for _, gate in items):
            time.sleep(0.01)
        return self.answers(items)

    @batch(max_size=4, max_wait=60)
    async def awaited(self, items: list[tuple[str, str]]) -> list[Any]:
        print("awaited call of", len(items))
        try:
            while not all(not gate or Path(gate).exists() for _, gate in items):
                await self.sleep(0.01)
        except self.cancelled:
            self.ends += "cancelled "
            raise
        return self.answers(items)

    @batch(max_size=1)
    def single(self, items: list[tuple[str, str]]) -> list[Any]:
        print("single call of", len(items))
        return self.answers(items)

    def answers(self, items: list[tuple[str, str]]) -> list[Any]:
        if any(text == "all fail" for text, _ in items):
            raise RuntimeError("the whole call failed")
        print("answers of", len(items), end="")  # a line without an end
        names = " ".join(text for text, _ in items)
        return [ValueError("this one failed") if text == "fails" else f"{text} of {names}" for text, _ in items]

    async def work(self, text: str, gate: str, helper: str) -> str:
        print("own line of", text)
        return f"{await getattr(self, helper)((text, gate))}; {self.ends}"


class Runner(_Helpers, BaseRunner):
    sleep = staticmethod(asyncio.sleep)
    cancelled = asyncio.CancelledError

    @concurrent(max=8)
    async def run(self, text: str, gate: str = "", helper: str = "plain") -> str:
        return await self.work(text, gate, helper)


class Trio(_Helpers, BaseRunner):
    sleep = staticmethod(trio.sleep)
    cancelled = trio.Cancelled

    @cog.trio
    @concurrent(max=8)
    async def run(self, text: str, gate: str = "", helper: str = "plain") -> str:
        return await self.work(text, gate, helper)
