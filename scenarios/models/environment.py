"""Tells what it can see of its environment, and takes as long as it is told to."""

import os
import time

from cog import BaseRunner

FIRST = dict(os.environ)


class Runner(BaseRunner):
    def run(self, seconds: float = 0.0) -> str:
        print("begun")
        time.sleep(seconds)
        return "\n".join(f"{name}={value}" for name, value in {**FIRST, **os.environ}.items())
