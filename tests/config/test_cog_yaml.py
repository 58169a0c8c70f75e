"""MODEL and cog.yaml: what is served from where, and one line for what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_trio.config.cog_yaml import BadModel, find_model, load_config


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
    target = find_model("deep/er/model.py")
    assert (target.folder, target.predict, target.train) == (folder / "deep" / "er", "model.py", None)


@pytest.mark.covers("D35")
def test_D35_file_is_served_from_its_nearest_parent_with_a_cog_yaml(folder: Path) -> None:
    _yaml(folder, "run: predict.py:Other\nconcurrency:\n  max: 3\n")
    target = find_model("deep/er/model.py:Runner")
    assert (target.folder, target.predict) == (folder, "deep/er/model.py:Runner")
    assert target.config.settings() == {"max_concurrency": 3}


@pytest.mark.parametrize("model", [".", "../{name}", "{path}"])
def test_folder_is_served_as_its_cog_yaml_says(folder: Path, model: str) -> None:
    _yaml(folder, "build: {gpu: true}\nrun: predict.py:Runner\ntrain: predict.py:train\n")
    target = find_model(model.format(name=folder.name, path=folder))
    assert (target.folder, target.predict, target.train) == (folder, "predict.py:Runner", "predict.py:train")


def test_train_alone(folder: Path) -> None:
    _yaml(folder, "run: predict.py:Runner\ntrain: deep/er/model.py:train\n")
    target = find_model(".", train_only=True)
    assert (target.folder, target.predict, target.train) == (folder, None, "deep/er/model.py:train")
    target = find_model("predict.py:Trainer", train_only=True)
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
        find_model(".", train_only=train_only)


def test_predict_is_the_older_spelling(folder: Path) -> None:
    config = load_config(_yaml(folder, "predict: predict.py:Predictor\n"))
    assert config.predict == "predict.py:Predictor"
    assert config.warnings == (), "doctor tells it, not each start"


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "NVIDIA_X"])
def test_a_reserved_variable_is_left_out_by_name(folder: Path, name: str) -> None:
    config = load_config(_yaml(folder, f"environment:\n  - A=1\n  - {name}=/x\n"))
    assert config.environment == {"A": "1"}
    (warning,) = config.warnings
    assert warning.endswith(f"cog.yaml:3: environment sets {name}, which belongs to the image: it is left out")


def test_concurrency_may_be_the_number_alone(folder: Path) -> None:
    assert load_config(_yaml(folder, "concurrency: 32\n")).max_concurrency == 32


def test_a_bad_cog_yaml_is_no_obstacle_to_a_model_that_is_named(folder: Path) -> None:
    """Unless the file was asked for."""
    yaml = _yaml(folder, "run: [a, b]\n")
    (folder / "m.py").write_text("")
    target = find_model(str(folder / "m.py"))
    assert (target.folder, target.predict) == (folder, "m.py")
    (warning,) = target.config.warnings
    assert "cog.yaml:1: run must be a text like run.py:Runner" in warning
    assert "is left out" in warning
    with pytest.raises(BadModel, match="must be a text"):
        find_model(str(folder))
    with pytest.raises(BadModel, match="must be a text"):
        find_model(str(folder / "m.py"), config_file=str(yaml))


def test_environment_of_cog_yaml_gives_way_to_what_is_set(folder: Path) -> None:
    config = load_config(_yaml(folder, "environment:\n  - A=1\n  - B=x=y\n  - C=\n"))
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
        find_model(model)
    assert "\n" not in str(caught.value)


def test_file_of_another_kind_is_refused(folder: Path) -> None:
    (folder / "model.txt").touch()
    with pytest.raises(BadModel, match="not a Python file"):
        find_model("model.txt")


def test_colon_in_a_folder_name_is_refused(folder: Path) -> None:
    (folder / "a:b").mkdir()
    (folder / "a:b" / "model.py").touch()
    _yaml(folder, "run: predict.py\n")
    with pytest.raises(BadModel, match="colon"):
        find_model("a:b/model.py")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no model"),
        ("- a\n", "cog.yaml:1: must hold a mapping"),
        ("run: [\n", "not valid YAML: line 2, column 1: "),
        ("run: 5\n", "cog.yaml:1: run must be"),
        ("run: ''\n", "run must be"),
        ("run: predict\n", "run must be a text like run.py:Runner, not 'predict'"),
        ("run: predict.py:not a name\n", "run must be"),
        ("run:\n  - pip install x\n", "cog.yaml:2: run must be .* belong to build.run"),
        ("run: a.py\npredict: b.py\n", "cog.yaml:2: predict .* keep run"),
        ("run: a.py\nrun: b.py\n", "cog.yaml:2: run stands here a second time, after line 1"),
        ("run: missing.py:Runner\n", "no such file"),
        ("Run: predict.py\n", "cog.yaml:1: Run is not a key of this file: did you mean run?"),
        ("run: predict.py\n\nenviroment: []\n", "cog.yaml:3: enviroment is not a key .* environment"),
        ("run: predict.py\nconcurrency: x\n", "cog.yaml:2: concurrency must be a mapping, with concurrency.max in it"),
        ("run: predict.py\nconcurrency: 0\n", "cog.yaml:2: concurrency must be a whole number, 1 or more, not '0'"),
        ("model: infer.py:Model\n", "cog.yaml:1: model names the model as before Cog 0.1: write run: infer.py:Model"),
        ("run: predict.py\nconcurrency:\n  max: 0\n", "cog.yaml:3: concurrency.max must be .* not '0'"),
        ("run: predict.py\nconcurrency: {max: true}\n", "concurrency.max must be a whole number"),
        ("run: predict.py\nconcurrency: {max: '3'}\n", "concurrency.max must be a whole number"),
        ("run: predict.py\nconcurrency: {max: [3]}\n", "concurrency.max .* not a list or mapping"),
        ("run: predict.py\nconcurrency: {Max: 3}\n", "concurrency.Max is not a key .* max"),
        ("run: predict.py\nenvironment: {A: b}\n", "environment is a mapping, as before Cog 0.1"),
        ("run: predict.py\nenvironment: [A]\n", "NAME=value"),
        ('run: predict.py\nenvironment: ["A=\\0"]\n', "NAME=value"),
        ('run: predict.py\nenvironment: ["A=\\ud800"]\n', "NAME=value"),
        (
            "run: predict.py\nenvironment:\n  - A=1\n  - 1=2\n",
            r"cog.yaml:4: environment\[1\] must be NAME=value, not '1=2'",
        ),
        ("run: predict.py\nenvironment: [5]\n", "NAME=value"),
        ("run: predict.py\nenvironment: [[A=1]]\n", "not a list or mapping"),
        ("run: predict.py\nenvironment: [A=1, A=2]\n", "sets A a second time"),
        ("x: \x00\n", "not valid YAML"),
        ("- " * 1_500 + "\n", "not valid YAML: it is nested too deeply"),
        ("a: *nowhere\n", "not valid YAML: line 1, column 4: "),
    ],
)
def test_bad_cog_yaml_is_one_line_with_file_line_and_key(folder: Path, text: str, words: str) -> None:
    _yaml(folder, text)
    with pytest.raises(BadModel, match=words) as caught:
        find_model(".")
    assert "\n" not in str(caught.value)


def test_what_belongs_to_the_build_may_be_as_it_likes(folder: Path) -> None:
    config = load_config(
        _yaml(
            folder,
            "build: {python_version: 3.10, run: 7, gpu: !custom yes, runs: {}}\nimage: [1]\nfuture: 2024-99-99\n"
            "concurrency: {max: 2, default_target: soon}\nrun: predict.py\n",
        )
    )
    assert (config.predict, config.max_concurrency, config.warnings) == ("predict.py", 2, ())


def test_anchors_and_merges_are_followed_and_never_unfolded(folder: Path) -> None:
    """A document that is 10^30 lists when unfolded, and mappings that merge one another, cost nothing."""
    lists = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 30))
    merges = "".join(f"y{n}: &y{n} {{<<: [{', '.join([f'*y{n - 1}'] * 10)}]}}\n" for n in range(1, 30))
    lists += "loop: &loop [*loop]\n"
    text = f"x0: &x0 [a]\n{lists}y0: &y0 {{max: 4}}\n{merges}concurrency: {{<<: *y29}}\nrun: predict.py\n"
    assert load_config(_yaml(folder, text)).max_concurrency == 4
    with pytest.raises(BadModel, match="environment"):
        load_config(_yaml(folder, f"x0: &x0 [a]\n{lists}environment: *x29\n"))
    own = load_config(_yaml(folder, "a: &a {max: 4}\nconcurrency: {max: 5, <<: *a}\nenvironment: &e [A=1]\n"))
    assert own.max_concurrency == 5


def test_cog_yaml_that_is_too_large_is_not_parsed(folder: Path) -> None:
    with pytest.raises(BadModel, match="larger"):
        load_config(_yaml(folder, "#" * (2**20 + 1)))


def test_cog_yaml_that_cannot_be_read_says_why(folder: Path) -> None:
    (folder / "cog.yaml").mkdir()
    with pytest.raises(BadModel, match=r"can't read .*directory"):
        load_config(folder / "cog.yaml")


@pytest.mark.parametrize(
    ("files", "model", "text"),
    [
        ((), "", "no cog.yaml in {}: name a Python file, or start a model here by cog-trio init"),
        (
            ("predict.py",),
            "",
            "no cog.yaml in {0}: name its file, as in cog-trio serve {0}/predict.py, or start a model by cog-trio init",
        ),
        (("predict.py",), ":Name", "behind a folder: name its file, as in cog-trio serve {}/predict.py:Name"),
        (
            ("cog.yaml", "predict.py"),
            ":Name",
            "behind a folder: {} is named alone, its cog.yaml says which class is meant",
        ),
        (("predict.py",), "/predict2.py", "there is no file or folder {0}/predict2.py; did you mean {0}/predict.py?"),
    ],
)
def test_what_is_named_wrongly_is_told_with_what_is_there(
    files: tuple[str, ...], model: str, text: str, tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(BadModel) as caught:
        find_model(f"{tmp_path}{model}")
    assert str(caught.value).endswith(text.format(tmp_path))


def test_the_file_that_defines_the_name_is_offered(tmp_path: Path) -> None:
    for file, text in {"predict.py": "class Other: ...\n", "model.py": "x = 1\nasync def mine(): ...\n"}.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(BadModel, match=r"/model\.py:mine$"):
        find_model(f"{tmp_path}:mine")
    with pytest.raises(BadModel, match=r"/predict\.py:nowhere$"):
        find_model(f"{tmp_path}:nowhere")


def test_a_cog_yaml_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "cog.yaml").write_text("run: gone.py\n")
    other = tmp_path / "other.yaml"
    other.write_text("run: model.py:First\ntrain: model.py:train\n")
    target = find_model(str(tmp_path), config_file=str(other))
    assert (target.folder, target.predict, target.train) == (tmp_path.resolve(), "model.py:First", "model.py:train")
    named = find_model(f"{tmp_path}/model.py:Second", config_file=str(other))
    assert (named.predict, named.train) == ("model.py:Second", "model.py:train")
    with pytest.raises(BadModel, match="is not in the folder of"):
        find_model(__file__, config_file=str(other))
