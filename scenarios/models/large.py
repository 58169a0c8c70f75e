"""Large values out of nothing: one text, or a list of texts as they are yielded."""

from collections.abc import Iterator

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, mebibytes: int, times: int = 1) -> Iterator[str]:
        for number in range(times):
            yield str(number % 10) * (mebibytes * 2**20)
