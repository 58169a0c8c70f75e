"""The same from async code, two runs at once."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from cog import BaseRunner, concurrent, streaming


class Runner(BaseRunner):
    @streaming
    @concurrent(max=2)
    async def run(
        self, count: int = 3, delay: float = 0.0, size: int = 0, fail_at: int = -1, folder: str = ""
    ) -> AsyncIterator[str]:
        print("run")
        try:
            for number in range(count):
                if number == fail_at:
                    raise ValueError("enough")
                yield f"{number}:{time.time():.6f}" + "x" * size
                await asyncio.sleep(delay)
                while folder and not Path(folder, str(number)).exists():
                    await asyncio.sleep(0.002)
        finally:
            print("cleaned up")
