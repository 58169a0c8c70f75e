"""docs/reference/command-line.md tells every command, and every flag of it that is not a row of the settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click
import pytest

from cog_trio.cli import COMMANDS, commands
from cog_trio.config import settings

PAGE: Final = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()
ROWS: Final = {name for row in settings.OPTIONS for name in (row.flag, *row.aliases) if name}
ALIKE: Final = {"train": "run"}  # told once


def _command(name: str) -> click.Command:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    return command


def _section(name: str) -> str:
    found = re.search(rf"^## `cog-trio {name}\b.*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, f"the page has no section of {name}"
    return found[0]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_flag_is_told_and_no_other(name: str) -> None:
    command = _command(name)
    options = [option for option in command.params if isinstance(option, click.Option)]
    section = _section(ALIKE.get(name, name))
    told = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(re.findall(r"`[^`]+`", section))))
    for option in options:
        assert told & set(option.opts) or (name == "serve" and ROWS & set(option.opts)), option.opts
    flags = {flag for option in options for flag in option.opts}
    assert {flag for flag in told if flag.startswith("--")} <= flags, "told, but not there"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    """``--help`` is what a newcomer reads: a first line, and a word for each flag."""
    command = _command(name)
    assert command.help
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, option.name
