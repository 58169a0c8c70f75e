"""From what the user named to what is served: MODEL, its folder, and what cog.yaml says about it.

MODEL is a Python file, ``file.py:Name``, or a folder with a cog.yaml. The folder is where the worker starts
(D35): the folder itself, or for a file its nearest parent with a cog.yaml, else its own folder. Of cog.yaml only
what matters at run time is read: ``run`` (or the older ``predict``), ``train``, ``concurrency.max`` and
``environment``. Nothing here imports the model: whether the class exists is found out by the worker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

FILE: Final = "cog.yaml"
MAX_FILE: Final = 2**20  # bytes of a cog.yaml


class BadModel(ValueError):
    """MODEL or its cog.yaml can't be used; the text is one line for the user."""


@dataclass(frozen=True)
class Config:
    """What cog.yaml says about running the model."""

    predict: str | None = None
    train: str | None = None
    max_concurrency: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """What it says for the table of settings."""
        return {} if self.max_concurrency is None else {"max_concurrency": self.max_concurrency}

    def unset(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Its environment, without what is set already: that wins."""
        return {name: value for name, value in self.environment.items() if name not in environ}


@dataclass(frozen=True)
class Target:
    """A model to serve: the worker's folder, references relative to it, and its configuration."""

    folder: Path
    predict: str | None
    train: str | None
    config: Config


def find(model: str, *, train_only: bool = False) -> Target:
    """What ``cog-trio serve MODEL`` means. With ``train_only`` a file that MODEL names is that of the training.

    Raises:
      BadModel: there is no such file or folder, or its cog.yaml is wrong.
    """
    path = Path(model)
    if path.is_dir():
        if not (path / FILE).is_file():
            raise BadModel(f"no {FILE} in {_shown(path)}: name a Python file, or a folder with a {FILE}")
        config = load(path / FILE)
        predict = None if train_only else config.predict
        if predict is None and config.train is None:
            what = "training: it has no train" if train_only else "model: it has none of run, predict and train"
            raise BadModel(f"{path / FILE} names no {what}")
        for named in (predict, config.train):
            if named is not None and not (path / named.partition(":")[0]).is_file():
                raise BadModel(f"{path / FILE} names {named}, but there is no such file")
        return Target(path.resolve(), predict, config.train, config)
    name = ""
    if not path.is_file() and ":" in model:
        head, _, name = model.rpartition(":")
        path = Path(head)
        if not name.isidentifier():
            raise BadModel(f"{name!r} in {model} is not the name of a class or function")
    if not path.is_file():
        raise BadModel(f"there is no file or folder {_shown(path)}")
    if path.suffix != ".py":
        raise BadModel(f"{_shown(path)} is not a Python file")
    file = path.resolve()
    folder = next((parent for parent in file.parents if (parent / FILE).is_file()), file.parent)
    inside = str(file.relative_to(folder))
    if ":" in inside:
        raise BadModel(f"the name of {_shown(path)} holds a colon, which stands before a class")
    config = load(folder / FILE) if (folder / FILE).is_file() else Config()
    reference = f"{inside}:{name}" if name else inside
    return Target(folder, None, reference, config) if train_only else Target(folder, reference, config.train, config)


def load(path: Path) -> Config:
    """Read one cog.yaml.

    Raises:
      BadModel: it can't be read, or what it says makes no sense.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise BadModel(f"{path} is larger than {MAX_FILE} bytes")
        document = yaml.safe_load(data)
    except OSError as error:
        raise BadModel(f"can't read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadModel(f"{path} is not valid YAML: {_fault(error)}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise BadModel(f"{path} must hold a mapping")
    run, predict, train = (_text(path, document, key) for key in ("run", "predict", "train"))
    if run is not None and predict is not None:
        raise BadModel(f"{path} has both run and predict: keep run")
    warnings = () if predict is None else (f"{path}: predict is the older spelling of run",)
    return Config(
        run if predict is None else predict,
        train,
        _concurrency(path, document.get("concurrency")),
        _environment(path, document.get("environment")),
        warnings,
    )


def _fault(error: Exception) -> str:
    """What is wrong with a text that is no YAML, and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', None) or 'unreadable'}"


def _text(path: Path, document: dict[str, Any], key: str) -> str | None:
    value = document.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    raise BadModel(f"{path}: {key} must be a text like predict.py:Runner")


def _concurrency(path: Path, section: Any) -> int | None:
    if section is None:
        return None
    value = section.get("max") if isinstance(section, dict) else "?"
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise BadModel(f"{path}: concurrency.max must be a whole number, 1 or more")


def _environment(path: Path, section: Any) -> dict[str, str]:
    if section is None:
        return {}
    if not isinstance(section, list):
        raise BadModel(f"{path}: environment must be a list of NAME=value")
    pairs: dict[str, str] = {}
    for entry in section:
        name, equals, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise BadModel(f"{path}: {entry!r} in environment is not NAME=value")
        pairs[name] = value
    return pairs


def _shown(path: Path) -> str:
    return os.fspath(path) if str(path) != "." else "the current folder"
