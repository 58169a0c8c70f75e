"""An async model that serves four predictions at once, as a client of a slow backend would.

All predictions share the event loop and ``self``: what stands between two awaits is never interrupted.
"""

import asyncio

from cog import BaseRunner, Input, concurrent


class Runner(BaseRunner):
    async def setup(self) -> None:
        self.running = 0

    @concurrent(max=4)
    async def run(
        self,
        name: str = Input(default="world", description="Who is greeted"),
        seconds: float = Input(default=1.0, ge=0, le=60, description="How long the backend takes"),
    ) -> str:
        self.running += 1
        try:
            print(f"{self.running} at once")
            await asyncio.sleep(seconds)
            return f"hello {name}"
        finally:
            self.running -= 1
