"""Gives back what it gets, as fast as it can."""

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, text: str = "", times: int = 1) -> str:
        return text * times
