"""Pages of the documentation as programs: what a reader would type, in order, in one folder a page.

A fenced block is run by what it is. ``sh``: by bash, stopping at the first error; environment and folder last for the
page. A line ``cog-trio serve …`` in it starts that server on a free port, in place of the one before, and goes on once
its model is ready; ``127.0.0.1:8393`` in what follows means that server. ``python`` with a ``title`` is a file of
that name, without one a program. ``yaml`` and ``json`` with a title are files, without one they must parse.
``mermaid`` is checked where it stands beside its table. Anything else must be marked.

Marks are comments in front of a block, which no reader sees:

- ``<!-- no-run: reason -->``: the next block is not run; a test lists them all.
- ``<!-- fails: 1 -->``: the next block must leave with this exit code.
- ``<!-- output -->``: the next block is what the block before has printed; ``...`` stands for anything.
- ``<!-- run: commands -->``: a block of sh by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

LOCAL: Final = re.compile(r"(?:127\.0\.0\.1|localhost):8393")
FENCE: Final = re.compile(r"(?P<indent> *)```(?P<language>[\w-]*)(?P<rest>.*)")
MARK: Final = re.compile(r"<!-- *(?P<name>no-run|fails|output|run)(?:: *(?P<text>.*?))? *-->", re.DOTALL)
TITLE: Final = re.compile(r'title="([^"]+)"')
SERVE: Final = re.compile(r"(?:\w+=\S* +)*cog-trio serve\b")


@dataclass(frozen=True)
class Block:
    """One fenced block, or a hidden ``run``."""

    line: int  # of the page, from 1
    language: str
    text: str
    title: str | None = None
    marks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Segment:
    """A part of a block of sh: commands for bash, or one that starts a server."""

    text: str
    serves: bool


class BadPage(AssertionError):
    """The page itself is wrong; the text names it and the line."""


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page in order.

    Raises:
      BadPage: a fence that does not end, or a mark without a block.
    """
    lines = text.split("\n")
    marks: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.lstrip().startswith("<!--"):
            first = number
            while "-->" not in line:
                if number == len(lines):
                    raise BadPage(f"line {first}: a comment without an end")
                line += "\n" + lines[number]
                number += 1
            if (mark := MARK.fullmatch(line.strip())) is None:
                continue
            if mark["name"] == "run":
                yield Block(first, "sh", (mark["text"] or "").strip("\n"), None, {})
            else:
                marks[mark["name"]] = mark["text"] or ""
        elif fence := FENCE.fullmatch(line):
            first, indent, body = number, fence["indent"], []
            while number < len(lines) and lines[number].strip() != "```":
                body.append(lines[number].removeprefix(indent))
                number += 1
            if number == len(lines):
                raise BadPage(f"line {first}: a block without an end")
            number += 1
            title = TITLE.search(fence["rest"])
            yield Block(first, fence["language"], "\n".join(body) + "\n", title and title[1], marks)
            marks = {}
        elif line.strip() and marks:
            raise BadPage(f"line {number}: no block follows the mark {', '.join(marks)}")
    if marks:
        raise BadPage(f"no block follows the mark {', '.join(marks)}")


def segments(text: str) -> list[Segment]:
    """A block of sh, cut at the commands that start servers."""
    found: list[Segment] = []
    lines: list[str] = []
    for line in text.splitlines():
        if SERVE.match(line):
            if any(line.strip() for line in lines):
                found.append(Segment("\n".join(lines), False))
            found.append(Segment(line, True))
            lines = []
        else:
            lines.append(line)
    if any(line.strip() for line in lines):
        found.append(Segment("\n".join(lines), False))
    return found


def like(wanted: str, seen: str) -> bool:
    """Whether an output is as a page shows it: ``...`` stands for anything, and spaces do not count."""
    plain = ["".join(text.split()) for text in (wanted, seen)]
    pattern = ".*?".join(re.escape(part) for part in plain[0].split("..."))
    return re.fullmatch(pattern, plain[1], re.DOTALL) is not None


def parses(block: Block) -> None:
    """Data must at least be data.

    Raises:
      BadPage: with what is wrong.
    """
    try:
        PARSERS[block.language](block.text)
    except ValueError as error:
        raise BadPage(f"line {block.line}: this is no {block.language}: {error}") from error


def _yaml(text: str) -> None:
    try:
        list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


PARSERS: Final[dict[str, Callable[[str], object]]] = {"yaml": _yaml, "json": json.loads}
FILES: Final = frozenset({"python", "text", "dockerfile", "toml", *PARSERS})  # languages that a title makes a file


def write(folder: Path, block: Block) -> None:
    """Write a block with a title to its file."""
    assert block.title is not None
    path = folder / block.title
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
