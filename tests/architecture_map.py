"""The figures of the architecture: ``make map`` prints them, so that anyone can compare two trees.

The import figures are read from the source, so ``--repo`` takes any checkout, also one whose folders are other ones.
The figures of a prediction are measured in a server of that checkout, run by its own virtual environment: the second
POST of a warm server is followed by ``sys.setprofile`` on the thread of the event loop. This module imports the
standard library alone, since it is also run by Pythons that have nothing else of this checkout.
"""

from __future__ import annotations

import argparse
import ast
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = "cog_trio"
SHORT: Final = 60  # lines; a file of fewer with one importer is a satellite, which has to give a reason
READY_LIMIT: Final = 60.0  # seconds until the traced server has to be ready
MODEL: Final = "class Runner:\n    def run(self, n: int) -> int:\n        return n\n"

REASONS: Final[Mapping[str, str]] = {  # satellites that stay files of their own
    "_alias/coglet/_sdk.py": "Cog's name: `coglet._sdk`",
    "_alias/coglet/server.py": "Cog's name: `coglet.server`",
    "sdk/_legacy_types.py": "types of older Cog releases, apart from those of today",
    "sdk/legacy/errors.py": "Cog's name: `cog.errors`",
    "server/http.py": "the module that images name; it spawns before the rest is imported",
    "server/pid1.py": "what a process does as the init of a container; nothing of the server",
    "testing/blocking.py": "what a plain test function uses; the plugin imports nothing until then",
    "testing/clock.py": "a fake clock that waits for threads; knows nothing of pytest or workers",
    "testing/model_lookup.py": "which file the name of a model means; nothing of pytest",
    "transport/http/openai/stop_text.py": "a matcher of texts in pieces; knows nothing of predictions",
    "transport/http/playground/assets.py": "beside the files that it serves",
    "transport/http/serve.py": "a public function; over routes and protocol, which know nothing of each other",
    "worker/ipc/dropped_lines.py": "lines that were dropped, counted from any thread and reported by one",
    "worker/logs/c_stdout.py": "calls into the C library, which may be missing",
    "worker/model/output_fit.py": "a table made of the form of an output; knows nothing of loading",
    "worker/process/state_lines.py": "where threads and tasks are; knows nothing of channels",
}


class Import(NamedTuple):
    """One file that imports another one of the package."""

    importer: str  # paths below the package
    imported: str
    typed: bool  # for the type checker alone: under ``if TYPE_CHECKING``


class Graph:
    """Who imports whom, between files or between folders; nothing points at itself."""

    def __init__(self, arrows: Iterable[tuple[str, str]], names: Iterable[str] = ()) -> None:
        self.arrows: Final = sorted({(start, end) for start, end in arrows if start != end})
        self.next: Final[dict[str, set[str]]] = {name: set() for name in names}
        for start, end in self.arrows:
            self.next.setdefault(start, set()).add(end)
            self.next.setdefault(end, set())

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of names that each reach each other, by Tarjan's algorithm, imported ones first."""
        return [group for group in self._components if len(group) > 1]

    @cached_property
    def _components(self) -> list[list[str]]:
        order: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        found: list[list[str]] = []

        def visit(name: str) -> None:
            order[name] = low[name] = len(order)
            stack.append(name)
            for other in sorted(self.next[name]):
                if other not in order:
                    visit(other)
                    low[name] = min(low[name], low[other])
                elif other in stack:
                    low[name] = min(low[name], order[other])
            if low[name] == order[name]:
                start = stack.index(name)
                found.append(sorted(stack[start:]))
                del stack[start:]

        for name in sorted(self.next):
            if name not in order:
                visit(name)
        return found

    @cached_property
    def upwards(self) -> list[tuple[str, str]]:
        """Arrows that have to go before the graph has floors: as few as can be found for each circle."""
        return [arrow for circle in self.circles for arrow in self._against(self._ordered(circle))]

    def _against(self, order: list[str]) -> list[tuple[str, str]]:
        rank = {name: place for place, name in enumerate(order)}
        inside = [(start, end) for start, end in self.arrows if start in rank and end in rank]
        return [(start, end) for start, end in inside if rank[start] > rank[end]]

    def _ordered(self, circle: list[str]) -> list[str]:
        """Importers first, as far as that can be: each name is moved to where it is best, until no move helps."""
        order = sorted(circle, key=lambda name: -len(self.next[name]))
        best = len(self._against(order))
        moved = True
        while moved:
            moved = False
            for name in circle:
                rest = [other for other in order if other != name]
                for place in range(len(order)):
                    tried = [*rest[:place], name, *rest[place:]]
                    if (against := len(self._against(tried))) < best:
                        order, best, moved = tried, against, True
        return order

    @cached_property
    def floors(self) -> dict[str, int]:
        """The floor of each name: 1 imports nothing, and each other one is above all that it imports."""
        removed = set(self.upwards)
        floors: dict[str, int] = {}

        def floor(name: str) -> int:
            if name not in floors:
                below = [floor(other) for other in self.next[name] if (name, other) not in removed]
                floors[name] = 1 + max(below, default=0)
            return floors[name]

        for name in self.next:
            floor(name)
        return floors


