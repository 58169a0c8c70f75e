"""``cog-trio serve``: its arguments. The program itself is ``program.py``, imported once the worker was spawned."""

from __future__ import annotations

import sys
from typing import Any

import click

from cog_trio.cli import options
from cog_trio.cli.launch_plan import make_plan
from cog_trio.cli.serve.launch import launch


@click.command(cls=options.ServerCommand)
@options.model
@options.config_file
@options.options()
@options.x_mode
def command(model: str, x_mode: str, config_file: str | None, **values: Any) -> int:
    """Serve MODEL over HTTP.

    MODEL is a Python file, file.py:Name, or a folder with a cog.yaml; by default the current folder.

    \b
    cog-trio serve
    cog-trio serve predict.py --port 8000
    cog-trio serve predict.py --workers 2 --queue 20 --respawn

    The log goes to stderr. Ctrl-C stops it: what runs may end, a second one cancels it. A model that can't be imported
    or set up does not end the server: GET /health-check says why. Exit codes: 0, 1 if the address can't be bound or the
    worker can't be started, 2 if the command line or the cog.yaml is wrong, 70 after a fault of the server itself.
    """
    return launch(make_plan(model, options.given(values), sys.stderr.isatty(), x_mode, config_file))
