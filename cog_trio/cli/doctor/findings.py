"""What ``doctor`` finds: one line each for people, and the edits that would mend it.

An edit replaces bytes of a file as it was read. All edits of a file are made at once or not at all, and only when
what comes out still parses; comments, layout, line ends and encoding stay as they are.
"""

from __future__ import annotations

import ast
import difflib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

FindingKind = Literal["problem", "deprecated", "hint"]
PROBLEM: Final = "problem"


@dataclass(frozen=True, order=True)
class Edit:
    """Bytes ``start`` to ``end`` of a file become ``text``."""

    path: Path
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """One thing to know about a model. A problem makes the exit code 1, the others don't."""

    kind: FindingKind
    where: str  # file:line, or the file
    text: str
    edits: tuple[Edit, ...] = ()  # mend it; empty: it is for people to mend

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {' '.join(self.text.split())}" + (" [--fix]" if self.edits else "")


def mended(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The bytes with all edits made; two that overlap are a fault of ours."""
    parts = []
    position = 0
    for edit in sorted(set(edits)):
        assert edit.start >= position, edit
        parts += [data[position : edit.start], edit.text.encode()]
        position = edit.end
    return b"".join([*parts, data[position:]])


def mend(path: Path, edits: Iterable[Edit]) -> str:
    """Make the edits of one file; the difference, for people to read.

    Raises:
      OSError: it can't be written; then it is as it was.
    """
    before = path.read_bytes()
    after = mended(before, edits)
    if path.suffix == ".py":
        ast.parse(after)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(after)
        shutil.copymode(path, name)
        os.replace(name, os.path.realpath(path))
    except BaseException:
        os.unlink(name)
        raise
    old, new = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after))
    return "".join(_ended(line) for line in difflib.unified_diff(old, new, str(path), str(path), n=1))


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n"
