"""Median time of a trivial sync prediction, one after the other on one connection, against coglet.

    .venv/bin/python -m scenarios.bench.sequential [--coglet PYTHON] [--rounds N] [--requests N]

PYTHON (or the variable COGLET_PYTHON) is the interpreter of an environment that has cog and coglet. Both servers
run the same model at the same time and are asked in turn, round by round, so that whatever else the machine does
hits both. Only 2xx replies are timed; all others are counted. The ratio of the medians is what the issue asks for:
below 1.0 we are faster.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
BODY: Final = json.dumps({"input": {"text": "hello"}}).encode()
HEADERS: Final = {"content-type": "application/json"}
START: Final = 60.0  # seconds
WARM: Final = 50  # requests before the first round


@dataclass
class Side:
    """One of the two servers, and what was measured of it."""

    name: str
    connection: http.client.HTTPConnection
    ready: float  # seconds from start to READY
    times: list[float] = field(default_factory=list)  # seconds
    medians: list[float] = field(default_factory=list)  # of each round
    refused: int = 0

    def ask(self, count: int) -> None:
        """One round."""
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            self.connection.request("POST", "/predictions", BODY, HEADERS)
            reply = self.connection.getresponse()
            reply.read()
            if 200 <= reply.status < 300:
                taken.append(time.perf_counter() - began)
            else:
                self.refused += 1
        self.times += taken
        self.medians.append(statistics.median(taken))


@contextmanager
def started(name: str, command: list[str], python: str, *, model: str = "model.py:Runner") -> Iterator[Side]:
    """A server on a free port, ready; killed at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"  # coglet starts what `python` is there
    environ = {**os.environ, "PATH": path, "PORT": str(port), "COG_PREDICT_TYPE_STUB": model}
    began = time.perf_counter()
    process = subprocess.Popen(
        [python, *command, "--host", "127.0.0.1"], cwd=FOLDER, env=environ, stderr=subprocess.DEVNULL
    )
    try:
        while not _is_ready(port):
            if process.poll() is not None or time.perf_counter() - began > START:
                raise SystemExit(f"{name} did not start: exit code {process.poll()}")
            time.sleep(0.01)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Side(name, connection, time.perf_counter() - began)
        connection.close()
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", "/health-check")
        ready = json.load(connection.getresponse())["status"] == "READY"
        connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return bool(ready)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="median of sequential predictions, ours against coglet")
    parser.add_argument("--coglet", default=os.environ.get("COGLET_PYTHON"), help="python with cog and coglet")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=100, help="in a round")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        sides = [stack.enter_context(started("cog-trio", ["-m", "cog_trio.server.http"], sys.executable))]
        if chosen.coglet:
            sides.append(stack.enter_context(started("coglet", ["-m", "cog.server.http"], chosen.coglet)))
        for side in sides:
            side.ask(WARM)
            side.times.clear()
            side.medians.clear()
            side.refused = 0
        for number in range(chosen.rounds):
            for side in sides if number % 2 else reversed(sides):
                side.ask(chosen.requests)
        for side in sides:
            cut = statistics.quantiles(side.times, n=100)
            print(
                f"{side.name:9} median {statistics.median(side.times) * 1e3:.3f} ms, p95 {cut[94] * 1e3:.3f} ms, "
                f"p99 {cut[98] * 1e3:.3f} ms, {len(side.times)} x 2xx, {side.refused} refused, "
                f"ready after {side.ready:.2f} s"
            )
        if len(sides) == 2:
            ours, theirs = sides
            ratios = [mine / other for mine, other in zip(ours.medians, theirs.medians, strict=True)]
            whole = statistics.median(ours.times) / statistics.median(theirs.times)
            print(f"ratio of medians {whole:.3f}; by round {min(ratios):.3f} to {max(ratios):.3f}")
        else:
            print("no coglet to compare with: give --coglet PYTHON or COGLET_PYTHON")


if __name__ == "__main__":
    main()
