"""``cog-trio train``: its arguments; all else is as for ``run``."""

from __future__ import annotations

from typing import Any

import click

from cog_trio.cli import options
from cog_trio.cli.ask import answer, asking


@click.command()
@asking
def command(**values: Any) -> int:
    """Run one training with MODEL, here or on another server.

    MODEL is a Python file with a train function, file.py:name, or a folder whose cog.yaml names one; by default the
    current folder. Options and exit codes are those of run; weights are written to output.<suffix>, or where -o says.

    \b
    cog-trio train -i text=@poems.txt -o weights/
    """
    return answer(options.TRAIN, **values)
