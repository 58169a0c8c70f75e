"""A model from its first day: ``init`` writes it, ``doctor`` finds it well, its test passes, it is served; and old
models under the eyes of ``doctor``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from scenarios.places import MODELS, SPARED

OLD = """\
from cog import BasePredictor, Input


class Predictor(BasePredictor):
    def setup(self):
        print("set up")
        self.word = "old"

    def predict(self, text: str = Input(description="any")) -> str:
        return self.word + text
"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


async def _cog_trio(*arguments: str, cwd: Path, module: str = "cog_trio") -> Ended:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COG_", "PYTEST_"))}
    environ["PYTEST_ADDOPTS"] = SPARED
    with trio.fail_after(100):
        done = await trio.run_process(
            [sys.executable, "-m", module, *arguments],
            env=environ,
            cwd=cwd,
            check=False,
            capture_stdout=True,
            capture_stderr=True,
            stdin=subprocess.DEVNULL,
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.timeout(240)
async def test_a_new_model_is_well_tested_and_served(tmp_path: Path) -> None:
    """Given an empty folder, when init has written a model, then doctor has nothing to say, also after setup, its own
    test passes, and it predicts."""
    made = await _cog_trio("init", "my model", cwd=tmp_path)
    assert (made.code, made.err) == (0, "")
    folder = tmp_path / "my model"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".dockerignore",
        "cog.yaml",
        "requirements.txt",
        "run.py",
        "test_run.py",
    ]
    well = await _cog_trio("doctor", "--setup", cwd=folder)
    assert (well.code, well.out) == (0, "")
    assert well.err.endswith("cog-trio: .: loads and is set up\n")
    tested = await _cog_trio("-q", "-p", "no:cacheprovider", "--rootdir", ".", cwd=folder, module="pytest")
    assert tested.code == 0, tested
    assert "2 passed" in tested.out
    predicted = await _cog_trio("run", ".", "-i", "name=world", "-i", "times=2", cwd=folder)
    assert (predicted.code, predicted.out.strip()) == (0, "hello world hello world"), predicted


async def test_an_old_model_passes_as_it_is_and_can_be_mended(tmp_path: Path) -> None:
    """Given a model of an older generation, when doctor looks at it, then it passes with advice; when it may fix, the
    old names are gone, the model still loads, and there is nothing left to fix."""
    (tmp_path / "predict.py").write_text(OLD)
    (tmp_path / "cog.yaml").write_text("predict: predict.py\n")
    before = await _cog_trio("doctor", cwd=tmp_path)
    assert before.code == 0
    assert before.out.count(": deprecated: ") == before.out.count("[--fix]") == before.out.count("\n") == 4, before.out
    assert (tmp_path / "predict.py").read_text() == OLD
    fixed = await _cog_trio("doctor", "--fix", "--setup", cwd=tmp_path)
    assert fixed.code == 0, fixed
    assert "-class Predictor(BasePredictor):\n+class Runner(BaseRunner):\n" in fixed.out
    assert "set up\n" in fixed.err
    assert fixed.err.endswith("loads and is set up\n")  # and nothing is left to say


async def test_what_does_not_load_is_a_problem_with_its_place(tmp_path: Path) -> None:
    """Given models that can't be imported or fail in setup, when doctor looks at them, then exit 1 and the reasons."""
    (tmp_path / "broken.py").write_text("def f():\n    import no_such_module\nf()\n")
    broken = await _cog_trio("doctor", "broken.py", cwd=tmp_path)
    assert broken.code == 1
    assert "broken.py:2: problem: ModuleNotFoundError: No module named 'no_such_module'" in broken.out
    assert broken.err == "cog-trio: broken.py: 1 to mend\n", "it is told once"
    assert "; install it beside cog-trio: pip install no_such_module\n" in broken.out
    early = await _cog_trio("doctor", "--setup", str(MODELS / "bad_setup.py"), cwd=tmp_path)
    assert early.code == 1
    assert "problem: " in early.out
