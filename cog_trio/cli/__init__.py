"""The command line ``cog-trio``: one file a command; this one reads the arguments.

Only click, PyYAML and the standard library are imported here: what a command needs beyond that is imported once
its worker has been spawned.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click

from cog_trio import settings
from cog_trio.cli import options
from cog_trio.cli.config import BadModel, find
from cog_trio.cli.launch import Launch, launch

NAME: Final = "cog-trio"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cog-trio", prog_name=NAME, message="%(prog)s %(version)s")
def commands() -> None:
    """Serve machine-learning models written for Cog, on trio."""


@commands.command(cls=options.BareFlags)
@click.argument("model", default=".")
@options.options()
def serve(model: str, **values: Any) -> int:
    """Serve MODEL over HTTP.

    MODEL is a Python file, file.py:Name, or a folder with a cog.yaml; by default the current folder.
    """
    environ = dict(os.environ)
    terminal = sys.stderr.isatty()
    try:
        target = find(model)
        chosen, warnings = settings.read(
            options.given(values), environ, file=target.config.settings(), terminal=terminal
        )
    except (BadModel, settings.BadSetting) as error:
        raise click.ClickException(str(error)) from error
    return launch(
        Launch(
            NAME,
            chosen,
            str(target.folder),
            target.predict,
            target.train,
            target.config.unset(environ),
            (*target.config.warnings, *warnings),
            terminal and chosen.log_format == "console",
        )
    )


def main() -> None:
    """Entry point of the console script."""
    sys.exit(options.run(commands, NAME))