class Tree:
    """The package of one checkout."""

    def __init__(self, repo: Path) -> None:
        self.package: Final = repo / PACKAGE
        self.files: Final = {
            path.relative_to(self.package).as_posix(): path.read_text() for path in sorted(self.package.rglob("*.py"))
        }
        self.imports: Final = sorted({found for name in self.files for found in self._imports(name)})

    def _imports(self, importer: str) -> Iterator[Import]:
        tree = ast.parse(self.files[importer])
        typed = {
            node
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
            for statement in block.body
            for node in ast.walk(statement)
        }
        here = [PACKAGE, *importer.split("/")[:-1]]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                paths = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = here[: len(here) - node.level + 1] if node.level else []
                base = ".".join([*parts, *([node.module] if node.module else [])])
                paths = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            for path in paths:
                imported = self._file(path.split("."))
                if imported not in (None, importer):
                    yield Import(importer, str(imported), node in typed)

    def _file(self, parts: list[str]) -> str | None:
        """The file that a dotted path names; names inside of a module are cut off."""
        if parts[0] != PACKAGE:
            return None
        for length in range(len(parts), 0, -1):
            inside = "/".join(parts[1:length])
            for name in (f"{inside}.py", f"{inside}/__init__.py" if inside else "__init__.py"):
                if name in self.files:
                    return name
        return None

    @cached_property
    def rooms(self) -> list[str]:
        """What stands at the top of the package: folders, and files but ``__init__.py``."""
        return sorted({_room(name) for name in self.files} - {"__init__.py"})

    def between_rooms(self, *, typed: bool) -> Graph:
        """Arrows between rooms, with or without those for the type checker.

        ``__init__.py`` is the package's public face, which imports nothing until a name is used: who imports it
        imports from above.
        """
        pairs = [(_room(found.importer), _room(found.imported)) for found in self.imports if typed or not found.typed]
        return Graph(pairs, self.rooms)

    def between_folders(self) -> Graph:
        """Subfolders count as folders of their own, and the files beside them as another."""
        names = {name: name.rpartition("/")[0] or name for name in self.files}
        return Graph((names[found.importer], names[found.imported]) for found in self.imports)

    def between_files(self, *, typed: bool) -> Graph:
        return Graph((found.importer, found.imported) for found in self.imports if typed or not found.typed)

    @cached_property
    def satellites(self) -> dict[str, str]:
        """Files of fewer than ``SHORT`` lines that one file alone imports, with that file."""
        importers: dict[str, set[str]] = {name: set() for name in self.files}
        for found in self.imports:
            importers[found.imported].add(found.importer)
        return {
            name: next(iter(importers[name]))
            for name, text in self.files.items()
            if len(importers[name]) == 1 and len(text.splitlines()) < SHORT and not name.endswith("__init__.py")
        }


def _room(name: str) -> str:
    folder, slash, _ = name.partition("/")
    return folder + slash


@dataclass
class Way:
    """What one prediction does on the thread of the event loop, call by call."""

    package: str
    steps: list[str] = field(default_factory=list)  # the file of each call of ours
    calls: int = 0  # of Python functions, those of other libraries included
    to_permit: int | None = None  # calls from `create` until `acquire` has returned
    acquiring: int | None = None  # of these, the ones of `acquire`
    _started: int | None = None  # calls before the one of `create`
    _outer: tuple[FrameType, int] | None = None  # the outermost `acquire`, and the calls before it

    def profile(self, frame: FrameType, event: str, value: object) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(self.package)
        if event == "call":
            self.calls += 1
            if ours:
                self.steps.append(code.co_filename[len(self.package) :])
                if code.co_name == "create" and self.to_permit is None:  # the route has this name too, outside of it
                    self._started = self.calls - 1
                if code.co_name.startswith("acquire") and self._outer is None and self._started is not None:
                    self._outer = (frame, self.calls - 1)
        elif event == "return" and self._outer is not None and frame is self._outer[0]:
            if value is not None and self._started is not None:
                self.to_permit = self.calls - self._started
                self.acquiring = self.calls - self._outer[1]
                self._outer = (sys._getframe(), 0)  # a frame that never returns while we look
            else:
                self._outer = None

    def figures(self) -> dict[str, int | None]:
        changes = sum(one != other for one, other in zip(self.steps, self.steps[1:], strict=False))
        return {
            "files": len(set(self.steps)),
            "changes": changes,
            "own": len(self.steps),
            "calls": self.calls,
            "to_permit": self.to_permit,
            "acquiring": self.acquiring,
        }


