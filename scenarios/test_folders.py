"""A person with a Cog model folder types ``cog-trio serve``, ``run``, ``doctor``: all of them work, or say why not, and
no file of the folder is changed. The folders are all examples, and such as people have written for years."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from cog_trio.testing import ServeModel
from scenarios.commands import run_command
from scenarios.places import EXAMPLES

SERVE: Final = ("-m", "cog_trio", "serve", "--port", "0")  # in the folder, without a MODEL
YAML: Final = """\
# Configuration for Cog ⚙️
build:
  gpu: true
  cuda: "11.8"
  python_version: "3.10"
  system_packages:
    - "libgl1-mesa-glx"
  python_packages:
    - "no-such-torch==2.0.1"
image: "r8.im/someone/model"
predict: "predict.py:Predictor"
"""
CLASSIC: Final = """\
# Prediction interface for Cog ⚙️
import base64
import os
import tempfile
from typing import Dict, List, Optional

from cog import BaseModel, BasePredictor, Input, Path

from helper import shout


class Output(BaseModel):
    text: str
    file: Optional[Path]
    scores: List[float]


class Predictor(BasePredictor):
    def setup(self) -> None:
        self.device = "cuda:0"

    def predict(
        self,
        prompt: str = Input(description="Input prompt", default="a photo of an astronaut"),
        image: Path = Input(description="Grayscale input image", default=None),
        images: List[Path] = Input(default=None),
        negative_prompt: Optional[str] = Input(default=None),
        scale: float = Input(description="Factor to scale image by", ge=0, le=10, default=1.5),
        scheduler: str = Input(default="DDIM", choices=["DDIM", "K_EULER", "PNDM"]),
        num_outputs: int = Input(default=1, choices=[1, 2, 4]),
        seed: int = Input(default=None),
    ) -> Output:
        out = Path(tempfile.mkdtemp(dir="SCRATCH")) / "out.txt"
        out.write_text(f"{prompt} {image and os.path.getsize(str(image))} {seed}")
        return Output(text=shout(prompt), file=out, scores=[scale] * num_outputs)
"""
STREAMS: Final = """\
import asyncio

from cog import AsyncConcatenateIterator, BasePredictor, Input


class Predictor(BasePredictor):
    async def setup(self) -> None:
        self.words = "the quick brown fox".split()

    async def predict(self, prompt: str, max_tokens: int = Input(default=3, ge=1)) -> AsyncConcatenateIterator[str]:
        for word in [prompt, *self.words][:max_tokens]:
            await asyncio.sleep(0)
            yield word + " "
"""
LEARNS: Final = """\
from typing import Optional

from cog import BasePredictor, ConcatenateIterator, Input, Path


class Predictor(BasePredictor):
    def setup(self, weights: Optional[Path] = None):
        self.word = weights.read_text() if weights else "base"

    def predict(self, prompt: str = Input(description="x")) -> ConcatenateIterator[str]:
        yield prompt
        yield " " + self.word
"""
TRAIN: Final = """\
from cog import BaseModel, Input, Path


class TrainingOutput(BaseModel):
    weights: Path


def train(data: Path = Input(description="data"), steps: int = Input(default=2)) -> TrainingOutput:
    weights = Path(str(data) + ".bin")
    weights.write_bytes(data.read_bytes()[::-1])
    return TrainingOutput(weights=weights)
"""
MISSING: Final = "import no_such_torch\n" + LEARNS
BUGGY: Final = """\
from cog import BasePredictor, Input


class Predictor(BasePredictor):
    def setup(self):
        self.weights = open("weights/model.safetensors")

    def predict(self, prompt: str = Input(description="p")) -> str:
        return prompt
