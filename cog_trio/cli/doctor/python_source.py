"""A Python file as ``doctor`` reads it: its tree, and the bytes that a node or a word of it takes.

Names are taken as belonging to the whole file. That is coarser than Python, so what is bound more than once, or is
also spoken of in a text, counts as unclear and is left to people.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from cog_trio.cli.doctor.findings import Edit
from cog_trio.config.yaml_source import MAX_FILE

INTROSPECTED: Final = ("__name__", "__qualname__")


@dataclass(frozen=True)
class Import:
    """One name of a ``from`` import."""

    node: ast.ImportFrom
    alias: ast.alias

    @property
    def local(self) -> str:
        return self.alias.asname or self.alias.name


class PythonSource:
    """One file.

    Raises:
      OSError, SyntaxError, ValueError: it can't be read or is not Python.
    """

    def __init__(self, path: Path, shown: str) -> None:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"is larger than {MAX_FILE} bytes")
        self.path = path
        self.shown = shown
        self.data = path.read_bytes()
        self.tree = ast.parse(self.data, shown)
        self.nodes = list(ast.walk(self.tree))

    @cached_property
    def utf8(self) -> bool:
        """Whether offsets of the tree are offsets of the file: another encoding is left alone."""
        try:
            return ast.dump(ast.parse(self.data.decode("utf-8-sig"))) == ast.dump(self.tree)
        except (UnicodeDecodeError, SyntaxError):
            return False

    @cached_property
    def _lines(self) -> list[int]:
        """Where each line starts; Python ends lines at CR, LF and both together."""
        bom = 3 if self.data.startswith(b"\xef\xbb\xbf") else 0
        return [bom, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", self.data))]

    @cached_property
    def bound(self) -> Counter[str]:
        """How often each name is bound anywhere in the file."""
        return Counter(name for node in self.nodes for name in _binds(node))

    @cached_property
    def spoken(self) -> frozenset[str]:
        """The texts that are one word: names that code looks up while it runs."""
        return frozenset(
            node.value
            for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
        )

    @cached_property
    def introspects(self) -> bool:
        """Whether the names of classes and functions are read, so that a new name is seen."""
        return any(isinstance(node, ast.Attribute) and node.attr in INTROSPECTED for node in self.nodes)

    def imports(self, *modules: str) -> Iterator[Import]:
        """What is imported ``from`` one of these modules."""
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in modules:
                for alias in node.names:
                    yield Import(node, alias)

    def uses(self, name: str) -> list[ast.Name]:
        """All places where a name stands by itself."""
        return [node for node in self.nodes if isinstance(node, ast.Name) and node.id == name]

    def where(self, node: ast.stmt | ast.expr | ast.alias) -> str:
        return f"{self.shown}:{node.lineno}"

    def at(self, line: int, column: int) -> int:
        """The offset of a place as the tree names it: lines from 1, columns in bytes of UTF-8."""
        return self._lines[line - 1] + column

    def replace(self, node: ast.expr | ast.alias, old: str, new: str) -> Edit | None:
        """The edit that changes the name a node starts with, or for an attribute ends with."""
        if isinstance(node, ast.Attribute):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            end = self.at(node.end_lineno, node.end_col_offset)
            return self._checked(end - len(old), old, new)
        return self._checked(self.at(node.lineno, node.col_offset), old, new)

    def rename(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, new: str) -> Edit | None:
        """The edit that renames a class or function where it is defined."""
        start = self.at(node.lineno, node.col_offset)
        match = re.compile(rb"(?:async[ \t]+)?(?:def|class)[ \t]+(?=%s\b)" % node.name.encode()).match(self.data, start)
        return None if match is None else self._checked(match.end(), node.name, new)

    def _checked(self, start: int, old: str, new: str) -> Edit | None:
        """An edit, if the file has there what the tree said."""
        end = start + len(old.encode())
        found = self.utf8 and self.data[start:end] == old.encode()
        return Edit(self.path, start, end, new) if found else None


def _binds(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case _:
            return
