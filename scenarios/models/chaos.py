"""One slot of sync code that does all that a model may do; what it writes anywhere bears the name of its run."""

import base64
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from cog import BaseRunner, Path, current_scope, streaming

HELPER = """
import sys, time
end = time.monotonic() + float(sys.argv[2])
number = 0
while time.monotonic() < end:
    number += 1
    try:
        with open(f"{sys.argv[1]}/{number}", "w") as file:
            file.write("x")
    except OSError:
        pass
    time.sleep(0.001)
"""
helpers: list[subprocess.Popen[bytes]] = []


def hold(seconds: float) -> None:
    """C code that neither lets go of the interpreter nor is woken by a signal."""
    library, mutex, end = ctypes.PyDLL(None), ctypes.create_string_buffer(64), time.time() + seconds
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_timedlock(mutex, (ctypes.c_long * 2)(int(end), int(end % 1 * 1e9)))


def leave_helper(folder: Path, seconds: float) -> None:
    """A process that writes into the folder, whoever has ended meanwhile."""
    helpers[:] = [helper for helper in helpers if helper.poll() is None]
    command = [sys.executable, "-S", "-c", HELPER, str(folder), str(seconds)]
    helpers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))


def wait(how: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    if how == "sleep":
        time.sleep(seconds)
    elif how == "busy":
        while time.monotonic() < end:
            pass
    elif how == "hold":
        hold(seconds)
    elif how == "lock":
        threading.Event().wait(seconds)
    elif how == "child":
        subprocess.run([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"], check=True)
    elif how == "stuck":  # by nothing but a kill
        while time.monotonic() < end:
            try:
                time.sleep(0.05)
            except BaseException:
                print("no")
    elif how == "deaf":
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except Exception as error:
                print(error)


class Runner(BaseRunner):
    def setup(self) -> None:
        self.folder = Path(os.environ["CHAOS_FOLDER"])

    @streaming
    def run(
        self,
        name: str,
        file: Path = None,
        steps: int = 0,
        size: int = 0,
        how: str = "sleep",
        seconds: float = 0.0,
        files: int = 0,
        lines: int = 0,
        ends: str = "returns",
        helper: float = 0.0,
        text: str = "",
    ) -> Iterator[Any]:
        try:
            print(f"{name} begins")
            current_scope().record_metric("name", name)
            if file is not None:
                yield base64.b64encode(file.read_bytes()).decode()
                if helper:
                    leave_helper(file.parent, helper)
            if text:
                print(f"{name} got {len(text)}")
            for number in range(lines):
                print(f"{name} line {number}")
            for number in range(steps):
                current_scope().record_metric("steps", 1, mode="incr")
                yield f"{name} {number} " + "x" * size
                wait(how, seconds)
            for number in range(files):
                path = self.folder / f"{name}.txt"
                path.write_text(f"{name} file {number}")
                yield path
                path.unlink()
            if not steps:
                wait(how, seconds)
            if ends == "raises":
                raise ValueError(f"{name} fails")
            if ends == "exits":
                sys.exit(3)
        finally:
            print(f"{name} ends", end="")