"""
CONCURRENT: Final = YAML + "concurrency:\n  max: 4\n"


class Case(NamedTuple):
    files: dict[str, str] | str  # the folder's, or the name of an example
    input: str  # for -i
    value: Any  # the same as JSON, where it is not the text
    output: Any  # on the server; a text in it stands for what it begins with


CASES: Final = {
    "hello": Case("hello", "name=hi", {"name": "hi"}, "hello hi"),
    "image": Case("image", "image=@boat.png", None, "data:image/png;base64,"),
    "text": Case("text", "prompt=hi", {"prompt": "hi", "tokens": 1}, [" "]),
    "concurrent": Case("concurrent", "name=hi", {"name": "hi", "seconds": 0}, "hello hi"),
    "pipeline": Case("pipeline", "text=hi", {"text": "hi"}, ["HI (one of 1)"]),
    "train": Case("train", "word=hi", {"word": "hi"}, "hi"),
    "classic": Case(
        {"cog.yaml": YAML, "predict.py": CLASSIC, "helper.py": "def shout(text):\n    return text.upper()\n"},
        "prompt=hi",
        {"prompt": "hi"},
        {"text": "HI", "file": "data:text/plain;base64,aGkgTm9uZSBOb25l", "scores": [1.5]},
    ),
    "streams": Case({"cog.yaml": CONCURRENT, "predict.py": STREAMS}, "prompt=hi", {"prompt": "hi"}, ["hi ", "the "]),
    "learns": Case(
        {"cog.yaml": YAML + "train: train.py:train\n", "predict.py": LEARNS, "train.py": TRAIN},
        "prompt=hi",
        {"prompt": "hi"},
        ["hi", " base"],
    ),
}


def _folder(files: dict[str, str] | str, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    if isinstance(files, str):
        shutil.copytree(EXAMPLES / files, folder, ignore=shutil.ignore_patterns("__pycache__"))
        return folder
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text.replace("SCRATCH", str(tmp_path)))
    return folder


def _state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files; those that Python itself keeps beside a module are not the model's."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def _begins(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, str) and found.startswith(wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and all(map(_begins, found, wanted)) and len(found) >= len(wanted)
    return isinstance(found, dict) and found.keys() == wanted.keys() and {**found, **wanted} == found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_serve_run_and_doctor_work_and_change_no_file(
    case: Case, serve_model: ServeModel, tmp_path: Path
) -> None:
    """Given a folder, when one types serve, run and doctor in it, then each works and no file has changed."""
    folder = _folder(case.files, tmp_path)
    before = _state(folder)
    ended: dict[str, tuple[int, str, str]] = {}

    async def command(name: str, *arguments: str) -> None:
        ended[name] = await run_command(name, *arguments, temporary=tmp_path / name, cwd=folder)

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(command, "doctor")
            nursery.start_soon(command, "run", "-i", case.input, "-o", f"{tmp_path}/out/")
            async with serve_model("-", command=SERVE, cwd=folder) as server:
                value = case.value or {"image": CASES["image"].output + _text(EXAMPLES / "image" / "boat.png")}
                reply = (await server.predict(value)).json()
    assert reply["status"] == "succeeded", reply
    assert _begins(reply["output"], case.output), reply["output"]
    assert [code for code, _, _ in ended.values()] == [0, 0], ended
    assert ended["doctor"][1].count(": problem: ") == 0
    assert "cog-trio: .: loads" in ended["doctor"][2]
    assert os.listdir(tmp_path / "out")
    assert _state(folder) == before


@pytest.mark.parametrize(
    ("source", "why", "said"),
    [
        (
            MISSING,
            "No module named 'no_such_torch'",
            "install here what the model requires: pip install no-such-torch==2.0.1",
        ),
        (BUGGY, "No such file or directory: 'weights/model.safetensors'", ""),
    ],
    ids=["a package is missing", "a fault in setup"],
)
async def test_what_can_not_run_says_why(
    source: str, why: str, said: str, serve_model: ServeModel, tmp_path: Path
) -> None:
    """Given a folder that can't run here, when one types serve, run and doctor, then each says the reason, with the
    line of the model, and no file has changed."""
    folder = _folder({"cog.yaml": YAML, "predict.py": source}, tmp_path)
    before = _state(folder)
    ended: dict[str, tuple[int, str, str]] = {}

    async def command(name: str, *arguments: str) -> None:
        ended[name] = await run_command(name, *arguments, temporary=tmp_path / name, cwd=folder)

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(command, "doctor", "--setup")
            nursery.start_soon(command, "run", "-i", "prompt=hi")
            async with serve_model("-", command=SERVE, cwd=folder, status="SETUP_FAILED") as server:
                logs = (await server.health())["setup"]["logs"]
    place = f'{folder}/predict.py", line'
    assert why in logs
    assert place in logs
    assert "importlib" not in logs, "what is between us and the model's file"
    for code, out, err in ended.values():
        assert code == 1
        assert why in out + err
        assert place in err
    assert said in ended["doctor"][1]
    assert _state(folder) == before


def _text(path: Path) -> str:

    return base64.b64encode(path.read_bytes()).decode()
