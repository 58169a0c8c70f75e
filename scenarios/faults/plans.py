"""What one run is asked to do, drawn at random, and what must come of it.

Every run has a name of its own, ``@17@``, and everything that it writes anywhere bears it. So a text that lands with
another run is found by looking for names.
"""

from __future__ import annotations

import base64
import random
import re
from dataclasses import dataclass, field
from typing import Any, Final

NAME: Final = re.compile(r"@\d+@")
WAITS: Final = ("sleep", "sleep", "sleep", "busy", "lock", "child", "deaf")


@dataclass(frozen=True)
class Plan:
    """The input of a run."""

    name: str
    steps: int = 0
    size: int = 0
    how: str = "sleep"
    seconds: float = 0.0
    files: int = 0
    lines: int = 0
    ends: str = "returns"
    file: bytes | None = field(default=None, repr=False)

    @property
    def input(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            key: getattr(self, key) for key in ("name", "steps", "size", "how", "seconds", "files", "lines", "ends")
        }
        if self.file is not None:
            given["file"] = f"data:application/octet-stream;base64,{base64.b64encode(self.file).decode()}"
        return given

    @property
    def output(self) -> list[str]:
        """Everything that it yields when nobody stops it."""
        first = [] if self.file is None else [base64.b64encode(self.file).decode()]
        steps = [f"{self.name} {number} " + "x" * self.size for number in range(self.steps)]
        texts = [f"{self.name} file {number}".encode() for number in range(self.files)]
        return [*first, *steps, *(f"data:text/plain;base64,{base64.b64encode(text).decode()}" for text in texts)]

    @property
    def logs(self) -> str:
        """Everything that it prints when nobody stops it."""
        lines = "".join(f"{self.name} line {number}\n" for number in range(self.lines))
        return f"{self.name} begins\n{lines}{self.name} ends"

    @property
    def error(self) -> str | None:
        """How it fails of itself."""
        return {"raises": f"ValueError: {self.name} fails", "exits": "SystemExit: 3"}.get(self.ends)


def draw(rng: random.Random, name: str) -> Plan:
    """Most runs are short; a few are long, large, or fail."""
    kind = rng.random()
    if kind < 0.35:
        return Plan(name)
    file = rng.randbytes(rng.choice((0, 10, 5_000, 200_000))) if rng.random() < 0.3 else None
    ends = rng.choice(("raises", "exits")) if rng.random() < 0.12 else "returns"
    if kind < 0.85:
        steps = rng.randrange(6)
        seconds = rng.choice((0.0, 0.001, 0.005, 0.02))
        how = rng.choice(WAITS)
        files, lines = rng.choice((0, 0, 1, 3)), rng.choice((0, 1, 20))
        return Plan(name, steps, rng.choice((0, 10, 5_000)), how, seconds, files, lines, ends, file)
    if kind < 0.93:
        return Plan(name, how=rng.choice(WAITS), seconds=rng.uniform(0.1, 0.8), ends=ends, file=file)
    return Plan(name, rng.randrange(100, 2_000), rng.choice((0, 100, 4_000)), lines=rng.choice((0, 2_000)), ends=ends)


def long(rng: random.Random, name: str) -> Plan:
    """A run that is there to be stopped."""
    if rng.random() < 0.3:
        return Plan(name, rng.randrange(50, 500), 10, "sleep", 0.01)
    how = rng.choice(WAITS)
    return Plan(name, how=how, seconds=rng.uniform(0.2, 0.5) if how in ("busy", "deaf") else 3.0)
