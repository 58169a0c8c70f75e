"""A model that gains from batches: one call costs nearly the same for sixteen texts as for one, as on a GPU.

The time is spent in ``time.sleep`` here, so that the example needs no GPU: 20 ms a call and 1 ms a text.
"""

import time
import zlib

from cog import BaseRunner, Input, concurrent

from cog_trio import batch


class Runner(BaseRunner):
    def setup(self) -> None:
        self.dimensions = 4

    @batch(max_size=16, max_wait=0.005)
    def embed(self, texts: list[str]) -> list[list[float]]:
        return self.work(texts)

    @batch(max_size=1)
    def embed_one(self, texts: list[str]) -> list[list[float]]:
        return self.work(texts)

    def work(self, texts: list[str]) -> list[list[float]]:
        time.sleep(0.02 + 0.001 * len(texts))
        return [[zlib.crc32(text.encode(), place) % 1000 / 1000 for place in range(self.dimensions)] for text in texts]

    @concurrent(max=32)
    async def run(
        self,
        text: str = Input(description="What is embedded"),
        share: bool = Input(default=True, description="Share calls with other predictions"),
    ) -> list[float]:
        return await (self.embed(text) if share else self.embed_one(text))
