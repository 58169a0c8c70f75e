"""Says a word louder, as slowly as it is asked to."""

import time

from cog import BaseRunner, Input


class Runner(BaseRunner):
    def run(self, word: str, seconds: float = Input(description="how long that takes", default=0.0, ge=0)) -> str:
        time.sleep(seconds)
        return word.upper() + "!"
