"""Writes in every way there is: print, descriptors, a child process, a thread, and without a last newline."""

import os
import subprocess
import sys
import threading

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, name: str) -> str:
        print(f"{name} print")
        print(f"{name} error", file=sys.stderr)
        os.write(1, f"{name} descriptor\n".encode())
        subprocess.run(["sh", "-c", f"echo {name} child"], check=True)
        thread = threading.Thread(target=print, args=(f"{name} thread",))
        thread.start()
        thread.join()
        print(f"{name} unfinished", end="")
        return name
