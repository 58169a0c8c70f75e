"""Says goodbye when the interpreter ends."""

import atexit
import os
import time
from pathlib import Path

from cog import BaseRunner


class Runner(BaseRunner):
    def setup(self) -> None:
        file = Path(os.environ["STORY_FILE"])
        atexit.register(lambda: file.write_text("goodbye"))

    def run(self, seconds: float = 0.0) -> str:
        print("started")
        try:
            time.sleep(seconds)
            return "done"
        finally:
            print("cleaned up")
