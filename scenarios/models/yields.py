"""Yields one short text again and again, or the time at which it yields; in words that both runtimes understand."""

import time
from collections.abc import Iterator

from cog import BaseRunner, streaming


class Runner(BaseRunner):
    @streaming
    def run(self, count: int = 20_000, pause: float = 0.0) -> Iterator[str]:
        if not pause:
            for _ in range(count):
                yield "token"
            return
        for _ in range(count):
            time.sleep(pause)
            yield str(time.time())
