"""``--reload``: the files of the model are watched, and the model is started again when one has changed.

Python files and cog.yaml count, below the model's folder and those of ``--reload-dir``: what a model writes beside
itself must not start it again. A cog.yaml that makes no sense leaves the model as it is, and is told in the log; a
model that does not load shows as SETUP_FAILED. Both are healed by the next save.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from contextlib import aclosing
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click

from cog_trio.bridge.protocol import Init
from cog_trio.config import FILE

if TYPE_CHECKING:
    from cog_trio import PredictionService
    from cog_trio.cli.launch import Launch
    from cog_trio.settings import Settings

log: Final = logging.getLogger("cog_trio.cli")
NEEDED: Final = "watchfiles"
SETTLED: Final = 200  # milliseconds for which nothing more changes, so that one save of many files is one reload
IGNORED: Final = ("__pycache__", "node_modules", "site-packages", "venv")  # and folders with a dot in front


def obstacle(settings: Settings) -> str | None:
    """Why ``--reload`` can't be had, in one line."""
    if find_spec(NEEDED) is None:
        return f"--reload needs the package {NEEDED}: pip install 'cog-trio[reload]'"
    for folder in settings.reload_dir:
        if not os.path.isdir(folder):
            return f"--reload-dir {folder}: there is no such folder"
    return None


async def watch(service: PredictionService, plan: Launch) -> None:
    """Reload the model at each change, for ever.

    Cancellation: the watching thread is told, and waited for.
    """
    import watchfiles  # an extra, and only for those who develop

    folders = _folders(plan)
    changes = watchfiles.awatch(*folders, watch_filter=partial(_counts, folders), debounce=1600, step=SETTLED)
    async with aclosing(changes):
        async for found in changes:
            _reload(service, plan, sorted({path for _, path in found}))


def _folders(plan: Launch) -> list[str]:
    return sorted({plan.folder, *(os.path.abspath(folder) for folder in plan.settings.reload_dir)})


def _counts(folders: Iterable[str], change: Any, path: str) -> bool:
    """Whether a change of this file is one of the model."""
    inside = next(
        os.path.relpath(path, folder) for folder in folders if path.startswith(folder + os.sep) or path == folder
    )
    *parents, name = inside.split(os.sep)
    if any(part.startswith(".") or part in IGNORED for part in parents):
        return False
    return (name.endswith(".py") and not name.startswith(".")) or (name == FILE and not parents)


def _reload(service: PredictionService, plan: Launch, paths: Collection[str]) -> None:
    why = _why(plan.folder, paths)
    if plan.again is None or not any(os.path.basename(path) == FILE for path in paths):
        service.reload(why)
        return
    try:
        new = plan.again()
    except click.ClickException as error:
        log.error("%s, but it can't be used; the model stays as it is: %s", why, error.format_message())
        return
    for warning in new.warnings:
        log.warning("%s", warning)
    init = Init(new.predict, new.train, new.settings.max_concurrency)
    service.reload(why, init=init, environment=new.environment)


def _why(folder: str, paths: Collection[str]) -> str:
    names = [os.path.relpath(path, folder) for path in paths]
    if len(names) == 1:
        return f"{names[0]} has changed"
    return f"{names[0]} and {len(names) - 1} more have changed"
