"""Kinds of models that people have in public repositories, rebuilt in small: what each needs is served.

One folder and one server a kind; what can be seen without a server is in the tests of the loader. Each kind was served
by Cog 0.23.1 too: ``reference`` is what its prediction came to there.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from cog_trio.testing import ServeModel

JPEG: Final = "data:image/jpg;base64," + base64.b64encode(b"no picture").decode()


class Refusal(str):
    """The error with which a prediction fails in Cog 0.23.1, or a part of it."""


@dataclass(frozen=True)
class Kind:
    """A folder, a request, and what comes of it."""

    predict: str
    input: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    reference: Any = None  # the output of Cog 0.23.1; a Refusal where it has none
    yaml: str = "predict: predict.py:Predictor\n"
    logs: str = ""  # something that the logs of the run have
    setup: str = ""  # something that the logs of setup have
    training: tuple[dict[str, Any], Any] | None = None  # its input and what comes of it
    model: str = "."  # how it is named
    more: dict[str, str] = field(default_factory=dict)  # other files


CLASS: Final = "class Predictor(BasePredictor):\n"
HEAD: Final = "import os\nfrom typing import *\nfrom cog import *\n"
KINDS: Final = {
    "sync train beside async predict, concurrency as a number": Kind(
        f"{CLASS}    async def predict(self, x: int = 1) -> int:\n        return x\n",
        {"x": 3},
        3,
        3,  # and its trainings call predict() with the inputs of train()
        "predict: predict.py:Predictor\ntrain: train.py:train\nconcurrency: 32\n",
        training=({"data": "a"}, "a"),
        more={"train.py": "def train(data: str) -> str:\n    return data\n"},
    ),
    "bare ConcatenateIterator": Kind(
        f"{CLASS}    def predict(self) -> ConcatenateIterator:\n        yield 'a'\n        yield 'b'\n",
        output=["a", "b"],
        reference=["a", "b"],
        setup="old names of Cog are used (predict(), BasePredictor)",
    ),
    "bare Generator, and a private parameter": Kind(
        f"{CLASS}    def predict(self, __n: int = 1) -> Generator:\n        yield from range(__n)\n",
        {"__n": 2},
        [0, 1],
        Refusal("TypeError: Predictor.predict() got an unexpected keyword argument '__n'"),
    ),
    "a file of an unlisted type, and a text where a file is annotated": Kind(
        f"{CLASS}    def predict(self, image: Path) -> Path:\n"
        "        return os.path.basename(image).partition('.')[2]\n",
        {"image": JPEG},
        "jpg",
        "",
        logs="Warning: the output is of type str, but the annotation says a file: return Path(...)",
    ),
    "a cog.yaml that can't be used, beside a model that is named": Kind(
        f"{CLASS}    def predict(self, x: str = 'x') -> str:\n        return x\n",
        output="x",
        reference="x",
        yaml="environment:\n  python_version: '3.8'\nmodel: predict.py:Predictor\n",
        model="predict.py",
    ),
    "variables of the image": Kind(
        f"{CLASS}    def predict(self) -> str:\n"
        "        return os.environ['WORD'] + str(os.environ['PATH'] == '/nowhere')\n",
        output="yesFalse",
        reference=Refusal("KeyError: 'WORD'"),  # its build writes the variables into the image
        yaml="predict: predict.py:Predictor\nenvironment: [WORD=yes, PATH=/nowhere]\n",
    ),
}
REFUSED: Final = {
    "the first API of Cog": (
        "import cog\nclass Model(cog.Model):\n"
        "    @cog.input('x', type=int)\n    def predict(self, x):\n        return x\n",
        "@cog.input and cog.Model are of Cog before 0.1: write class Runner(cog.BaseRunner)",
    ),
    "its decorator alone": (
        "import cog\nclass Predictor:\n    @cog.input('x', type=int)\n    def predict(self, x):\n        return x\n",
        "@cog.input and cog.Model are of Cog before 0.1",
    ),
    "no self": (
        f"{HEAD}{CLASS}    def predict(x: int) -> int:\n        return x\n",
        "predict() is a method without self: write predict(self, x: ...)",
    ),
    "bytes": (
        f"{HEAD}{CLASS}    def predict(self) -> bytes:\n        return b''\n",
        "unsupported output type bytes: write the bytes into a file, and return its Path",
    ),
}


def test_what_the_reference_answers_is_kept() -> None:
    """An output that the reference has too is the same here, but for the one that names the suffix."""
    differ = {
        name
        for name, kind in KINDS.items()
        if not isinstance(kind.reference, Refusal) and kind.reference != kind.output
    }
    assert differ == {"a file of an unlisted type, and a text where a file is annotated"}


@pytest.mark.parametrize("name", KINDS)
async def test_it_is_served(serve_model: ServeModel, tmp_path: Path, name: str) -> None:
    """Given a model of such a kind, when it is served and asked, then it answers, and says what should be mended."""
    kind = KINDS[name]
    for file, text in {"predict.py": HEAD + kind.predict, "cog.yaml": kind.yaml, **kind.more}.items():
        (tmp_path / file).write_text(text)
    with trio.fail_after(60):
        async with serve_model(tmp_path / kind.model, cwd=tmp_path) as server:
            reply = (await server.predict(kind.input)).json()
            setup = (await server.health())["setup"]["logs"]
            if kind.training is not None:
                trained = (await server.client.post("/trainings", json={"input": kind.training[0]})).json()
                assert (trained["status"], trained["output"]) == ("succeeded", kind.training[1]), trained
    assert (reply["status"], reply["output"]) == ("succeeded", kind.output), reply
    assert kind.logs in reply["logs"]
    assert kind.setup in setup


@pytest.mark.parametrize("name", REFUSED)
async def test_it_is_told_what_to_write(serve_model: ServeModel, tmp_path: Path, name: str) -> None:
    """Given a model that can't be served as it is, when it is served, then setup fails with what to write."""
    source, words = REFUSED[name]
    (tmp_path / "predict.py").write_text(source)
    with trio.fail_after(60):
        async with serve_model(tmp_path / "predict.py", cwd=tmp_path, status="SETUP_FAILED") as server:
            assert words in (await server.health())["setup"]["logs"]
