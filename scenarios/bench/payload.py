"""How fast large payloads go through, in MB a second, against coglet.

    .venv/bin/python -m scenarios.bench.payload [--coglet PYTHON] [--rounds N] [--mebibytes N]

Two payloads: a file that the model returns and the client gets as a data URL, and a text in the body of a request.
Counted is the size of the file or text (not its base64) by the time from the request's first byte to the reply's
last. Both servers are up at the same time and are asked in turn; PYTHON (or COGLET_PYTHON) as in ``sequential``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Final

from scenarios.bench.sequential import HEADERS, Side, started

MIB: Final = 2**20


def ask(side: Side, body: bytes) -> tuple[float, bytes]:
    """One prediction: the seconds it took, and the reply."""
    began = time.perf_counter()
    side.connection.request("POST", "/predictions", body, HEADERS)
    reply = side.connection.getresponse()
    data = reply.read()
    taken = time.perf_counter() - began
    if reply.status != 200:
        raise SystemExit(f"{side.name}: {reply.status} {data[:300]!r}")
    return taken, data


def check_file(data: bytes, size: int) -> None:
    output = json.loads(data)["output"]
    assert len(output) == len("data:application/octet-stream;base64,") + (size + 2) // 3 * 4, output[:100]


def check_text(data: bytes, size: int) -> None:
    assert json.loads(data)["output"] == str(size), data[:300]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="MB/s of large payloads, ours against coglet")
    parser.add_argument("--coglet", default=os.environ.get("COGLET_PYTHON"), help="python with cog and coglet")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--mebibytes", type=int, default=32)
    chosen = parser.parse_args()
    size = chosen.mebibytes * MIB
    payloads = {
        "data-URL output": (json.dumps({"input": {"file": size}}).encode(), check_file),
        "inline input": (json.dumps({"input": {"text": "0123456789abcdef" * (size // 16)}}).encode(), check_text),
    }
    with ExitStack() as stack:
        start = {"model": "../models/payload.py:Runner"}
        sides = [stack.enter_context(started("cog-trio", ["-m", "cog_trio.server.http"], sys.executable, **start))]
        if chosen.coglet:
            sides.append(stack.enter_context(started("coglet", ["-m", "cog.server.http"], chosen.coglet, **start)))
        for what, (body, check) in payloads.items():
            rates: dict[str, list[float]] = {side.name: [] for side in sides}
            for number in range(chosen.rounds + 1):
                for side in sides if number % 2 else reversed(sides):
                    taken, data = ask(side, body)
                    check(data, size)
                    if number:  # the first one warms up
                        rates[side.name].append(size / taken / 1e6)
            medians = {name: statistics.median(values) for name, values in rates.items()}
            for name, values in rates.items():
                print(f"{what:16} {name:9} median {medians[name]:.0f} MB/s, {min(values):.0f} to {max(values):.0f}")
            if len(sides) == 2:
                print(f"{what:16} ratio of medians {medians['cog-trio'] / medians['coglet']:.1f}")


if __name__ == "__main__":
    main()
