"""What is wrong with a command line of ``run`` and ``train``, found out before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_trio.cli import commands, options

MODEL = "def run(name: str = 'a') -> str:\n    return name\n"


@pytest.mark.covers("D38")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "missing.py"], "missing.py"),
        (["predict", "name=you"], "inputs are given by -i: write -i name=you"),
        (["run", "model.py", "image=@x.png"], "inputs are given by -i: write -i image=@x.png"),
        (["run", "model.py", "other.py"], "there is one MODEL, but 1 more were named: other.py"),
        (["run", "model.py:"], "is not the name of a class or function"),
        (["run", ".:run"], "a name stands behind a file, not behind a folder"),
        (["run", "models.py"], "there is no file or folder models.py; did you mean model.py?"),
        (["run", "-f", "gone.yaml"], "-f gone.yaml: there is no such file"),
        (["run", "-f", "cog.yaml", "--url", "https://host"], "-f is for models that run here"),
        (["build"], "build is a command of Cog alone; images are built by docker: cog-trio dockerfile"),
        (["push", "r8.im/me/model"], "docker push"),
        (["login"], "docker login"),
        (["exec", "python"], "docker run"),
        (["run", "model.py", "-i", "words"], "-i: 'words' is not name=value"),
        (["run", "model.py", "-e", "=x"], "-e: '=x' is not name=value"),
        (["run", "model.py", "--json", "{"], "--json is not valid JSON"),
        (["run", "model.py", "--json", "@gone.json"], "gone.json can't be read"),
        (["run", "model.py", "-o", "model.py/x"], "model.py is not a folder"),
        (["run", "model.py", "--setup-timeout", "soon"], "--setup-timeout"),
        (["train", "."], "train"),
        (["run", "--url", "ftp://host"], "--url: expected a URL like https://host"),
        (["run", "--url", "https://user:secret@host"], "--auth-token"),
        (["run", "model.py", "--url", "https://host"], "both MODEL (model.py) and --url (or COG_TRIO_URL) are given"),
        (["run", "-e", "A=b", "--url", "https://host"], "-e is for models that run here"),
    ],
)
def test_D38_it_is_one_line_and_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "cog.yaml").write_text("run: model.py:run\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cog-trio", *arguments])
    assert options.run_command(commands, options.NAME) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("cog-trio: ")
    assert seen.err.count("\n") == 1
    assert words in seen.err
    assert "secret" not in seen.err


def test_predict_is_an_older_name_of_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["cog-trio", "predict", "--help"])
    assert options.run_command(commands, options.NAME) == 0
    assert "Run one prediction with MODEL" in capsys.readouterr().out


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --no")])
@pytest.mark.filterwarnings("ignore:'count' is passed as positional:DeprecationWarning")  # older click on Python 3.13
def test_completion_is_a_script_of_the_shell(
    shell: str, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("click.shell_completion.BashComplete._check_version", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["cog-trio", "completion", shell])
    assert options.run_command(commands, options.NAME) == 0
    out = capsys.readouterr().out
    assert word in out
    assert "_COG_TRIO_COMPLETE" in out


def test_completion_knows_commands_and_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        ("cog-trio tr", "plain,train"),
        ("cog-trio run --setup", "plain,--setup-timeout"),
        ("cog-trio run mod", "file,mod"),
        ("cog-trio run --cafile ca", "file,ca"),
    ):
        monkeypatch.setenv("_COG_TRIO_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        with pytest.raises(SystemExit):
            options.run_command(commands, options.NAME)
        assert f"{expected}\n" in capsys.readouterr().out
