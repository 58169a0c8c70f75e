"""Says and yields as much as it can, for as long as it is told."""

import time
from collections.abc import Iterator

from cog import BaseRunner, streaming


class Runner(BaseRunner):
    @streaming
    def run(self, seconds: float = 0.0) -> Iterator[str]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            print("a line")
            yield "a chunk"
