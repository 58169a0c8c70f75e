"""Says word after word; after the first one it waits for a file to appear. Stays, when it is told to, if cancelled."""

import os
import sys
import time

from cog import BaseRunner, CancelationException, ConcatenateIterator, Input


class Runner(BaseRunner):
    def setup(self) -> None:
        print("warming up")
        gate = os.environ.get("TALKS_GATE")
        while gate and not os.path.exists(gate):
            time.sleep(0.01)

    def run(
        self,
        words: list[str] = Input(default=["one", " two"]),
        gate: str = "",
        stays: bool = False,
        times: int = Input(default=1, ge=1, le=1_000_000),
    ) -> ConcatenateIterator[str]:
        print("talking", file=sys.stderr)
        try:
            for _ in range(times):
                for word in words:
                    yield word
                    while gate and not os.path.exists(gate):
                        time.sleep(0.01)
        except CancelationException:
            print("cleaning up")
            while stays:
                try:
                    time.sleep(60)
                except BaseException:
                    print("no")
            raise
