"""An async health check, which does what a file says."""

import asyncio
import os
from pathlib import Path

from cog import BaseRunner


class Runner(BaseRunner):
    async def healthcheck(self) -> bool:
        says = Path(os.environ["STORY_FILE"]).read_text()
        if says == "sleep":
            await asyncio.sleep(30)
        return says == "well"

    async def run(self, seconds: float = 0.0) -> str:
        print("started")
        await asyncio.sleep(seconds)
        return "done"
