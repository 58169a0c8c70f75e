"""Yields short texts: at once, after a wait, or when the last was read; says when; fails if it is told to."""

import time
from collections.abc import Iterator
from pathlib import Path

from cog import BaseRunner, current_scope, streaming


class Runner(BaseRunner):
    def setup(self) -> None:
        self.runs = 0

    @streaming
    def run(
        self, count: int = 3, delay: float = 0.0, size: int = 0, fail_at: int = -1, log: bool = False, folder: str = ""
    ) -> Iterator[str]:
        self.runs += 1
        print(f"run {self.runs}")
        current_scope().record_metric("runs", self.runs)
        for number in range(count):
            if number == fail_at:
                raise ValueError("enough")
            if log:
                print(f"line {number}")
            yield f"{number}:{time.time():.6f}" + "x" * size
            if delay:
                time.sleep(delay)
            while folder and not Path(folder, str(number)).exists():
                time.sleep(0.002)
        print("done")
