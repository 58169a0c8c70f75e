"""``cog-trio schema``: its arguments. What it does is in ``document.py``, imported once the worker was spawned."""

from __future__ import annotations

import click

from cog_trio.cli import options
from cog_trio.cli.launch import describe
from cog_trio.cli.plan import plan


@click.command()
@options.model
def command(model: str) -> int:
    """Print the OpenAPI document of MODEL.

    MODEL is named as for serve. It is imported, not set up; what it prints meanwhile goes to stderr.
    """
    return describe(plan(model, {}, terminal=False))
