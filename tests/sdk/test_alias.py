"""The alias (D34): one set of module objects under two names, in every kind of process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cog_trio import _alias

pytestmark = pytest.mark.process

ROOT = Path(_alias.FOLDER).parent.parent


def python(*arguments: str, cwd: Path, path: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter whose PYTHONPATH is that of a worker, then ``path``."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([_alias.FOLDER, *(path or []), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, timeout=50
    )


SAME = """\
import sys
import cog.types
import cog, cog.server.exceptions as exceptions, cog.schema
from cog import Path
import cog_trio.sdk, cog_trio.sdk.types, cog_trio.sdk.schema
assert cog is cog_trio.sdk
assert cog.types is cog_trio.sdk.types is sys.modules["cog.types"]
assert cog.schema is cog_trio.sdk.schema
assert cog_trio.sdk.types.__spec__.name == "cog_trio.sdk.types"
assert exceptions.CancelationException is cog.CancelationException
assert Path is cog_trio.sdk.Path
from cog import files
import cog.files, cog.server.errors
assert files is cog.files is cog_trio.sdk.legacy.files
assert cog.server.errors is cog_trio.sdk.legacy.server.errors
try:
    import cog.nothing
except ModuleNotFoundError as error:
    assert error.name == "cog.nothing", error
else:
    raise AssertionError
import importlib.metadata, coglet
assert coglet.__version__ == cog.__version__
assert coglet.CancelationException is cog.CancelationException
assert coglet._sdk.current_scope is cog.current_scope
assert coglet.__build__.version == cog.__version__
try:
    coglet.server._run_worker()
except RuntimeError as error:
    assert "cog_trio.worker" in str(error)
print("same")
"""


@pytest.mark.covers("D34")
def test_both_names_are_the_same_modules(tmp_path: Path) -> None:
    done = python("-c", SAME, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("same\n", "")


def test_the_alias_wins_over_an_installed_cog(tmp_path: Path) -> None:
    for name in ("cog", "coglet"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("raise RuntimeError('the installed one')")
        (tmp_path / "site" / name / "types.py").write_text("raise RuntimeError('the installed one')")
    done = python("-c", SAME, cwd=tmp_path, path=[str(tmp_path / "site")])
    assert (done.stdout, done.stderr) == ("same\n", "")


SPAWNED = """\
import multiprocessing
import cog
from cog.types import Path, Secret

def child(queue, path, secret):
    import cog_trio.sdk
    queue.put((type(path) is cog_trio.sdk.Path, cog.types.Path is Path, secret, cog.__version__))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, Path("a"), Secret("k")))
    process.start()
    print(queue.get(timeout=40) == (True, True, Secret("k"), cog.__version__))
    process.join()
"""


def test_spawned_children_have_it_too(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SPAWNED)
    done = python("main.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_sys_path_alone_is_enough(tmp_path: Path) -> None:
    code = f"import sys; from cog_trio import _alias; _alias.put_on_path(); assert sys.path[1] == {_alias.FOLDER!r}\n"
    (tmp_path / "main.py").write_text(code + SPAWNED)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=50
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_python_m_on_an_alias_module(tmp_path: Path) -> None:
    (tmp_path / "cog.yaml").write_text("run: my-model.py\n")
    (tmp_path / "my-model.py").write_text("class Runner:\n    def run(self, x: int) -> str: ...\n")
    done = python("-m", "cog.command.openapi_schema", cwd=tmp_path)
    assert '"x-order": 0' in done.stdout
    assert done.stderr == ""
    assert done.returncode == 0
    (tmp_path / "my-model.py").write_text("raise RuntimeError('broken')")
    done = python("-m", "cog.command.openapi_schema", cwd=tmp_path)
    assert "broken" in done.stderr
    assert done.stdout == ""
    assert done.returncode != 0


def test_python_m_cog_server_http_is_our_server(tmp_path: Path) -> None:
    ours = python("-m", "cog_trio.server.http", "--help", cwd=tmp_path)
    theirs = python("-m", "cog.server.http", "--help", cwd=tmp_path)
    assert theirs.returncode == 0
    assert "--await-explicit-shutdown" in theirs.stdout
    assert theirs.stdout == ours.stdout


@pytest.mark.parametrize("name", ["cog", "coglet"])
def test_thin_packages_are_where_the_path_points(name: str) -> None:
    assert (Path(_alias.FOLDER) / name / "__init__.py").is_file()
