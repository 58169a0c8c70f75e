"""From what the user named to what is served: MODEL, its folder, and what cog.yaml says about it.

MODEL is a Python file, ``file.py:Name``, or a folder with a cog.yaml. The worker starts in that folder; for a file, in
its nearest parent with a cog.yaml, else in its own folder. Of cog.yaml only what matters at run time is read: ``run``
(or the older ``predict``), ``train``, ``concurrency.max`` and ``environment``. What belongs to the build may be as it
likes. Nothing here imports the model: the worker finds out whether the class exists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from cog_trio.config.tracing import SECTION, section_warnings
from cog_trio.config.yaml_source import BadFile, SourceMark, read_yaml

FILE: Final = "cog.yaml"
KEYS: Final = ("run", "predict", "train", "concurrency", "environment")
BUILD_KEYS: Final = ("build", "image", "model", "weights", "tests", SECTION)  # of Cog, without a meaning at run time
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED: Final = re.compile(  # variables of the image or its platform; those that Cog lets nobody set
    r"PATH|LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|PYTHONUNBUFFERED|LIBRARY_PATH|HF_ENDPOINT|HF_HUB_ENABLE_HF_TRANSFER"
    r"|(R8|REPLICATE|CUDA|NVIDIA|NV|PGET|KUBERNETES)_.*"
)
UNFIT: Final = re.compile("[\0\ud800-\udfff]")  # what no variable can hold
MODEL_FILES: Final = ("predict.py", "run.py", "model.py", "main.py")  # what the file of a model is usually called
REFERENCE: Final = "a text like run.py:Runner"


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
class ModelTarget:
    """A model to serve: the worker's folder, references relative to it, and its configuration."""

    folder: Path
    predict: str | None
    train: str | None
    config: Config


def find_model(model: str, *, train_only: bool = False, config_file: str | None = None) -> ModelTarget:
    """Return what ``cog-trio serve MODEL`` means.

    Args:
      train_only: a file that MODEL names is that of the training.
      config_file: takes the place of the ``cog.yaml`` that is looked for; its folder is the worker's.

    Raises:
      BadModel: there is no such file or folder, or its cog.yaml is wrong.
    """
    if config_file is not None and not Path(config_file).is_file():
        raise BadModel(f"-f {config_file}: there is no such file")
    path = Path(model)
    if path.is_dir():
        return _of_folder(path, train_only, Path(config_file) if config_file is not None else path / FILE)
    name = ""
    if not path.is_file() and ":" in model:
        head, _, name = model.rpartition(":")
        path = Path(head)
        if path.is_dir():
            raise BadModel(f"{model}: a name stands behind a file, not behind a folder: {_offer(path, name)}")
        if not name.isidentifier():
            raise BadModel(f"{name!r} in {model} is not the name of a class or function")
    if not path.is_file():
        raise BadModel(f"there is no file or folder {_shown(path)}{_neighbour(path)}")
    if path.suffix != ".py":
        raise BadModel(f"{_shown(path)} is not a Python file")
    file = path.resolve()
    if config_file is not None:
        yaml = Path(config_file).resolve()
        if yaml.parent not in file.parents:
            raise BadModel(f"{_shown(path)} is not in the folder of {config_file}")
    else:
        yaml = next((parent / FILE for parent in file.parents if (parent / FILE).is_file()), file.parent / FILE)
    inside = str(file.relative_to(yaml.parent))
    if ":" in inside:
        raise BadModel(f"the name of {_shown(path)} holds a colon, which stands before a class")
    config = _config_beside(yaml, asked_for=config_file is not None)
    reference = f"{inside}:{name}" if name else inside
    return (
        ModelTarget(yaml.parent, None, reference, config)
        if train_only
        else ModelTarget(yaml.parent, reference, config.train, config)
    )


def _config_beside(yaml: Path, *, asked_for: bool) -> Config:
    """What the cog.yaml says that a model has in its folder. One that can't be used does not block a model that is
    named outright.

    Raises:
      BadModel: it can't be used, and was asked for.
    """
    try:
        return load_config(yaml) if yaml.is_file() else Config()
    except BadModel as error:
        if asked_for:
            raise
        return Config(warnings=(f"{error}; the file is left out, since the model is named without it",))


def load_config(path: Path) -> Config:
    """Read one cog.yaml.

    Raises:
      BadModel: it can't be read, or what it says makes no sense; with the line and the key where there is one.
    """
    try:
        return _config(read_yaml(path))
    except BadFile as error:
        raise BadModel(str(error)) from error


def environment(mark: SourceMark | None) -> dict[str, str]:
    """A list of ``NAME=value``, without those names that are reserved.

    Raises:
      BadFile: it is not such a list, or a name stands twice.
    """
    pairs: dict[str, str] = {}
    for entry in mark.items("a list of NAME=value") if mark is not None else ():
        name, equals, value = entry.raw.partition("=") if entry.is_a("str") else ("", "", "")
        if not equals or not NAME.fullmatch(name) or UNFIT.search(value):
            entry.wrong(f"must be NAME=value, not {_brief(entry)}")
        if name in pairs:
            entry.wrong(f"sets {name} a second time")
        pairs[name] = value
    return {name: value for name, value in pairs.items() if not RESERVED.fullmatch(name)}


