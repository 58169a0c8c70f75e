"""The command line ``cog-trio``: a table of commands, each in a file of its own that is imported when it is called for.

Nothing but click is imported here, and of a command's file only what reading its arguments needs: a worker is spawned
first, and what else a command needs is imported while the worker starts. A new command is a row of ``COMMANDS``
and a file beside this one, whose ``command`` is the click command; its first line of help is the row's text.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final, NamedTuple

import click

from cog_trio import __version__
from cog_trio.cli import options


class Row(NamedTuple):
    """Where a command is, without importing it."""

    module: str  # has the command as ``command``
    help: str  # its first line


COMMANDS: Final = {
    "serve": Row("cog_trio.cli.serve.command", "Serve MODEL over HTTP."),
    "run": Row("cog_trio.cli.run.command", "Run one prediction with MODEL, here or on another server."),
    "train": Row("cog_trio.cli.run.train_command", "Run one training with MODEL, here or on another server."),
    "schema": Row("cog_trio.cli.schema.command", "Print the OpenAPI document of MODEL."),
    "init": Row("cog_trio.cli.init.command", "Start a model in FOLDER: code, cog.yaml and a test."),
    "doctor": Row("cog_trio.cli.doctor.command", "Check MODEL: does it load, and what should be changed?"),
    "dockerfile": Row(
        "cog_trio.cli.dockerfile.command", "Write a Dockerfile for the model of FOLDER, from its cog.yaml."
    ),
    "wheel": Row(
        "cog_trio.cli.wheel.command", "Write the wheel that makes cog build use cog-trio, and print its path."
    ),
    "completion": Row("cog_trio.cli.completion", "Print the script that makes SHELL complete cog-trio."),
}
ALIASES: Final = {"predict": "run"}  # Cog's older names
IMAGES: Final = "images are built by docker: cog-trio dockerfile -o Dockerfile, then docker build"
ELSEWHERE: Final = {  # commands of Cog that are not ours, and what to use instead
    "build": f"{IMAGES} -t NAME .; or, with Cog's: COG_SDK_WHEEL=$(cog-trio wheel) cog build",
    "push": f"{IMAGES} and docker push; or, with Cog's: COG_SDK_WHEEL=$(cog-trio wheel) cog push",
    "login": "log in to your registry by docker login",
    "exec": "a command in the image is run by docker run IMAGE COMMAND; here, run it in your environment",
}


class Commands(click.Group):
    """A group that imports a command when it is called; its help is made from the table alone."""

    def main(self, *arguments: Any, **more: Any) -> Any:
        if "_COG_TRIO_COMPLETE" in os.environ:  # a shell asks
            from cog_trio.cli.completion import register

            register()
        return super().main(*arguments, **more)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if row is None:
            return None
        command = import_module(row.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            if name in ELSEWHERE:
                ctx.fail(f"{name} is a command of Cog alone; {ELSEWHERE[name]}")
            from difflib import get_close_matches

            near = get_close_matches(name, [*COMMANDS, *ALIASES], 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=options.NAME, message="%(prog)s %(version)s")
def commands() -> None:
    """Serve machine-learning models written for Cog, on trio.

    In the folder of a model: cog-trio serve. Without one: cog-trio init. Each command has a --help of its own.
    """


def main() -> None:
    """Entry point of the console script."""
    options.exit_with(options.run_command(commands, options.NAME))
