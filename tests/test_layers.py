"""docs/design/modules.md holds: who imports whom, who opens nurseries, and which files are long."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "cog_trio"
PAGE: Final = (ROOT / "docs" / "design" / "modules.md").read_text()
FILES: Final = sorted(PACKAGE.rglob("*.py"))
LONG: Final[dict[str, str]] = {  # files over 500 lines, with the reason that each is one idea
    "orchestrator/orchestrator.py": "one life of a worker: every way out leads to one end",
    "transport/http/routes.py": "all routes of the API, a method each",
    "transport/http/protocol/http1.py": "HTTP/1.1 of one connection, which is read and answered by one protocol",
}


def _table(heading: str) -> Iterator[list[str]]:
    """The cells of each row of the first table under a heading."""
    _, _, rest = PAGE.partition(f"## {heading}\n")
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    for row in rows[2:]:
        yield [cell.strip() for cell in row.strip("|").split(" | ")]


MAP: Final = {cells[0].strip("`"): set(re.findall(r"`([\w.]+)`", cells[-1])) for cells in _table("Map")}
OWNERS: Final = {path for cells in _table("Nurseries") for path in re.findall(r"`([\w/.]+)`", cells[1])}
RUNNERS: Final = {
    "cli/serve/program.py",
    "cli/run/local_run.py",
    "cli/run/remote_run.py",
    "cli/schema/describe_model.py",
    "portal.py",
    "worker/process/io_thread.py",
    "worker/executors/trio_executor.py",
}


SAME_NAMES: Final = {  # classes of one name, and whose name it is
    **dict.fromkeys(("Config", "Mode", "Status", "WebhookEvent"), "Cog's, in the modules that models import"),
    **dict.fromkeys(("Log", "Metric", "ShuttingDown"), "the owner's document's, for a message; and a public name"),
    **dict.fromkeys(("LogEvent", "MetricEvent"), "of one event, as it is kept and as the client shows it"),
}
SHIELDS: Final = {  # that have no deadline of their own, and what ends them
    "orchestrator/worker_handle.py": "the service's shutdown, which always comes",
    "orchestrator/orchestrator.py": "the end of open_orchestrator, after its grace",
    "testing/fakes.py": "the end of the worker that is played",
    "transport/http/protocol/server.py": "a deadline, as soon as the end begins",
    "service/webhook_sender.py": "its own tries, or close, which the shutdown calls after the webhook grace",
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
def test_a_long_file_has_its_reason(file: Path) -> None:
    assert (len(file.read_text().splitlines()) > 500) == (_inside(file) in LONG)


def test_map_names_no_file_that_is_not_there() -> None:
    for row in MAP:
        place = PACKAGE / row
        assert place.is_dir() if row.endswith("/") else place.is_file(), row


def test_each_folder_is_in_the_map() -> None:
    folders = {f"{file.parent.name}/" for file in FILES if file.parent.parent == PACKAGE}
    assert folders <= set(MAP)


def test_folders_form_no_circle() -> None:
    """Subfolders count as folders of their own, and the files beside them as another."""
    graph: dict[str, set[str]] = {}
    for file in FILES:
        folder = file.parent.relative_to(PACKAGE).as_posix()
        if folder != ".":
            homes = {_folder(module) for module in _imports(file)}
            graph.setdefault(folder, set()).update(homes - {folder, "."})
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def _folder(module: str) -> str:
    """Where a module is; "." for the public names and loose files."""
    if module == PACKAGE.name:
        return "."
    place = PACKAGE.joinpath(*module.split("."))
    return (place if place.is_dir() else place.parent).relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("file", FILES, ids=_inside)
def test_file_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))


def _callers(name: str) -> set[str]:
    """Files that call ``something.name(...)``."""
    return {
        _inside(file)
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    }


def test_no_two_classes_have_one_name() -> None:
    """A name says one thing; what other people named is listed."""
    names = Counter(
        node.name
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set(SAME_NAMES)


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


@pytest.mark.covers("D47")
def test_D47_a_shield_without_a_deadline_has_an_end() -> None:
    assert {_inside(file) for file in FILES if [*_shields(file)]} == set(SHIELDS)


@pytest.mark.covers("D45")
def test_D45_the_http_client_is_behind_one_module() -> None:
    """The process of a model has one of its own for URLFile (D23), and clients are another matter."""
    makers = {file for name in ("AsyncClient", "Client", "AsyncHTTPTransport") for file in _callers(name)}
    clients = {"client/async_client.py", "client/sync_client.py", "testing/server_process.py"}
    assert makers == {"net/http_client.py", "sdk/_urls.py"} | clients


def test_the_tree_of_nurseries_shows_those_of_the_table() -> None:
    diagram = PAGE.partition("## Nurseries\n")[2].partition("```mermaid")[2].partition("```")[0]
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
    assert _callers("open_signal_receiver") == {"cli/serve/program.py", "cli/run/session.py"}


def test_only_settings_reads_the_environment_in_the_parent() -> None:
    """The command line hands the environment over, spawn passes it on, open_service looks which names of a cog.yaml are
    set already; the others live in the model's process, or in a test's."""
    readers = {
        _inside(file)
        for file in FILES
        for node in _nodes(file)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    theirs = {
        reader
        for reader in readers
        if reader.startswith(("worker/", "sdk/", "_alias/", "testing/", "net/http_client.py"))
    }
    assert readers - theirs <= {
        "cli/__init__.py",  # whether a shell asks for completions
        "cli/completion.py",
        "cli/launch_plan.py",
        "cli/wheel/command.py",  # where the user's cache is
        "server/early_worker.py",
        "server/entry.py",
        "service/open_service.py",
        "orchestrator/spawn.py",
    }
