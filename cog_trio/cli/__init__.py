"""The command line ``cog-trio``: one file a command; this one reads the arguments.

Only click, PyYAML and the standard library are imported here: what a command needs beyond that is imported once
its worker has been spawned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from cog_trio import settings
from cog_trio.cli import options
from cog_trio.cli.config import BadModel, find
from cog_trio.cli.launch import Launch, describe, launch

NAME: Final = "cog-trio"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cog-trio", prog_name=NAME, message="%(prog)s %(version)s")
def commands() -> None:
    """Serve machine-learning models written for Cog, on trio."""


@commands.command(cls=options.BareFlags)
@click.argument("model", default=".")
@options.options()
@options.x_mode
def serve(model: str, x_mode: str, **values: Any) -> int:
    """Serve MODEL over HTTP.

    MODEL is a Python file, file.py:Name, or a folder with a cog.yaml; by default the current folder.
    """
    return launch(_plan(model, options.given(values), sys.stderr.isatty(), x_mode))


@commands.command()
@click.argument("model", default=".")
def schema(model: str) -> int:
    """Print the OpenAPI document of MODEL.

    MODEL is named as for serve. It is imported, not set up; what it prints meanwhile goes to stderr.
    """
    return describe(_plan(model, {}, terminal=False))


def _plan(model: str, flags: dict[str, str | Sequence[str]], terminal: bool, x_mode: str = options.PREDICT) -> Launch:
    """What a MODEL, the flags and the environment come to.

    Raises:
      click.ClickException: with one line for the user.
    """
    environ = dict(os.environ)
    try:
        target = find(model, train_only=x_mode == options.TRAIN)
        chosen, warnings = settings.read(flags, environ, file=target.config.settings(), terminal=terminal)
    except (BadModel, settings.BadSetting) as error:
        raise click.ClickException(str(error)) from error
    return Launch(
        NAME,
        chosen,
        str(target.folder),
        target.predict,
        target.train,
        target.config.unset(environ),
        (*target.config.warnings, *warnings),
        terminal and chosen.log_format == "console",
    )


def main() -> None:
    """Entry point of the console script."""
    sys.exit(options.run(commands, NAME))
