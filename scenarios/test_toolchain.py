"""An image that Cog's own tools build with ``COG_SDK_WHEEL=$(cog-trio wheel)``, and what these tools then ask of it.

There is no docker here: ``cog_image.py`` carries the generated Dockerfile out in a root of its own, once, and plays
what `cog run`, `cog train`, `cog serve` and `cog exec` do.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from cog_trio._version import SDK_VERSION, __version__
from scenarios.container import need

PLAY: Final = Path(__file__).parent / "cog_image.py"
PLAYED: Final = ("unshare", "--mount", "--net", "--fork", "--kill-child", "--propagation", "private", "--")
PREDICT: Final = """\
import os, sys
from cog import BasePredictor, Input

class Predictor(BasePredictor):
    def setup(self):
        print("loading the weights")
        print("a warning of a library", file=sys.stderr)
        if "BROKEN" in os.environ:
            raise RuntimeError("there are no weights")

    def predict(self, text: str, numbers: list[int] = Input(default=[1])) -> str:
        print("thinking")
        return "hello " + text
"""
TRAIN: Final = "def train(steps: int) -> str:\n    return f'{steps} steps'\n"


def _write_words(folder: Path) -> None:
    folder.mkdir()
    info = "words-1.0.dist-info"
    files = {
        "words.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: words\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / "words-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))


def _play(scratch: Path) -> dict[str, Any]:
    """Build the image and run its containers; what was found, by story."""
    need()
    if subprocess.run([*PLAYED, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made")
    for name in ("layer", "model", "cog_build", "tini", "uv", "debs"):
        (scratch / name).mkdir()
    (scratch / "model" / "predict.py").write_text(PREDICT)
    (scratch / "model" / "train.py").write_text(TRAIN)
    (scratch / "cog_build" / "requirements.txt").write_text("words==1.0\n")
    _write_words(scratch / "wheels")
    tini = shutil.which("tini")
    assert tini is not None
    shutil.copy(tini, scratch / "tini" / "tini")
    for name in ("uv", "uvx"):
        shutil.copy(Path(sys.executable).parent / name, scratch / "uv" / name)
    command = [sys.executable, "-m", "cog_trio", "wheel", "-o", str(scratch / "cog_build")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    done = subprocess.run([*PLAYED, sys.executable, PLAY, scratch], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    stories: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return stories


@pytest.mark.timeout(150)
def test_cogs_own_tools_get_what_they_expect(tmp_path: Path) -> None:
    """Given an image of Cog's build with the stand-in wheel, when each tool starts it, then it gets what it expects."""
    found = _play(tmp_path)
    _expect_run(found["run"])
    _expect_broken(found["broken"])
    _expect_train(found["train"])
    _expect_serve(found["serve"])
    _expect_exec(found)


def _expect_run(run: dict[str, Any]) -> None:
    """`cog run`, at the level of warnings: health, document, prediction and fault are what its Go code decodes, what
    setup prints is on the terminal and what the prediction prints is not, and `docker stop` ends it with 0."""
    assert run["health"]["status"] == "READY"
    assert run["health"]["version"]["cog_trio"] == __version__
    assert run["ready"]
    status, prediction = run["prediction"]
    assert (status, prediction["status"], prediction["output"]) == (200, "succeeded", "hello you")
    assert prediction["logs"] == "thinking\n"
    status, body = run["wrong"]
    assert (status, [fault["loc"] for fault in body["detail"]]) == (422, [["body", "input", "numbers/1"]])
    replies = run["document"]["paths"]["/predictions"]["post"]["responses"]["200"]
    assert replies["content"]["application/json"]["schema"]
    assert "loading the weights" in run["log"]
    assert "a warning of a library" in run["log"]
    assert "thinking" not in run["log"]
    assert run["code"] == 0


def _expect_broken(broken: dict[str, Any]) -> None:
    """A setup that fails says why on the terminal."""
    assert broken["status"] == "SETUP_FAILED"
    assert "loading the weights" in broken["log"]
    assert "RuntimeError: there are no weights" in broken["log"]
    assert broken["code"] == 0


def _expect_train(train: dict[str, Any]) -> None:
    status, training = train["training"]
    assert (status, training["status"], training["output"]) == (200, "succeeded", "3 steps")
    assert train["code"] == 0


def _expect_serve(serve: dict[str, Any]) -> None:
    """`cog serve`: SIGTERM is ignored, Ctrl-C ends it."""
    assert serve["prediction"][0] == 200
    assert "SIGTERM is ignored" in serve["log"]
    assert serve["code"] == 0


def _expect_exec(found: dict[str, Any]) -> None:
    """What the build itself calls in the image, and `cog exec`."""
    assert (found["import"]["code"], found["import"]["log"]) == (0, f"{SDK_VERSION}\n")
    assert found["freeze"]["code"] == 0
    assert f"cog @ file:///tmp/cog-{SDK_VERSION}-py3-none-any.whl" in found["freeze"]["log"]
    assert found["schema"]["code"] == 0
    document = json.loads(found["schema"]["log"])
    assert list(document["components"]["schemas"]["Input"]["properties"]) == ["text", "numbers"]
