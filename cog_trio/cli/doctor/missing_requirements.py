"""Packages that a model imports but its requirements do not name: what runs here would not run in an image.

Only what is installed here is known by its distribution; what is neither installed nor local fails at load, which says
more. Nothing is imported: names are read from the source, distributions from their records.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from cog_trio.cli.dockerfile.requirements import normalized
from cog_trio.cli.doctor.findings import Finding
from cog_trio.cli.doctor.python_source import PythonSource

GIVEN: Final = frozenset({"cog", "coglet", "cog_trio", "trio", "setuptools", "pip", "pkg_resources"})
MAX_SOURCES: Final = 200  # files of a model that are looked at


def missing_requirements(source: PythonSource, folder: Path, required: frozenset[str]) -> Iterator[Finding]:
    """One hint for each package that the file, or a local file that it imports, takes from nowhere."""
    known = _installed()
    told: set[str] = set()
    for file in _reached(source, folder):
        for name, node in _roots(file):
            distributions = _others(name, folder, known)
            if distributions and name not in told and not any(normalized(d) in required for d in distributions):
                told.add(name)
                what = name if normalized(name) in map(normalized, distributions) else f"{name} ({distributions[0]})"
                yield Finding("hint", file.where(node), f"{what} is imported, but the requirements do not name it")


def _reached(source: PythonSource, folder: Path) -> Iterator[PythonSource]:
    seen = {source.path}
    waiting = [source]
    while waiting:
        current = waiting.pop(0)
        yield current
        for name, _ in _roots(current):
            path = folder / f"{name}.py"
            if path.is_file() and path not in seen and len(seen) < MAX_SOURCES:
                seen.add(path)
                try:
                    waiting.append(PythonSource(path, path.name))
                except (OSError, SyntaxError, ValueError):
                    continue  # the load of the model says it, with its place


def _roots(source: PythonSource) -> Iterator[tuple[str, ast.stmt]]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], node


def _installed() -> dict[str, list[str]]:
    """The distributions that bring each top-level name; Python has this itself, but for old wheels only until 3.11."""
    found: dict[str, list[str]] = {}
    for distribution in distributions():
        title: str | None = distribution.metadata["Name"]  # None: a record that is broken
        for name in _tops(distribution) if title else ():
            found.setdefault(name, []).append(str(title))
    return found


def _tops(distribution: Distribution) -> set[str]:
    listed = distribution.read_text("top_level.txt")
    if listed:
        return set(listed.split())
    firsts = {path.parts[0] for path in distribution.files or () if path.suffix in (".py", ".so", ".pyd")}
    return {
        first.partition(".")[0] for first in firsts if first.isidentifier() or first.endswith((".py", ".so", ".pyd"))
    }


def _others(name: str, folder: Path, known: Mapping[str, list[str]]) -> list[str]:
    """The distributions that a name may come from; none if it is Python's, ours or the model's own."""
    local = (folder / f"{name}.py").is_file() or (folder / name).is_dir()
    return [] if local or name in GIVEN or name in sys.stdlib_module_names else known.get(name, [])