def reserved_names(mark: SourceMark | None) -> Iterator[str]:
    """A warning for each variable that ``environment`` leaves out."""
    for entry in mark.items() if mark is not None else ():
        name = entry.raw.partition("=")[0]
        if RESERVED.fullmatch(name):
            yield f"{entry.path}:{entry.line}: environment sets {name}, which belongs to the image: it is left out"


def reference(mark: SourceMark | None) -> str | None:
    """The reference of a model or of its training, None where nothing is said.

    Raises:
      BadFile: it does not look like ``file.py`` or ``file.py:Name``.
    """
    if mark is None or mark.empty:
        return None
    if mark.is_a("seq"):
        mark.wrong(f"must be {REFERENCE}; commands of the image belong to build.run")
    text = mark.text(REFERENCE)
    file, colon, name = text.partition(":")
    if not file.endswith(".py") or (colon and not name.isidentifier()):
        mark.wrong(f"must be {REFERENCE}, not {text!r}")
    return text


def _config(document: SourceMark) -> Config:
    fields = document.fields("a mapping, like run: run.py:Runner")
    document.slips(fields, KEYS, BUILD_KEYS)
    _check_age(fields)
    run, predict, train = (reference(fields.get(key)) for key in ("run", "predict", "train"))
    if run is not None and predict is not None:
        fields["predict"].wrong("is the older spelling of run, and both are there: keep run")
    variables = fields.get("environment")
    return Config(
        run if predict is None else predict,
        train,
        _concurrency(fields.get("concurrency")),
        environment(variables),
        (*reserved_names(variables), *section_warnings(fields.get(SECTION))),
    )


def _check_age(fields: Mapping[str, SourceMark]) -> None:
    """Name the format of Cog before 0.1 as what it is.

    Raises:
      BadFile: it is that.
    """
    variables, model = fields.get("environment"), fields.get("model")
    if variables is not None and variables.is_a("map"):
        variables.wrong("is a mapping, as before Cog 0.1: its keys are those of build now, and model is run")
    if model is not None and model.is_a("str") and not fields.keys() & {"run", "predict", "train"}:
        model.wrong(f"names the model as before Cog 0.1: write run: {model.raw}, for a class with a method run")


def _concurrency(section: SourceMark | None) -> int | None:
    if section is None:
        return None
    if section.is_a("int"):
        mark: SourceMark | None = section
    else:
        fields = section.fields("a mapping, with concurrency.max in it")
        section.slips(fields, ("max",), ("default_target",))
        mark = fields.get("max")
    if mark is None or mark.empty:
        return None
    value = mark.value() if mark.is_a("int") else None
    if not isinstance(value, int) or value < 1:
        mark.wrong(f"must be a whole number, 1 or more, not {_brief(mark)}")
    return value


def _of_folder(path: Path, train_only: bool, yaml: Path) -> ModelTarget:
    if not yaml.is_file():
        raise BadModel(f"no {FILE} in {_shown(path)}: {_offer(path)}")
    config = load_config(yaml)
    predict = None if train_only else config.predict
    if predict is None and config.train is None:
        what = "training: it has no train" if train_only else "model: it has none of run, predict and train"
        raise BadModel(f"{yaml} names no {what}")
    folder = yaml.resolve().parent
    for named in (predict, config.train):
        if named is not None and not (folder / named.partition(":")[0]).is_file():
            raise BadModel(f"{yaml} names {named}, but there is no such file")
    return ModelTarget(folder, predict, config.train, config)


def _offer(folder: Path, name: str = "") -> str:
    """What can be named in a folder instead."""
    if name and (folder / FILE).is_file():
        return f"{folder} is named alone, its {FILE} says which class is meant"
    models = [folder / file for file in MODEL_FILES if (folder / file).is_file()]
    models.sort(key=lambda file: not _defines(file, name))  # stable: the usual names first among equals
    if not models:
        return "name a Python file, or start a model here by cog-trio init"
    file = f"{models[0]}{f':{name}' if name.isidentifier() else ''}"
    return f"name its file, as in cog-trio serve {file}" + ("" if name else ", or start a model by cog-trio init")


def _defines(file: Path, name: str) -> bool:
    """Whether a file seems to define a class or function of this name."""
    try:
        return (
            re.search(rf"^(class|(async )?def) {re.escape(name)}\b", file.read_text("utf-8"), re.MULTILINE) is not None
        )
    except (OSError, ValueError):
        return False


def _neighbour(path: Path) -> str:
    """A file of nearly the same name, if there is one."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py" or entry.is_dir()]
    except OSError:
        return ""
    near = get_close_matches(path.name, names, 1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _brief(mark: SourceMark) -> str:
    """A wrong value, short enough for one line."""
    return repr(mark.raw[:60]) if mark.raw else "a list or mapping" if mark.is_a("seq", "map") else "nothing"


def _shown(path: Path) -> str:
    return os.fspath(path) if str(path) != "." else "the current folder"
