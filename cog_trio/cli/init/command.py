"""``cog-trio init``: starts a model in a folder. All files are written, or none."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from cog_trio.cli import options

REFUSED: Final = 1  # exit code


@click.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="overwrite files that are there")
def command(folder: Path, force: bool) -> int:
    """Start a model in FOLDER: code, cog.yaml and a test.

    FOLDER is made if it is not there. A file that is there is never overwritten without --force.
    """
    from cog_trio.cli.init.template import files

    texts = files()
    taken = [name for name in texts if (folder / name).exists() or (folder / name).is_symlink()]
    if taken and not force:
        names = ", ".join(taken)
        return options.fail(options.NAME, f"{folder} has {names} already; nothing is written without --force", REFUSED)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(f"wrote {folder / name}")
    except OSError as error:
        raise click.ClickException(f"can't write {error.filename}: {error.strerror}") from error
    where = shlex.quote(f"./{folder}" if str(folder).startswith("-") else str(folder))
    print(f"\n  cog-trio serve {where}\n  cog-trio run {where} -i name=world\n  python -m pytest {where}")
    if find_spec("pytest_trio") is None:
        print("\n  pip install 'cog-trio[test]'  # pytest, and what else the test needs")
    return 0
