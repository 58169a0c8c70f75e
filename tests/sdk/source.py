"""Models from source text: written to a folder of their own, loaded as the worker loads them, forgotten afterwards."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cog_trio import _alias
from cog_trio.inputs.validation import InvalidInput, Validator
from cog_trio.worker.model.input_values import coerce
from cog_trio.worker.model.load import LoadedModel, load_model

PRELUDE = """\
import dataclasses, enum, functools, pathlib, typing
from typing import *
from cog import *
import cog
"""


class Models:
    """Writes and loads model files below one folder, which is the working folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    def write(self, source: str, name: str | None = None) -> str:
        file = self.folder / (name or f"model_{next(self._numbers)}.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return str(file.relative_to(self.folder))

    def load(self, source: str, name: str = "Runner", **options: Any) -> LoadedModel:
        return load_model(f"{self.write(PRELUDE + source)}:{name}", **options)

    def run(self, parameters: str, before: str = "", returns: str = "Any", **options: Any) -> LoadedModel:
        """A Runner whose ``run`` has these parameters and gives them back."""
        method = f"def run(self, {parameters}) -> {returns}:\n        return locals()\n"
        source = f"{before}\nclass Runner(BaseRunner):\n    {method}"
        return self.load(source, **options)


def opened_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Models]:
    """A `Models`; what it puts into the interpreter is taken out again."""
    _alias.install()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["worker", "1", "2"])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = dict(sys.modules)
    yield Models(folder)
    for name in set(sys.modules) - set(before):
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and file.startswith(str(folder.resolve())):
            del sys.modules[name]


def input_of(model: LoadedModel, name: str = "x") -> dict[str, Any]:
    """The property of an input, without title and x-order."""
    found = dict(model.document["components"]["schemas"]["Input"]["properties"][name])
    found.pop("title", None)
    found.pop("x-order")
    return found


def is_listed(model: LoadedModel, name: str = "x") -> bool:
    return name in model.document["components"]["schemas"]["Input"].get("required", [])


def output_of(model: LoadedModel) -> dict[str, Any]:
    found = dict(model.document["components"]["schemas"]["Output"])
    assert found.pop("title") == "Output"
    return found


def arguments(model: LoadedModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """What ``run`` gets for a request's input: through the edge, the worker's conversion and the binding."""
    checked = Validator(model.document, model.inputs).check(json.dumps(given).encode())
    values = coerce(model.parameters, json.loads(bytes(checked.input)), {})
    args, kwargs = model.bind(values)
    positional = [parameter.name for parameter in model.parameters if parameter.positional]
    return {**dict(zip(positional, args, strict=True)), **kwargs}


def refusal(model: LoadedModel, given: Mapping[str, Any]) -> list[tuple[list[str], str, str]]:
    """Place, text and type of each fault of a request's input."""
    with pytest.raises(InvalidInput) as caught:
        Validator(model.document, model.inputs).check(json.dumps(given).encode())
    return [(fault["loc"], fault["msg"], fault["type"]) for fault in caught.value.faults]
