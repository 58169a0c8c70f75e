"""What one run is asked to do, drawn at random, and what must come of it.

Every run has a name of its own, ``@17@``, and everything that it writes anywhere bears it. So a text that lands with
another run is found by looking for names.
"""

from __future__ import annotations

import base64
import random
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

NAME: Final = re.compile(r"@\d+@")
GIVEN: Final = ("name", "steps", "size", "how", "seconds", "files", "lines", "ends", "helper")
WAITS: Final = ("sleep", "sleep", "sleep", "busy", "lock", "child", "deaf")
FETCHES: Final = ("served", "served", "slow", "busy", "gone", "cut")  # how the server of an input behaves
UPLOADS: Final = ("takes", "takes", "busy", "hangs", "cut", "refuses")  # how that of an output does
_AGAIN: Final = re.compile(r"-[0-9a-f]{8}(?=\.txt$)")  # what sets a second file of one name apart


@dataclass(frozen=True)
class Plan:
    """The input of a run, and what the servers around it do."""

    name: str
    steps: int = 0
    size: int = 0
    how: str = "sleep"
    seconds: float = 0.0
    files: int = 0
    lines: int = 0
    ends: str = "returns"
    file: bytes | None = field(default=None, repr=False)
    fetch: str = ""  # one of FETCHES: the file is at ``url``; else it is in the input
    url: str = ""
    upload: str = ""  # one of UPLOADS: files go to ``target``; else into the output
    target: str = ""
    helper: float = 0.0  # seconds that a process of it goes on to write beside its file
    text: int = 0  # bytes of an input that is large

    @property
    def input(self) -> dict[str, Any]:
        given: dict[str, Any] = {key: getattr(self, key) for key in GIVEN}
        if self.text:
            given["text"] = "x" * self.text
        if self.fetch:
            given["file"] = self.url
        elif self.file is not None:
            given["file"] = f"data:application/octet-stream;base64,{base64.b64encode(self.file).decode()}"
        return given

    @property
    def output(self) -> list[str]:
        """Everything that it yields when nobody stops it."""
        first = [] if self.file is None else [base64.b64encode(self.file).decode()]
        steps = [f"{self.name} {number} " + "x" * self.size for number in range(self.steps)]
        return [*first, *steps, *map(self._shown, range(self.files))]

    @property
    def weight(self) -> int:
        """Bytes that the server keeps of it, at most: its input, its output, and that as events."""
        return self.text + len(self.file or b"") + 2 * (len(self.file or b"") + self.steps * (self.size + 100)) + 4_000

    def _shown(self, number: int) -> str:
        if self.upload:
            return f"{self.target}/{quote(self.file_name)}"
        return f"data:text/plain;base64,{base64.b64encode(f'{self.name} file {number}'.encode()).decode()}"

    @property
    def file_name(self) -> str:
        """The name of each file that it puts out."""
        return f"{self.name}.txt"

    def is_output(self, seen: list[Any], *, begun: bool = False, failed: bool = False) -> bool:
        """Whether this is its output; ``begun``: the beginning of it; ``failed``: files may be missing."""
        plain = [_AGAIN.sub("", item) if self.upload and isinstance(item, str) else item for item in seen]
        wanted = self.output
        if failed:
            steps = min(len(wanted) - self.files, len(plain))
            return plain[:steps] == wanted[:steps] and all(item in (*wanted, None) for item in plain[steps:])
        return plain == (wanted[: len(plain)] if begun else wanted)

    @property
    def logs(self) -> str:
        """Everything that it prints when nobody stops it."""
        lines = "".join(f"{self.name} line {number}\n" for number in range(self.lines))
        got = f"{self.name} got {self.text}\n" if self.text else ""
        return f"{self.name} begins\n{got}{lines}{self.name} ends"

    @property
    def error(self) -> str | None:
        """How it fails of itself."""
        return {"raises": f"ValueError: {self.name} fails", "exits": "SystemExit: 3"}.get(self.ends)

    @property
    def around(self) -> str | None:
        """How the error begins with which it fails by what servers around it do."""
        if self.fetch in ("gone", "cut"):
            return "Input validation error: file: "
        return "Failed to upload output: " if self.upload == "refuses" and self.files else None


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


def short(rng: random.Random, name: str) -> Plan:
    """A run that all who wait for it see the end of."""
    return Plan(name, rng.randrange(4), seconds=rng.uniform(0.05, 0.2))


def flood(rng: random.Random, name: str) -> Plan:
    """More than anybody reads."""
    return Plan(name, rng.randrange(100, 1_000), 4_000)


def steady(rng: random.Random, name: str) -> Plan:
    """A stream that takes a while, of few and small events."""
    return Plan(name, rng.randrange(20, 60), 10, "sleep", 0.01)


def fetching(rng: random.Random, name: str) -> Plan:
    """A run with a file from a URL."""
    file = rng.randbytes(rng.choice((0, 10, 5_000, 300_000)))
    return Plan(name, rng.randrange(3), 10, lines=1, file=file, fetch=rng.choice(FETCHES))


def uploading(rng: random.Random, name: str) -> Plan:
    """A run with files that are put somewhere."""
    return Plan(name, rng.randrange(3), 10, files=rng.choice((1, 1, 3)), upload=rng.choice(UPLOADS))


def helped(rng: random.Random, name: str) -> Plan:
    """A run that leaves a process behind, which writes into the folder of its input."""
    return Plan(name, rng.randrange(3), 10, file=rng.randbytes(10), helper=rng.uniform(0.1, 2))


def placed(plan: Plan, url: str, target: str) -> Plan:
    """It, with the places of its files; ``target`` is empty where outputs go nowhere."""
    upload = (plan.upload or "takes") if plan.files and target else ""
    return replace(plan, url=url, upload=upload, target=target)
