"""Options out of the table, flags that may stand alone, and errors in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from cog_trio.cli import COMMANDS, commands, options
from cog_trio.cli.run.command import command as run
from cog_trio.cli.serve.command import command as serve
from cog_trio.config import settings
from cog_trio.config.settings import Setting
from cog_trio.server.entry import entry


def _command(seen: dict[str, Any]) -> click.Command:
    @click.command(cls=options.ServerCommand)
    @click.argument("model", default=".")
    @options.options()
    def command(model: str, **values: Any) -> int:
        seen["model"] = model
        seen.update(options.given(values))
        return 0

    return command


def _given(*arguments: str) -> Mapping[str, Any]:
    seen: dict[str, Any] = {}
    _command(seen).main(list(arguments), standalone_mode=False)
    return seen


@pytest.mark.covers("D43")
@pytest.mark.parametrize("option", [row for row in settings.OPTIONS if row.flag], ids=lambda option: option.field)
def test_each_row_is_an_option_of_its_commands_and_says_its_variable(option: Setting) -> None:
    command = run if option.client else serve
    (parameter,) = [parameter for parameter in command.params if parameter.name == option.field]
    assert isinstance(parameter, click.Option)
    assert set(parameter.opts) == {option.flag, *option.aliases}
    default = settings.default(option)
    value = "" if default in ("none", "off") else f"default {default}; "
    assert parameter.help == f"{option.meaning} [{value}{option.variable}]"


def test_rows_without_a_flag_are_no_options_and_those_of_clients_none_of_serve() -> None:
    named = {parameter.name for parameter in serve.params}
    assert named.isdisjoint(row.field for row in settings.OPTIONS if not row.flag or row.client)


def test_container_entry_has_every_flag_of_serve() -> None:
    assert {parameter.name for parameter in entry.params} == {
        *(parameter.name for parameter in serve.params),
        "threads",
        "version",
    } - {"model", "config_file"}


def test_each_flag_of_a_server_is_in_one_group_of_its_help() -> None:
    grouped = [field for fields in options.GROUPS.values() for field in fields]
    rows = [row.field for row in settings.OPTIONS if row.flag and not row.client]
    assert sorted(grouped) == sorted(rows)


def test_help_of_serve_has_groups_and_the_common_options_first() -> None:
    text = serve.get_help(click.Context(serve))
    places = [text.index(f"\n{title}:") for title in (*options.GROUPS, options.OTHER)]
    assert places == sorted(places)
    assert text.index("-p, --port") < places[1]


def test_nothing_given_is_nothing() -> None:
    assert _given() == {"model": "."}


@pytest.mark.covers("http:W16")
@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--await-explicit-shutdown"], "true"),
        (["--await-explicit-shutdown", "m.py"], "true"),
        (["--await-explicit-shutdown", "False", "m.py"], "False"),
        (["--await-explicit-shutdown=off"], "off"),
        (["--await-explicit-shutdown", "--port", "1"], "true"),
    ],
)
def test_W16_bare_flag_takes_a_truth_value_or_stands_alone(arguments: list[str], value: str) -> None:
    seen = _given(*arguments)
    assert seen["await_explicit_shutdown"] == value
    assert seen["model"] == ("m.py" if "m.py" in arguments else ".")


def test_aliases_switches_and_repeated_flags() -> None:
    seen = _given(
        "--timeout-graceful-shutdown", "5", "--no-access-log", "--cors-origin", "http://a", "--cors-origin", "http://b"
    )
    assert seen["drain_grace"] == "5"
    assert seen["access_log"] == "true"
    assert seen["cors_origins"] == ("http://a", "http://b")


def test_wrong_flag_is_one_line_and_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x", "serve", "--nonsense"])
    assert options.run_command(commands, "cog-trio") == 2
    said = capsys.readouterr().err
    assert said.startswith("cog-trio: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("name", "hint"), [("serv", "did you mean serve?"), ("xyz", "there are serve, run, train")])
def test_a_command_that_is_not_there_has_neighbours(
    name: str, hint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["x", name])
    assert options.run_command(commands, "cog-trio") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"cog-trio: there is no command '{name}'; {hint}")
    assert said.count("\n") == 1


def test_help_says_the_defaults_of_the_program_that_it_is_of() -> None:
    """A newcomer asks first for the address; that of a container is another one."""
    for command, host, port in ((serve, "127.0.0.1", 8393), (entry, "0.0.0.0", 5000)):
        words = {option.name: option.help for option in command.params if isinstance(option, click.Option)}
        assert f"[default {host}; " in str(words["host"])
        assert f"[default {port}; " in str(words["port"])
        assert "default" not in str(words["upload_url"])


def test_no_command_shows_the_help_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["x"])
    options.run_command(commands, "cog-trio")
    seen = capsys.readouterr()
    assert "\n  serve " in seen.out + seen.err


@pytest.mark.covers("D38")
@pytest.mark.parametrize("mode", ["predict", "train"])
def test_D38_the_container_entry_needs_what_its_mode_serves(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other reference is of no use to it."""
    monkeypatch.chdir(tmp_path)
    mine, other = ("PREDICT", "TRAIN") if mode == "predict" else ("TRAIN", "PREDICT")
    monkeypatch.delenv(f"COG_{mine}_TYPE_STUB", raising=False)
    monkeypatch.setenv(f"COG_{other}_TYPE_STUB", "model.py:x")
    assert entry.main(["--x-mode", mode], standalone_mode=False) == 1
    assert f"COG_{mine}_TYPE_STUB is not set" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(COMMANDS))
def test_row_of_a_command_says_its_first_line_of_help(name: str) -> None:
    """The list of commands is shown from the table, the help of one from its docstring."""
    context = click.Context(commands)
    command = commands.get_command(context, name)
    assert command is not None
    assert command.help is not None
    assert command.help.splitlines()[0] == COMMANDS[name].help


@pytest.mark.covers("D46")
@pytest.mark.process
def test_D46_the_help_imports_no_command_and_a_command_imports_no_other() -> None:
    code = """
import sys
from cog_trio.cli import COMMANDS, commands, options
sys.argv = ["x", *sys.argv[1:]]
options.run_command(commands, "cog-trio")
heavy = ("trio", "httpx", "msgspec", "rich", "hypercorn", "trio_websocket", "prometheus_client", "importlib.metadata")
print([n for n in sys.modules if n in heavy or n in {row.module for row in COMMANDS.values()}], file=sys.stderr)
"""
    for arguments, expected in (
        (["--help"], "[]"),
        (["--version"], "[]"),
        (["serve", "--help"], "['cog_trio.cli.serve.command']"),
        (["run", "--help"], "['cog_trio.cli.run.command']"),
    ):
        answer = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=30)
        assert answer.stderr.strip() == expected
        assert answer.stdout.startswith(("Usage: cog-trio", "cog-trio "))
