"""docs/design/modules.md holds: who imports whom, who opens nurseries, and how long a file may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from cog_trio.cli import COMMANDS

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "cog_trio"
PAGE: Final = (ROOT / "docs" / "design" / "modules.md").read_text()
FILES: Final = sorted(PACKAGE.rglob("*.py"))
MAX_LINES: Final = 400


def _table(heading: str) -> Iterator[list[str]]:
    """The cells of each row of the first table under a heading."""
    _, _, rest = PAGE.partition(f"## {heading}\n")
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    for row in rows[2:]:
        yield [cell.strip() for cell in row.strip("|").split(" | ")]


MAP: Final = {cells[0].strip("`"): set(re.findall(r"`([\w.]+)`", cells[-1])) for cells in _table("Map")}
OWNERS: Final = {path for cells in _table("Nurseries") for path in re.findall(r"`([\w/.]+)`", cells[1])}
RUNNERS: Final = {
    "cli/program.py",
    "cli/local.py",
    "cli/remote.py",
    "cli/document.py",
    "worker/loop.py",
    "worker/trio.py",
}


SHIELDS: Final = {  # that have no deadline of their own, and what ends them
    "backend.py": "the service's shutdown, which always comes",
    "cli/console.py": "a deadline that is set in the same step",
    "supervisor.py": "the end of open_orchestrator, after its grace",
    "testing/fakes.py": "the end of the worker that is played",
    "transport/http/server.py": "a deadline, as soon as the end begins",
    "webhook.py": "its own tries, or close, which the shutdown calls after the webhook grace",
}


def _inside(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@cache
def _nodes(file: Path) -> list[ast.AST]:
    """Those of the kinds that are asked for below."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute)
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]


def _row(file: Path) -> str:
    """The line of the map that a file belongs to: its own, or its folder's."""
    inside = _inside(file)
    return inside if inside in MAP else inside.partition("/")[0] + "/"


def _imports(file: Path) -> Iterator[str]:
    """What of ours a file imports, as paths below the package; names of the package itself as ``cog_trio``."""
    here = [PACKAGE.name, *file.relative_to(PACKAGE).parent.parts]
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            paths = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for path in paths:
            if path == PACKAGE.name:
                yield path
            elif path.startswith(f"{PACKAGE.name}."):
                yield _module(path.split(".")[1:])


def _module(parts: list[str]) -> str:
    """Without the names inside a module; the package's own names are ``cog_trio``."""
    for length in range(len(parts), 0, -1):
        place = PACKAGE.joinpath(*parts[:length])
        if place.is_dir() or place.with_suffix(".py").is_file():
            return ".".join(parts[:length])
    return PACKAGE.name


@pytest.mark.parametrize("file", FILES, ids=_inside)
def test_file_has_its_line_in_the_map(file: Path) -> None:
    assert _row(file) in MAP


@pytest.mark.parametrize("file", FILES, ids=_inside)
def test_file_imports_only_what_its_line_names(file: Path) -> None:
    row = _row(file)
    allowed = {*MAP[row], *([row.rstrip("/")] if row.endswith("/") else [])}
    for module in _imports(file):
        assert any(module == name or module.startswith(f"{name}.") for name in allowed), module


@pytest.mark.parametrize("file", FILES, ids=_inside)
def test_file_is_not_too_long(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MAX_LINES


def test_map_names_no_file_that_is_not_there() -> None:
    for row in MAP:
        place = PACKAGE / row
        assert place.is_dir() if row.endswith("/") else place.is_file(), row


@pytest.mark.parametrize("folder", ["bridge", "cli", "observe", "permit", "server", "testing", "transport", "worker"])
def test_map_tells_each_file_of_a_folder(folder: str) -> None:
    """All but the commands, each of which is in the file of its name."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{folder}/` |"))
    told = set(re.findall(r"`(?:[a-z]+/)?(\w+\.py)`", row)) | {f"{name}.py" for name in COMMANDS}
    files = {file.name for file in FILES if file.is_relative_to(PACKAGE / folder) and not file.name.startswith("__")}
    assert files <= told
    assert told - {f"{name}.py" for name in COMMANDS} <= files | {"__init__.py"}


def _callers(name: str) -> set[str]:
    """Files that call ``something.name(...)``."""
    return {
        _inside(file)
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    }


def test_nurseries_are_opened_by_their_owners_only() -> None:
    assert _callers("open_nursery") == OWNERS


def _shields(file: Path) -> Iterator[int]:
    """Lines where a scope is shielded and nothing there says for how long."""
    for node in _nodes(file):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "CancelScope":
            names = {keyword.arg for keyword in node.keywords}
            if "shield" in names and "deadline" not in names:
                yield node.lineno
        elif isinstance(node, ast.Attribute) and node.attr == "shield" and isinstance(node.ctx, ast.Store):
            yield node.lineno


def test_D47_a_shield_without_a_deadline_has_an_end() -> None:
    assert {_inside(file) for file in FILES if [*_shields(file)]} == set(SHIELDS)


def test_D45_the_http_client_is_behind_one_module() -> None:
    """The model's process has one of its own for URLFile (D23); a test's client is another matter."""
    makers = {file for name in ("AsyncClient", "Client", "AsyncHTTPTransport") for file in _callers(name)}
    assert makers == {"client.py", "sdk/_urls.py", "testing/server.py"}


def test_the_tree_of_nurseries_shows_those_of_the_table() -> None:
    diagram = PAGE.partition("```mermaid")[2].partition("```")[0]
    drawn = {name for edge in re.findall(r"(\w+) --> (\w+)", diagram) for name in edge}
    told = {name for cells in _table("Nurseries") for name in cells[0].split(", ")}
    assert drawn == told - {"fixture"}


def test_event_loops_and_signals_are_the_programs_alone() -> None:
    loops = {
        _inside(file)
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "run"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "trio"
    }
    assert loops == RUNNERS
    assert _callers("spawn_system_task") == set()
    assert _callers("open_signal_receiver") == {"cli/program.py", "cli/session.py"}


def test_only_settings_reads_the_environment_in_the_parent() -> None:
    """The command line hands the environment over, spawn passes it on, opening looks which names of a cog.yaml are set
    already; the others live in the model's process, or in a test's."""
    readers = {
        _inside(file)
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    theirs = {
        reader for reader in readers if reader.startswith(("worker/", "sdk/", "_alias/", "testing/", "client.py"))
    }
    assert readers - theirs <= {"cli/plan.py", "server/http.py", "opening.py", "spawn.py"}
