"""Async code that waits, several runs at once; says when it begins and when its clean-up is done."""

import asyncio
from collections.abc import AsyncIterator

from cog import BaseRunner, concurrent


class Runner(BaseRunner):
    async def setup(self) -> None:
        self.running = 0
        self.most = 0

    @concurrent(max=3)
    async def run(self, name: str = "?", seconds: float = 0.0, yields: int = 0) -> AsyncIterator[str]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            print(f"{name} started")  # from here on a cancel finds the clean-up
            for number in range(yields):
                yield f"{name} {number}"
                await asyncio.sleep(0.01)
            await asyncio.sleep(seconds)
            yield f"{name} ends, at most {self.most} at once"
        finally:
            self.running -= 1
            await asyncio.sleep(0)
            print(f"{name} cleaned up")
