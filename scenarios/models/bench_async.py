"""Waits and returns, as an async model; in words that both runtimes understand."""

import asyncio

from cog import BaseRunner


class Runner(BaseRunner):
    async def run(self, pause: float = 0.0) -> str:
        if pause:
            await asyncio.sleep(pause)
        return "done"
