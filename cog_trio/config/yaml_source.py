"""YAML that remembers where each value stands, so that an error can name file, line and key.

A document stays a graph of nodes and only what is asked for becomes a value: what nobody reads can't be wrong, and
aliases that would unfold to gigabytes stay small. Merge keys (``<<``) are followed, each mapping once; a key that
stands twice in one mapping is an error, since YAML readers disagree on which one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

MAX_FILE: Final = 2**20  # bytes of a file
TAG: Final = "tag:yaml.org,2002:"
MERGE: Final = f"{TAG}merge"
ALIKE: Final = 0.75  # of difflib: from here on a key counts as a slip of another one


class BadFile(ValueError):
    """A file can't be used; the text is one line for the user."""


@dataclass(frozen=True)
class SourceMark:
    """One value of a file: its node, and the keys that lead to it."""

    path: Path
    key: str
    node: yaml.Node

    @property
    def line(self) -> int:
        return 1 if self.node.start_mark is None else int(self.node.start_mark.line) + 1  # None: an empty file

    def wrong(self, text: str) -> NoReturn:
        """Raise ``BadFile``: file, line, then the key and what is wrong with its value."""
        raise BadFile(f"{self.path}:{self.line}: {self.key + ' ' if self.key else ''}{text}")

    @property
    def empty(self) -> bool:
        return self.node.tag == f"{TAG}null"

    @property
    def raw(self) -> str:
        """A scalar as it is written: ``3.10`` is not yet a number."""
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""

    def is_a(self, *kinds: str) -> bool:
        """Whether the value is of one of these YAML types (``str``, ``int``, ``float``, ``bool``, ``map``, ``seq``)."""
        return self.node.tag in {f"{TAG}{kind}" for kind in kinds}

    def text(self, what: str = "a text") -> str:
        if not self.is_a("str"):
            self.wrong(f"must be {what}")
        return self.raw

    def value(self) -> Any:
        """A scalar as Python has it.

        Raises:
          BadFile: it can't be read as what it looks like.
        """
        try:
            return yaml.SafeLoader("").construct_object(self.node)
        except (yaml.YAMLError, ValueError, RecursionError):
            self.wrong("is not a value that can be read")

    def items(self, what: str = "a list") -> Iterator[SourceMark]:
        """The elements of a list; of nothing at all, none."""
        if self.empty:
            return
        if not isinstance(self.node, yaml.SequenceNode):
            self.wrong(f"must be {what}")
        for number, node in enumerate(self.node.value):
            yield SourceMark(self.path, f"{self.key}[{number}]", node)

    def fields(self, what: str = "a mapping") -> Mapping[str, SourceMark]:
        """The values of a mapping by their keys; of nothing at all, none.

        Raises:
          BadFile: it is not a mapping, or a key stands twice.
        """
        if self.empty:
            return {}
        if not isinstance(self.node, yaml.MappingNode):
            self.wrong(f"must be {what}" if self.key else f"must hold {what}")
        found: dict[str, SourceMark] = {}
        for layer in _layers(self.node):
            own: dict[str, SourceMark] = {}
            for key, value in layer.value:
                name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
                mark = SourceMark(self.path, f"{self.key}.{name}" if self.key else name, value)
                if key.tag == MERGE:
                    continue
                if name in own:
                    line = own[name].line
                    SourceMark(self.path, mark.key, key).wrong(f"stands here a second time, after line {line}")
                own[name] = mark
            for name, mark in own.items():
                found.setdefault(name, mark)
        return found

    def slips(self, fields: Mapping[str, SourceMark], known: Iterable[str], others: Iterable[str] = ()) -> None:
        """Refuse keys that nobody knows but that look like a known one. ``others`` are known and not ours."""
        names = [*known]
        familiar = {*names, *others}
        strange = {name: mark for name, mark in fields.items() if name not in familiar}
        if not strange:
            return
        from difflib import get_close_matches  # a worker waits for its start, and nearly no file needs it

        for name, mark in strange.items():
            if near := get_close_matches(name.lower(), names, 1, ALIKE):
                mark.wrong(f"is not a key of this file: did you mean {near[0]}?")


def read_yaml(path: Path) -> SourceMark:
    """Parse one file.

    Raises:
      BadFile: it can't be read, is too large, or is not YAML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise BadFile(f"{path} is larger than {MAX_FILE} bytes")
        node = yaml.compose(data, yaml.SafeLoader)
    except OSError as error:
        raise BadFile(f"can't read {path}: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise BadFile(f"{path} is not valid YAML: {_fault(error)}") from error
    return SourceMark(path, "", yaml.ScalarNode(f"{TAG}null", "") if node is None else node)


def _layers(node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
    """A mapping and those that it merges, nearest first, each once."""
    seen: set[int] = set()
    waiting: list[yaml.Node] = [node]
    while waiting:
        layer = waiting.pop(0)
        if isinstance(layer, yaml.SequenceNode):
            waiting = [*(found for found in layer.value if id(found) not in seen), *waiting]
        elif isinstance(layer, yaml.MappingNode) and id(layer) not in seen:
            yield layer
            waiting = [*(value for key, value in layer.value if key.tag == MERGE), *waiting]
        seen.add(id(layer))


def _fault(error: Exception) -> str:
    """What is wrong with a text that is not YAML, and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', None) or 'unreadable'}"
