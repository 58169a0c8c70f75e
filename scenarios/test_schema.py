"""``cog-trio schema`` and ``python -m cog.command.openapi_schema``: the document on stdout, all else on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from cog_trio import _alias
from cog_trio.testing import ServeModel
from scenarios.places import EXAMPLES, MODELS

NOISY = """\
import os, sys
print("printed at import")
os.system("echo from a child")
from cog import BaseRunner
assert len(sys.argv) == 1, sys.argv
class Runner(BaseRunner):
    def setup(self): raise RuntimeError("never called")
    def run(self, x: int = 7) -> str: return os.environ["WORD"]
"""
BAD = """\
from cog import BaseRunner, Input
class Runner(BaseRunner):
    def run(self, a: bytes, b, c: str = Input(regex="["), d: int = 3) -> tuple: ...
"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


async def _run(arguments: Sequence[str], cwd: Path | None = None, **variables: str) -> Ended:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COG_")}
    with trio.fail_after(40):
        done = await trio.run_process(
            [sys.executable, *arguments],
            env={**environ, **variables},
            cwd=cwd,
            check=False,
            capture_stdout=True,
            capture_stderr=True,
            stdin=subprocess.DEVNULL,
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


async def _schema(*arguments: str, cwd: Path | None = None, **variables: str) -> Ended:
    return await _run(["-m", "cog_trio", "schema", *arguments], cwd, **variables)


async def test_the_document_is_the_one_that_is_served(serve_model: ServeModel) -> None:
    """Given a model, when its schema is printed, then it is what a server answers to /openapi.json."""
    printed = await _schema(str(EXAMPLES / "text"))
    assert (printed.code, printed.err) == (0, "")
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "text") as server:
            served = (await server.client.get("/openapi.json")).json()
    assert printed.document == served
    assert printed.document["paths"]["/predictions"]["post"]["x-cog-streaming"] is True


async def test_stdout_has_the_document_alone(tmp_path: Path) -> None:
    """Given a model that prints while it is imported, when its schema is printed from its folder, then stdout is the
    document, stderr what the model printed, and setup was not called."""
    (tmp_path / "predict.py").write_text(NOISY)
    (tmp_path / "cog.yaml").write_text("predict: predict.py\nenvironment:\n  - WORD=yes\n")
    done = await _schema(cwd=tmp_path)
    assert done.code == 0
    assert done.document["components"]["schemas"]["Input"]["properties"]["x"]["default"] == 7
    assert "printed at import\n" in done.err
    assert "from a child\n" in done.err
    assert "never called" not in done.err


async def test_a_model_that_does_not_load_is_exit_1_with_every_reason(tmp_path: Path) -> None:
    """Given bad parameters, when the schema is asked for, then exit 1, nothing on stdout, and one line that names
    each of them; given an error of the import, then also its place."""
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "broken.py").write_text("def f():\n    import no_such_module\nf()\n")
    bad = await _schema("bad.py", cwd=tmp_path)
    assert (bad.code, bad.out) == (1, "")
    *faults, last = bad.err.splitlines()
    assert last == "cog-trio: bad.py does not load: the faults are told above, a line each"
    assert [line.split("'")[1] for line in faults[:3]] == ["a", "b", "c"]
    for words in ("write for example b: str", "output type tuple"):
        assert words in bad.err
    assert "'d'" not in bad.err
    broken = await _schema("broken.py", cwd=tmp_path)
    assert (broken.code, broken.out) == (1, "")
    assert 'broken.py", line 2' in broken.err
    assert broken.err.splitlines()[-1].startswith("cog-trio: broken.py does not load: ModuleNotFoundError:")
    ended = await _schema("exits.py:Nobody", cwd=_written(tmp_path, "exits.py", "import os\nos._exit(3)\n"))
    assert (ended.code, ended.out) == (1, "")
    assert "3" in ended.err.splitlines()[-1]


def _written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder


@pytest.mark.covers("D38")
@pytest.mark.parametrize("arguments", [["missing.py"], ["--nonsense"], [str(MODELS)], ["a.py", "b.py"]])
async def test_D38_wrong_usage_is_one_line_and_exit_2(arguments: list[str]) -> None:
    """Given a wrong model or flag, when the schema is asked for, then one line says what is wrong, and exit 2."""
    done = await _schema(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


async def test_the_older_command_inside_of_a_worker_environment(tmp_path: Path) -> None:
    """Given the path that a worker has, when the older command is run in a model's folder, then the same document."""
    environ = {"PYTHONPATH": _alias.FOLDER, "COG_PREDICT_TYPE_STUB": "predict.py:Runner", "WORD": "yes"}
    (tmp_path / "predict.py").write_text(NOISY)
    older = await _run(["-m", "cog.command.openapi_schema"], tmp_path, **environ)
    assert older.code == 0
    assert sorted(older.err.splitlines()) == ["from a child", "printed at import"]
    assert older.document == (await _schema("predict.py", cwd=tmp_path, WORD="yes")).document
    (tmp_path / "predict.py").write_text(BAD)
    older = await _run(["-m", "cog.command.openapi_schema"], tmp_path, **environ)
    assert (older.code, older.out) == (1, "")
    assert "'a'" in older.err
    assert "output type tuple" in older.err
