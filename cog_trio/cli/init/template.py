"""The files that ``cog-trio init`` writes: a small model that runs, with what may be changed said beside it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

MODEL: Final = '''\
"""The model: what it loads once, and what it does with one request."""

from cog import BaseRunner, Input


class Runner(BaseRunner):
    def setup(self) -> None:
        """Runs once, before the first prediction: load weights here and keep them on self."""
        self.greeting = "hello"

    def run(
        self,
        name: str = Input(description="Who is greeted"),
        times: int = Input(description="How often", default=1, ge=1, le=10),
    ) -> str:
        """Runs for each prediction.

        The parameters are the inputs of the API and are checked before this is called; what is returned is the output.
        `Path` takes and gives files, `Iterator[str]` with `yield` streams, `async def` runs several at once.
        """
        print(f"greeting {name}")  # what is printed are the logs of this prediction
        return " ".join([f"{self.greeting} {name}"] * times)
'''
CONFIG: Final = """\
# What is served: a file, and the class in it.
run: "run.py:Runner"

# Several predictions at once; the model's run must be async then.
# concurrency:
#   max: 4

# Variables that the model sees; what is set already wins.
# environment:
#   - NAME=value

# What an image of this model is made from, by `cog build` or `cog-trio dockerfile`.
build:
  python_version: "{python}"
  python_requirements: requirements.txt
  # system_packages:
  #   - ffmpeg
"""
REQUIREMENTS: Final = """\
# What run.py imports besides cog, one a line, with its version: numpy==2.1.0
"""
TEST: Final = '''\
"""Tests of the model: a real server with the model in it, for as long as the block.

They need `pip install 'cog-trio[test]'`, which brings pytest and the fixture serve_model.
"""

import pytest


@pytest.mark.trio
async def test_it_greets(serve_model):
    async with serve_model() as server:
        reply = await server.predict({"name": "world", "times": 2})
        assert reply.json()["output"] == "hello world hello world"
        assert "greeting world" in reply.json()["logs"]


@pytest.mark.trio
async def test_it_refuses_what_makes_no_sense(serve_model):
    async with serve_model() as server:
        assert (await server.predict({"name": "world", "times": 11})).status_code == 422
        assert (await server.predict({})).status_code == 422
'''
IGNORED: Final = """\
# What stays out of the image.
.git
.venv
.env
__pycache__
*.pyc
.pytest_cache
.mypy_cache
.ruff_cache
Dockerfile
test_*.py
"""


def files() -> Mapping[str, str]:
    """Names and texts of all files."""
    return {
        "run.py": MODEL,
        "cog.yaml": CONFIG.format(python=f"{sys.version_info.major}.{sys.version_info.minor}"),
        "requirements.txt": REQUIREMENTS,
        "test_run.py": TEST,
        ".dockerignore": IGNORED,
    }
