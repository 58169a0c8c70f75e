"""Its health check does what a file says: the story writes it."""

import os
import time
from pathlib import Path

from cog import BaseRunner


class Runner(BaseRunner):
    def setup(self) -> None:
        self.file = Path(os.environ["STORY_FILE"])

    def healthcheck(self) -> bool:
        says = self.file.read_text()
        if says == "raise":
            raise RuntimeError("hc exploded")
        if says == "sleep":
            time.sleep(30)
        return says == "well"

    def run(self, seconds: float = 0.0) -> str:
        print("started")
        time.sleep(seconds)
        return "done"
