"""``cog-trio run``: its arguments. ``local_run.py`` runs the model here, ``remote_run.py`` on another server."""

from __future__ import annotations

from typing import Any

import click

from cog_trio.cli import options
from cog_trio.cli.run.arguments import answer, run_arguments


@click.command()
@run_arguments
def command(**values: Any) -> int:
    """Run one prediction with MODEL, here or on another server.

    MODEL is a Python file, file.py:Name, or a folder with a cog.yaml; by default the current folder. What the model
    prints goes to stderr, its output to stdout; output files are written to output.<suffix>, or where -o says.

    \b
    cog-trio run predict.py -i prompt="the sea" -i tokens=20
    cog-trio run -i image=@cat.png -o blurred.png
    cog-trio run --json '{"prompt": "the sea"}'
    cog-trio run --url https://host -i prompt=hello

    Ctrl-C cancels the prediction; a second one kills the model. Exit codes: 0, 1 if the prediction or its setup failed,
    2 if the command line or an input is wrong, 130 after Ctrl-C.
    """
    return answer(options.PREDICT, **values)