def trace() -> dict[str, int | None]:
    """Serve a trivial model in this process, and follow its second prediction. Run in the checkout to measure.

    The server has the main thread, as ever; a second thread is its client and ends it by SIGTERM.
    """
    import signal

    from cog_trio.cli import main

    way = Way(f"{Path(sys.modules[PACKAGE].__file__ or '').parent}{os.sep}")
    listening: list[socket.socket] = []
    following = False

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.bind" and arguments[0].family == socket.AF_INET:
            listening.append(arguments[0])

    def profile(frame: FrameType, event: str, value: object) -> None:
        if following:
            way.profile(frame, event, value)

    def ask() -> None:
        nonlocal following
        try:
            address = _ready(listening)
            connection = http.client.HTTPConnection(*address, timeout=READY_LIMIT)
            body = json.dumps({"input": {"n": 1}})
            for turn in range(2):
                following = turn == 1
                connection.request("POST", "/predictions", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert json.load(answer)["status"] == "succeeded"
                following = False
                time.sleep(0.5)  # what a prediction leaves to do is not the next one's
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    sys.addaudithook(heard)
    client = threading.Thread(target=ask)
    client.start()
    sys.setprofile(profile)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.py")
        model.write_text(MODEL)
        sys.argv = [
            "cog-trio",
            "serve",
            f"{model}:Runner",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--log-level",
            "error",
        ]
        try:
            main()
        except SystemExit:
            sys.setprofile(None)
    client.join()
    return way.figures()


def _ready(listening: list[socket.socket]) -> tuple[str, int]:
    """Wait for the server's own address, until the model is ready there."""
    over = time.monotonic() + READY_LIMIT
    while time.monotonic() < over:
        for listener in listening:
            try:
                host, port = listener.getsockname()
                connection = http.client.HTTPConnection(host, port, timeout=1)
                connection.request("GET", "/health-check")
                if json.load(connection.getresponse())["status"] == "READY":
                    return host, port
            except OSError:
                continue
        time.sleep(0.05)
    raise TimeoutError(f"no server was ready within {READY_LIMIT:g} seconds")


def traced(repo: Path) -> dict[str, int | None]:
    """``trace`` in a process of the checkout's own Python."""
    python = repo / ".venv" / "bin" / "python"
    command = [str(python if python.exists() else sys.executable), str(Path(__file__).resolve()), "--trace"]
    done = subprocess.run(command, cwd=repo, env={**os.environ, "PYTHONPATH": str(repo)}, stdout=subprocess.PIPE)
    done.check_returncode()
    figures = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(figures, dict)
    return figures


def report(repo: Path) -> Iterator[str]:
    """The static figures, line by line."""
    tree = Tree(repo)
    rooms, files = tree.between_rooms(typed=True), tree.between_files(typed=False)
    folders = [room for room in tree.rooms if room.endswith("/")]
    yield f"modules at the top          {len(tree.rooms) - len(folders)}"
    yield f"folders at the top          {len(folders)}"
    yield f"arrows between them         {len(rooms.arrows)}"
    yield f"arrows upwards              {len(rooms.upwards)}{_list(f'{a} -> {b}' for a, b in rooms.upwards)}"
    yield f"floors                      {max(rooms.floors.values())}"
    for floor in range(max(rooms.floors.values()), 0, -1):
        yield f"  {floor:2} {' '.join(name for name, there in rooms.floors.items() if there == floor)}"
    circles = tree.between_folders().circles
    yield f"circles of folders          {len(circles)}{_list(map(' '.join, circles))}"
    yield f"circles of files            {len(files.circles)}{_list(map(' '.join, files.circles))}"
    typed = [circle for circle in tree.between_files(typed=True).circles if circle not in files.circles]
    yield f"  with TYPE_CHECKING        {len(typed)}{_list(map(' '.join, typed))}"
    alone = tree.satellites
    bare = [name for name in alone if name not in REASONS]
    yield f"files under {SHORT} lines with one importer  {len(alone)}, without a reason {len(bare)}"
    for name, importer in alone.items():
        yield f"  {name} -> {importer}: {REASONS.get(name, '-')}"


def _list(things: Iterable[str]) -> str:
    return "".join(f"\n    {thing}" for thing in things)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repo", type=Path, default=ROOT, help="the checkout to look at; this one by default")
    parser.add_argument("--static", action="store_true", help="only what the source says; nothing is run")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        print(json.dumps(trace()))
        return
    print("\n".join(report(options.repo.resolve())))
    if not options.static:
        found = traced(options.repo.resolve())
        print(f"one trivial prediction      {found['files']} files, {found['changes']} changes of file")
        print(f"  calls                     {found['calls']}, of them {found['own']} of this package")
        print(
            f"  to take a slot            {found['to_permit']} from create on, {found['acquiring']} of them in acquire"
        )


if __name__ == "__main__":
    main()
