"""``cog-trio schema``: its arguments. ``describe_model.py`` does the rest, imported once the worker was spawned."""

from __future__ import annotations

import signal

import click

from cog_trio.cli import options
from cog_trio.cli.launch_plan import LaunchPlan, make_plan


@click.command()
@options.model
@options.config_file
@click.option("--inputs", "as_table", is_flag=True, help="print the inputs as a table instead")
def command(model: str, config_file: str | None, as_table: bool) -> int:
    """Print the OpenAPI document of MODEL.

    MODEL is named as for serve. It is imported, not set up; what it prints meanwhile goes to stderr.
    """
    return _describe(make_plan(model, {}, terminal=False, config_file=config_file), as_table)


def _describe(plan: LaunchPlan, as_table: bool) -> int:
    """A signal ends us at once, and our guardian the worker."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with plan.spawn() as process:
        from cog_trio.cli.schema.describe_model import print_schema

        return print_schema(plan, process, as_table=as_table)
