"""A setup that fails in the way that a variable names."""

import os
import sys

from cog import BaseRunner


class Runner(BaseRunner):
    def setup(self) -> None:
        print("loading weights")
        os.write(2, b"from the descriptor\n")
        how = os.environ["STORY"]
        if how == "raise":
            raise ValueError("bad weights")
        if how == "exit":
            sys.exit("no more")
        os._exit(7)

    def run(self) -> str:
        return "never"
