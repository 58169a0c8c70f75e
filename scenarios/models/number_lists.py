"""Takes lists of numbers, however long."""

from __future__ import annotations

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, numbers: list[int], note: str = "") -> int:
        return len(numbers)
