"""``cog-trio dockerfile``: writes a Dockerfile for the model of a folder, from its cog.yaml."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import click

from cog_trio import __version__
from cog_trio.cli import options
from cog_trio.config.cog_yaml import FILE, BadModel
from cog_trio.config.yaml_source import BadFile

IMAGE: Final = re.compile(r"[a-zA-Z0-9][\w./-]*(:\d+/[\w./-]+)?(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")


@click.command()
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", metavar="FILE", help="write it there, - is stdout (default)", default="-")
@click.option("--base", metavar="IMAGE", help="base image, with apt and Python, by tag or digest")
@click.option("--python", metavar="VERSION", help="Python of the image, in place of python_version of cog.yaml")
@click.option("--user", type=click.IntRange(1, 65_533), metavar="UID", help="run as this user instead of root")
@click.option("--force", is_flag=True, help="overwrite a file that somebody else wrote")
@click.option("--runtime", metavar="WHAT", help="cog-trio itself: a requirement of pip, or a wheel in FOLDER")
@click.option(
    "-f", "--file", "config_file", metavar="NAME", default=FILE, help="the cog.yaml of FOLDER by another name"
)
def command(
    folder: Path,
    config_file: str,
    output: str,
    base: str | None,
    python: str | None,
    user: int | None,
    force: bool,
    runtime: str | None,
) -> int:
    """Write a Dockerfile for the model of FOLDER, from its cog.yaml.

    It stands in for cog build where an ordinary image on Debian is enough. If this cog-trio was not installed from an
    index, its wheel is written into FOLDER, for the image.
    """
    from cog_trio.cli.dockerfile.build_section import is_python, read_build
    from cog_trio.cli.dockerfile.render import HEADER, Image, render_dockerfile
    from cog_trio.cli.wheel.pack import NotInstalled

    if base is not None and not IMAGE.fullmatch(base):
        raise click.BadParameter(f"{base!r} is not the name of an image", param_hint="--base")
    if python is not None and not is_python(python):
        raise click.BadParameter(f'{python!r} is not a version like "3.12", 3.10 or newer', param_hint="--python")
    if runtime is not None:
        _check_runtime(folder, runtime)
    try:
        build = read_build(folder, python, config_file)
    except (BadModel, BadFile) as error:
        raise click.ClickException(str(error)) from error
    if build.config.predict is None and build.config.train is None:
        raise click.ClickException(f"{folder / config_file} names no model: it has none of run, predict and train")
    for warning in (*build.warnings, *build.unknown):
        click.echo(f"{options.NAME}: warning: {warning}", err=True)
    try:
        if (
            output != "-"
            and not force
            and os.path.exists(output)
            and not Path(output).read_bytes().startswith(HEADER.encode())
        ):
            raise click.ClickException(f"{output} is there and was not written by this command: --force overwrites it")
        if build.runtime_required:
            runtime = None
        elif runtime is None:
            runtime = _own_runtime(folder)
        text = render_dockerfile(build, Image(runtime, base, user))
        if output == "-":
            sys.stdout.write(text)
        else:
            Path(output).write_text(text, encoding="utf-8")
    except NotInstalled as error:
        raise click.ClickException(f"{error}, or name a cog-trio by --runtime") from error
    except OSError as error:
        raise click.ClickException(f"can't write {error.filename or output}: {error.strerror}") from error
    return 0


def _own_runtime(folder: Path) -> str:
    """Return what makes pip install the cog-trio that runs here: its release, or a wheel that is written to the folder.

    Raises:
      NotInstalled: if it is not installed.
      OSError: if the wheel can't be written.
    """
    from cog_trio.cli.dockerfile.render import EXTRA
    from cog_trio.cli.wheel.pack import is_from_index, pack_own

    if is_from_index():
        return f"cog-trio{EXTRA}=={__version__}"
    path = pack_own().write(folder)
    click.echo(f"{options.NAME}: wrote {path}, which the image installs: this cog-trio is not from an index", err=True)
    return path.name


def _check_runtime(folder: Path, runtime: str) -> None:
    inside = not runtime.startswith("/") and ".." not in Path(runtime).parts
    if not runtime.isprintable() or (runtime.endswith(".whl") and not (inside and (folder / runtime).is_file())):
        raise click.BadParameter(f"{runtime!r} is not a wheel inside of {folder}", param_hint="--runtime")
