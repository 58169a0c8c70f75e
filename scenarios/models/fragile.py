"""Fails in the way it is told to, from an exception to the end of its process."""

import os
import signal
import subprocess
import sys
import time

from cog import BaseRunner


class Runner(BaseRunner):
    def run(self, how: str = "return", seconds: float = 0.0) -> str:
        print("started", flush=True)
        if how == "child":  # a child that ignores what would end it politely
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
            subprocess.Popen([sys.executable, "-c", code])
            time.sleep(60)
        elif how == "raise":
            raise RuntimeError("boom")
        elif how == "exit":
            sys.exit(3)
        elif how == "interrupt":
            raise KeyboardInterrupt
        elif how == "leave":
            os._exit(9)
        elif how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(seconds)
        return how
