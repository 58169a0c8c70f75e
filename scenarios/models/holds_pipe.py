"""C code that holds the interpreter and writes far more than a pipe holds."""

import ctypes

from cog import BaseRunner

LINE = b"a line of C code\n"


class Runner(BaseRunner):
    def run(self, descriptor: int = 1, lines: int = 300_000) -> str:
        print("before")
        data = LINE * lines
        done = 0
        while done < len(data):
            done += ctypes.PyDLL(None).write(descriptor, data[done:], len(data) - done)
        print("after")
        return "done"
