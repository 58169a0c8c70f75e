"""Starts processes whose parent ends before them, so that they become children of PID 1."""

import subprocess
import time

from cog import BaseRunner

TWICE = "for n in $(seq {count}); do (sleep {seconds} & echo $! >&2); done"  # each sleep outlives the shell around it


class Runner(BaseRunner):
    def run(self, orphans: int = 0, seconds: float = 0.0, sleep: float = 0.0) -> str:
        print("started", flush=True)
        subprocess.run(["sh", "-c", TWICE.format(count=orphans, seconds=seconds)], check=True)
        time.sleep(sleep)
        return "done"
