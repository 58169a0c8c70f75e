"""``--reload``: the files of the model are watched, and the model is started again when one has changed.

Python files and cog.yaml count, below the model's folder and those of ``--reload-dir``: what a model writes beside
itself must not start it again. A cog.yaml that makes no sense leaves the model as it is, and is told in the log; a
model that does not load shows as SETUP_FAILED. Both are healed by the next save.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click
import trio

from cog_trio.bridge.protocol import Init

if TYPE_CHECKING:
    from cog_trio import PredictionService
    from cog_trio.cli.launch_plan import LaunchPlan
    from cog_trio.config.settings import Settings

log: Final = logging.getLogger("cog_trio.cli")
NEEDED: Final = "watchfiles"
LOOK: Final = 300  # milliseconds from one look at the folders themselves to the next
SETTLED: Final = 200  # milliseconds for which nothing more changes, so that one save of many files is one reload
LONGEST: Final = 1600  # milliseconds after which changes that go on and on are one reload all the same
IGNORED: Final = ("__pycache__", "node_modules", "site-packages", "venv")  # and folders with a dot in front


def obstacle(settings: Settings) -> str | None:
    """Why ``--reload`` can't be had, in one line."""
    if find_spec(NEEDED) is None:
        return f"--reload needs the package {NEEDED}: pip install 'cog-trio[reload]'"
    for folder in settings.reload_dir:
        if not os.path.isdir(folder):
            return f"--reload-dir {folder}: there is no such folder"
    return None


async def watch(service: PredictionService, plan: LaunchPlan) -> None:
    """Reload the model at each change, for ever, or until the system watches no more; then the log says so. A folder
    that goes (a checkout, a sync) is waited for, and what comes in its place is a change.

    Cancellation: the watching thread is waited for, ``LOOK`` or ``SETTLED`` at most.
    """
    folders = _folders(plan)
    lost: set[str] = set()
    while True:
        try:
            lost = await _follow(service, plan, folders, lost)
        except FileNotFoundError:  # it went in this moment
            await trio.sleep(LOOK / 1000)
        except (OSError, RuntimeError) as error:  # too many folders for the system, or one that can't be read
            log.error("--reload has ended, the files can't be watched any more: %s", error)
            return


async def _follow(
    service: PredictionService, plan: LaunchPlan, folders: Sequence[str], lost: Collection[str]
) -> set[str]:
    """Reload at each change below the folders that are there, until some are gone or are others; gives those and what
    is still not there.

    ``lost``: of these nothing has been seen yet; if they are there, that is the first change.
    """
    import watchfiles  # an extra, and only for those who develop

    present = _present(folders)
    unseen = present.keys() & lost
    changes = watchfiles.awatch(
        *present,
        watch_filter=partial(_counts, folders, plan.config_file),
        debounce=LONGEST,
        step=SETTLED,
        rust_timeout=LOOK,
        yield_on_timeout=True,
    )
    async with aclosing(changes):
        async for found in changes:
            now = _present(folders)
            gone = {folder for folder in folders if now.get(folder) != present.get(folder)}
            if gone := gone.union(path for _, path in found if path in folders):
                return gone.union(set(folders).difference(now))
            if paths := unseen.union(path for _, path in found):
                unseen = set()
                _reload(service, plan, sorted(paths))
    return set()


def _present(folders: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The folders that are there, and which they are: one of the same name may have taken the place."""
    found = {}
    for folder in folders:
        with suppress(OSError):
            seen = os.stat(folder)
            found[folder] = seen.st_dev, seen.st_ino
    return found


def _folders(plan: LaunchPlan) -> list[str]:
    return sorted({plan.folder, *(os.path.abspath(folder) for folder in plan.settings.reload_dir)})


def _counts(folders: Collection[str], config_file: str, change: Any, path: str) -> bool:
    """Whether a change of this file is one of the model, or a folder that is watched has gone."""
    if path in folders:
        return bool(change.name == "deleted")
    inside = next((os.path.relpath(path, folder) for folder in folders if _is_below(path, folder)), None)
    if inside is None:
        return False
    *parents, name = inside.split(os.sep)
    if any(part.startswith(".") or part in IGNORED for part in parents):
        return False
    return (name.endswith(".py") and not name.startswith(".")) or (name == config_file and not parents)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _reload(service: PredictionService, plan: LaunchPlan, paths: Collection[str]) -> None:
    why = _why(plan.folder, paths)
    if plan.again is None or not any(
        os.path.basename(path) == plan.config_file or os.path.isdir(path) for path in paths
    ):
        service.reload(why)
        return
    try:
        new = plan.again()
    except click.ClickException as error:
        log.error("%s, but it can't be used; the model stays as it is: %s", why, error.format_message())
        return
    for warning in new.warnings:
        log.warning("%s", warning)
    init = Init(new.predict, new.train, new.settings.max_concurrency, concurrency_from=new.settings.concurrency_from)
    service.reload(why, init=init, environment=new.environment)


def _why(folder: str, paths: Collection[str]) -> str:
    names = ["the folder" if path == folder else os.path.relpath(path, folder) for path in paths]
    if len(names) == 1:
        return f"{names[0]} has changed"
    return f"{names[0]} and {len(names) - 1} more have changed"
