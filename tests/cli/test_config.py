"""MODEL and cog.yaml: what is served from where, and one line for what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_trio.cli.config import BadModel, find, load


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "predict.py").touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "model.py").touch()
    return tmp_path


def _yaml(folder: Path, text: str) -> Path:
    file = folder / "cog.yaml"
    file.write_text(text)
    return file


def test_file_alone_is_served_from_its_own_folder(folder: Path) -> None:
    target = find("deep/er/model.py")
    assert (target.folder, target.predict, target.train) == (folder / "deep" / "er", "model.py", None)


def test_D35_file_is_served_from_its_nearest_parent_with_a_cog_yaml(folder: Path) -> None:
    _yaml(folder, "run: predict.py:Other\nconcurrency:\n  max: 3\n")
    target = find("deep/er/model.py:Runner")
    assert (target.folder, target.predict) == (folder, "deep/er/model.py:Runner")
    assert target.config.settings() == {"max_concurrency": 3}


@pytest.mark.parametrize("model", [".", "../{name}", "{path}"])
def test_folder_is_served_as_its_cog_yaml_says(folder: Path, model: str) -> None:
    _yaml(folder, "build: {gpu: true}\nrun: predict.py:Runner\ntrain: predict.py:train\n")
    target = find(model.format(name=folder.name, path=folder))
    assert (target.folder, target.predict, target.train) == (folder, "predict.py:Runner", "predict.py:train")


def test_train_alone(folder: Path) -> None:
    _yaml(folder, "run: predict.py:Runner\ntrain: deep/er/model.py:train\n")
    target = find(".", train_only=True)
    assert (target.folder, target.predict, target.train) == (folder, None, "deep/er/model.py:train")
    target = find("predict.py:Trainer", train_only=True)
    assert (target.folder, target.predict, target.train) == (folder, None, "predict.py:Trainer")


@pytest.mark.parametrize(
    ("text", "train_only", "words"),
    [
        ("run: predict.py\n", True, "names no training"),
        ("build: {}\n", False, "names no model"),
        ("run: predict.py\ntrain: gone.py:train\n", False, "gone.py"),
    ],
)
def test_what_cog_yaml_does_not_name(folder: Path, text: str, train_only: bool, words: str) -> None:
    _yaml(folder, text)
    with pytest.raises(BadModel, match=words):
        find(".", train_only=train_only)


def test_predict_is_the_older_spelling(folder: Path) -> None:
    config = load(_yaml(folder, "predict: predict.py:Predictor\n"))
    assert config.predict == "predict.py:Predictor"
    assert len(config.warnings) == 1


def test_environment_of_cog_yaml_gives_way_to_what_is_set(folder: Path) -> None:
    config = load(_yaml(folder, "environment:\n  - A=1\n  - B=x=y\n  - C=\n"))
    assert config.unset({"A": "own"}) == {"B": "x=y", "C": ""}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (".", "no cog.yaml"),
        ("deep", "no cog.yaml"),
        ("missing.py", "missing.py"),
        ("missing.py:Runner", "missing.py"),
        ("predict.py:not a name", "not a name"),
        ("cog.txt", "cog.txt"),
    ],
)
def test_bad_model_is_one_line(folder: Path, model: str, words: str) -> None:
    with pytest.raises(BadModel, match=words) as caught:
        find(model)
    assert "\n" not in str(caught.value)


def test_file_of_another_kind_is_refused(folder: Path) -> None:
    (folder / "model.txt").touch()
    with pytest.raises(BadModel, match="not a Python file"):
        find("model.txt")


def test_colon_in_a_folder_name_is_refused(folder: Path) -> None:
    (folder / "a:b").mkdir()
    (folder / "a:b" / "model.py").touch()
    _yaml(folder, "run: predict.py\n")
    with pytest.raises(BadModel, match="colon"):
        find("a:b/model.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no model"),
        ("- a\n", "mapping"),
        ("run: [\n", "not valid YAML: line 2, column 1: "),
        ("run: 5\n", "run must be"),
        ("run: ''\n", "run must be"),
        ("run: a.py\npredict: b.py\n", "keep run"),
        ("run: missing.py:Runner\n", "no such file"),
        ("run: predict.py\nconcurrency: 3\n", "concurrency.max"),
        ("run: predict.py\nconcurrency: {max: 0}\n", "concurrency.max"),
        ("run: predict.py\nconcurrency: {max: true}\n", "concurrency.max"),
        ("run: predict.py\nenvironment: {A: b}\n", "list of NAME=value"),
        ("run: predict.py\nenvironment: [A]\n", "NAME=value"),
        ("run: predict.py\nenvironment: ['1=2']\n", "NAME=value"),
        ("run: predict.py\nenvironment: [5]\n", "NAME=value"),
        ("x: \x00\n", "not valid YAML"),
        ("a: " + "[" * 5_000 + "\n", "not valid YAML"),
    ],
)
def test_bad_cog_yaml_is_one_line(folder: Path, text: str, words: str) -> None:
    _yaml(folder, text)
    with pytest.raises(BadModel, match=words) as caught:
        find(".")
    assert "\n" not in str(caught.value)


def test_cog_yaml_that_is_too_large_is_not_parsed(folder: Path) -> None:
    with pytest.raises(BadModel, match="larger"):
        load(_yaml(folder, "#" * (2**20 + 1)))
