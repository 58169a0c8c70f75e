"""``cog-trio wheel``: writes the wheel with which Cog's own tools build images that run on cog-trio."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from cog_trio.cli import options


@click.command()
@click.option(
    "-o", "--output", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="write it there"
)
def command(output: Path | None) -> int:
    """Write the wheel that makes cog build use cog-trio, and print its path.

    \b
    COG_SDK_WHEEL=$(cog-trio wheel) cog build -t my-model

    The same holds for cog run, serve, train, exec and push. Without -o the wheel goes to a cache folder of the user.
    """
    from cog_trio.cli.wheel.pack import PACKAGE, NotInstalled, is_editable, pack_stand_in

    folder = output or cache_folder()
    try:
        path = pack_stand_in().write(folder)
    except NotInstalled as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"can't write {error.filename or folder}: {error.strerror}") from error
    if is_editable():
        click.echo(
            f"{options.NAME}: warning: the wheel holds {PACKAGE} as it is now: write it again after a change", err=True
        )
    sys.stdout.write(f"{path.resolve()}\n")
    return 0


def cache_folder() -> Path:
    """Return a folder outside of the model's, so that the image's ``COPY . /src`` does not copy the wheel too.

    Raises:
      click.ClickException: if the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if os.path.isabs(base):
        return Path(base) / "cog-trio"
    try:
        return Path.home() / ".cache" / "cog-trio"
    except RuntimeError as error:
        raise click.ClickException("there is no home folder for the wheel: name a folder by -o") from error
