"""Cuts a text into its words, one after the other."""

from collections.abc import Iterator

from cog import BaseRunner, Input


class Runner(BaseRunner):
    def run(self, text: str = Input(description="what to cut")) -> Iterator[str]:
        yield from text.split()
