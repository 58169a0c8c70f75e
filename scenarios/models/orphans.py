"""Starts processes whose parent ends before them, so that they become children of PID 1."""

import os
import subprocess
import time

from cog import BaseRunner

TWICE = "for n in $(seq {count}); do (sleep {seconds} & echo $! >&2); done"  # each sleep outlives the shell around it


class Runner(BaseRunner):
    def run(self, orphans: int = 0, seconds: float = 0.0, until: str = "") -> str:
        subprocess.run(["sh", "-c", TWICE.format(count=orphans, seconds=seconds)], check=True)
        for _ in range(3_000):  # a minute
            if not until or os.path.exists(until):
                return "done"
            time.sleep(0.02)
        raise TimeoutError(f"there is still no {until}")
