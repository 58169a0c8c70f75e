"""A setup that takes long; says so before."""

import time

from cog import BaseRunner


class Runner(BaseRunner):
    def setup(self) -> None:
        print("fetching weights", flush=True)
        time.sleep(60)

    def run(self) -> str:
        return "never"
