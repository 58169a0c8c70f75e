"""Sync code that is stuck in different ways; it says when it begins and when its clean-up is done."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, how: str, seconds: float = 30.0) -> Iterator[str]:
        try:
            print("started")  # from here on a cancel finds the clean-up
            if how == "sleep":
                time.sleep(seconds)
            elif how == "busy":
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    sum(range(100))  # a bare `pass`: CPython 3.13.0 forgets the finally when a signal raises there
            elif how == "lock":
                lock = threading.Lock()
                lock.acquire()
                lock.acquire(timeout=seconds)
            elif how == "subprocess":
                subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"], check=True)
            elif how == "yields":
                for number in range(int(seconds * 100)):
                    yield str(number)
                    time.sleep(0.01)
            elif how == "deaf":
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    with contextlib.suppress(Exception):
                        time.sleep(0.05)
            yield "end"
        finally:
            print("cleaned up")
