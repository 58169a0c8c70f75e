"""Works for a while, and writes down when it begins and how it ends."""

import os
import time
from pathlib import Path

from cog import BaseRunner, CancelationException


class Runner(BaseRunner):
    def run(self, note: str, seconds: float = 30.0) -> str:
        path = Path(note)
        path.write_text(f"began {os.getpid()}")
        try:
            time.sleep(seconds)
        except CancelationException:
            path.write_text(f"canceled {os.getpid()}")
            raise
        return "done"
