"""One input of each kind that clients get wrong, and every way of a run to end; setup prints a lot."""

import logging
import time

from cog import BaseRunner, Input, Path, Secret

LINES = 300


class Runner(BaseRunner):
    def setup(self) -> None:
        for number in range(LINES):
            print("line", number)

    def run(
        self,
        n: int = 0,
        numbers: list[int] = Input(default=[1]),
        word: str = Input(default="abc", max_length=5),
        token: Secret = None,
        end: str = "return",
        seconds: float = 0.0,
    ) -> str:
        print("it ran", token)
        logging.warning("with %s", token)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.005)
        if end == "raise":
            raise ValueError(f"first line\nsecond line {token}")
        if end == "bare":
            raise RuntimeError
        if end == "missing file":
            return Path("/no/such/file.png")
        print("no newline", end="")
        return str(n)
