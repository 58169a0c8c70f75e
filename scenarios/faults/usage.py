"""What a server and its worker hold: descriptors, threads, memory, processes, files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import trio

from cog_trio.testing import Server
from cog_trio.testing.processes import POLL, marked
from scenarios.processes import children_of

MIB: Final = 2**20  # bytes
SPARE: Final = 8  # threads that trio and executors keep for later


def memory(pid: int) -> int:
    """Bytes of memory of its own: anonymous, in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no RssAnon of {pid}")


def processor(pid: int) -> tuple[int, int]:
    """Nanoseconds that a process has run, and that it has waited for a processor; none once it is gone."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except OSError:
        return 0, 0
    return int(ran), int(waited)


def own_share(pid: int, before: tuple[int, int]) -> float:
    """The part of the time since ``before`` in which a process wanted a processor and had it."""
    ran, waited = (now - then for now, then in zip(processor(pid), before, strict=True))
    return ran / (ran + waited) if ran + waited > 0 else 1.0


@dataclass(frozen=True)
class Usage:
    descriptors: tuple[int, int]  # of the server, of its workers
    threads: tuple[int, int]
    processes: int
    files: tuple[str, ...]
    memory: tuple[int, int]  # bytes

    def beyond(self, base: Usage) -> list[str]:
        """What is more than it was, memory left out."""
        found = []
        for name in ("descriptors", "threads", "processes"):
            mine, before = getattr(self, name), getattr(base, name)
            spare = SPARE if name == "threads" else 0
            if any(a > b + spare for a, b in zip(_pair(mine), _pair(before), strict=True)):
                found.append(f"{name}: {before} became {mine}")
        if extra := sorted(set(self.files) - set(base.files)):
            found.append(f"files: {extra[:10]}")
        return found

    def more(self, base: Usage) -> Counter[str]:
        """How many more than before, where there are."""
        counts = Counter[str]()
        for name in ("descriptors", "threads", "processes"):
            counts[name] = max(
                a - b for a, b in zip(_pair(getattr(self, name)), _pair(getattr(base, name)), strict=True)
            )
        counts["files"] = len(set(self.files) - set(base.files))
        return +counts

    def growth(self, base: Usage) -> tuple[int, int]:
        """Bytes of memory more than before."""
        return self.memory[0] - base.memory[0], self.memory[1] - base.memory[1]


def held(process: psutil.Process) -> list[str]:
    """Its descriptors, and what they are."""
    ends = {link.fd: f"{link.laddr} {link.raddr} {link.status}" for link in process.net_connections("all")}
    names = {int(path.name): path for path in Path(f"/proc/{process.pid}/fd").iterdir()}
    return [f"{number}: {path.readlink()} {ends.get(number, '')}" for number, path in sorted(names.items())]


def files(folder: Path) -> Iterator[str]:
    """What is in a folder and below, seen from it; folders may vanish meanwhile."""
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            yield str(Path(place, name).relative_to(folder))


def usage(server: Server) -> Usage:
    parent, workers = psutil.Process(server.process.pid), children_of(server)
    return Usage(
        (parent.num_fds(), sum(worker.num_fds() for worker in workers)),
        (parent.num_threads(), sum(worker.num_threads() for worker in workers)),
        len(marked(server.mark)),
        tuple(sorted(files(server.temporary))),
        (memory(parent.pid), sum(memory(worker.pid) for worker in workers)),
    )


async def settled(server: Server, base: Usage, seconds: float) -> tuple[Usage, list[str]]:
    """Wait until nothing is more than it was; what still is after so long."""
    now, more = usage(server), ["?"]
    with trio.move_on_after(seconds):
        while more := (now := usage(server)).beyond(base):
            await trio.sleep(10 * POLL)
    if more:
        for process in (psutil.Process(server.process.pid), *children_of(server)):
            more = [*more, *held(process)]
    return now, more


def _pair(value: int | tuple[int, int]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)
