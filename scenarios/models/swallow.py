"""Catches the cancel and returns as if nothing had happened."""

import time

from cog import BaseRunner, CancelationException


class Runner(BaseRunner):
    def run(self, seconds: float = 30.0) -> str:
        print("started")
        try:
            time.sleep(seconds)
        except CancelationException:
            print("swallowed")
        return "survived"
