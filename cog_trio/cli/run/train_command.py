"""``cog-trio train``: its arguments; all else is as for ``run``."""

from __future__ import annotations

from typing import Any

import click

from cog_trio.cli import options
from cog_trio.cli.run.arguments import answer, run_arguments


@click.command()
@run_arguments
def command(**values: Any) -> int:
    """Run one training with MODEL, here or on another server.

    MODEL is a Python file with a train function, file.py:name, or a folder whose cog.yaml names one; by default the
    current folder. Options and exit codes are those of run. A file that comes out is written to output.<suffix>; files
    of an object to output.<member>.<suffix>, and its JSON tells their paths. -o FOLDER/ puts all of them there.

    \b
    cog-trio train -i text=@poems.txt -o weights/
    """
    return answer(options.TRAIN, **values)
