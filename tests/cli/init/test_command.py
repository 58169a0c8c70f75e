"""``cog-trio init``: all files or none, and what it writes is in order."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cog_trio.cli.dockerfile.build_section import read_build
from cog_trio.cli.doctor import command as doctor
from cog_trio.cli.init.command import command
from cog_trio.cli.init.template import files
from cog_trio.config.cog_yaml import find_model


def _init(*arguments: str) -> int:
    code = command([*arguments], standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_all_files_are_written_and_fit_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "my model"
    assert _init(str(folder)) == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == files()
    assert capsys.readouterr().out.count("wrote ") == len(files())
    assert find_model(str(folder)).predict == "run.py:Runner"
    build = read_build(folder)
    assert (build.requirements, build.warnings, build.unknown) == (("requirements.txt",), (), ())


@pytest.mark.parametrize("name", ["run.py", ".dockerignore"])
def test_what_is_there_is_never_overwritten_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("mine\n")
    assert _init(str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert name in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine\n"
    assert _init(str(tmp_path), "--force") == 0
    assert (tmp_path / name).read_text() == files()[name]


def test_a_dangling_link_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "run.py").symlink_to(tmp_path / "gone.py")
    assert _init(str(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(click.ClickException, match="can't write"):
        _init(str(tmp_path / "file" / "model"))


def test_no_such_model_is_a_wrong_use_of_doctor(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="there is no file"):
        doctor.command([str(tmp_path / "gone.py:Runner")], standalone_mode=False)


def test_a_folder_that_looks_like_an_option_is_named_so_that_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _init("--", "-model") == 0
    assert "  cog-trio serve ./-model\n" in capsys.readouterr().out
