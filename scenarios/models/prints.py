"""Prints numbered lines, as fast as print can."""

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, lines: int = 1) -> int:
        for number in range(lines):
            print(f"this is line {number}, as long as many are")
        return lines
