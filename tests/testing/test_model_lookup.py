"""Which model a test means."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_trio.testing.model_lookup import NoModel, find_model


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with models at three places."""
    for file in ("predict.py", "tests/unit/near.py", "models/far.py", "models/predict.py", "cog.yaml"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path.parent / "outside.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("near.py", "tests/unit/near.py"),
        ("predict.py", "models/predict.py"),
        ("tests/unit/near.py", "tests/unit/near.py"),
        ("far.py:Other", "models/far.py:Other"),
        ("models/predict.py", "models/predict.py"),
        ("models", "models"),
        (None, ""),
    ],
)
def test_named_folders_come_first_and_then_the_nearest(root: Path, model: str | None, found: str) -> None:
    test = root / "tests" / "unit" / "test_it.py"
    assert find_model(model, test, root, [root / "models"]) == str(root / found)


def test_without_folders_the_nearest_one_is_meant(root: Path) -> None:
    test = root / "tests" / "unit" / "test_it.py"
    assert find_model("predict.py:Runner", test, root) == f"{root / 'predict.py'}:Runner"
    (root / "tests" / "predict.py").write_text("")
    assert find_model("predict.py", test, root) == str(root / "tests" / "predict.py")


def test_a_path_is_taken_as_it_is(root: Path) -> None:
    assert find_model(Path("x.py"), root / "test_it.py", root) == "x.py"
    assert find_model(str(root / "predict.py"), root / "test_it.py", root) == str(root / "predict.py")


def test_nothing_above_the_root_is_meant(root: Path) -> None:
    with pytest.raises(NoModel, match=r"there is no outside\.py in "):
        find_model("outside.py:Runner", root / "tests" / "test_it.py", root)


def test_no_name_needs_a_cog_yaml(root: Path) -> None:
    (root / "cog.yaml").unlink()
    with pytest.raises(NoModel, match=r"no folder with a cog\.yaml"):
        find_model(None, root / "tests" / "test_it.py", root)
