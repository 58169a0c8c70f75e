"""What a MODEL, the flags and the environment come to: everything that is known before a worker is spawned."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import click

from cog_trio.cli import options
from cog_trio.config import settings
from cog_trio.config.cog_yaml import FILE, BadModel, find_model
from cog_trio.orchestrator.spawn import WorkerProcess, spawn

MAKE_PORT: Final = "make serve PORT=..."  # where our Makefile says so by the variable MAKE_SERVE


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that is known before the event loop starts."""

    name: str  # of the program, before its error lines
    settings: settings.Settings
    folder: str  # where the worker starts
    predict: str | None
    train: str | None
    environment: dict[str, str]  # of the worker, over ours
    warnings: tuple[str, ...] = ()
    terminal: bool = False  # somebody looks at it: show the first screen
    again: Callable[[], LaunchPlan] | None = None  # the same, with cog.yaml read again
    config_file: str = FILE  # name of the cog.yaml in the folder
    port_option: str = "--port"  # how whoever started us chooses another port

    def variables(self) -> dict[str, str]:
        """Those of the worker's environment, over ours."""
        return {**self.environment, **settings.worker_variables(self.settings)}

    def spawn(self) -> WorkerProcess:
        """Start the first worker.

        Raises:
          options.StartFailed: if the system has no process, descriptor or memory left for it.
        """
        try:
            return spawn(self.folder, self.variables())
        except OSError as error:
            raise options.StartFailed(f"the worker can't be started: {error}") from error


def read_settings(flags: Mapping[str, str | Sequence[str]]) -> tuple[settings.Settings, list[str]]:
    """Settings without a model, and the warnings.

    Raises:
      click.ClickException: with one line for the user.
    """
    try:
        return settings.read_settings(flags, os.environ)
    except settings.BadSetting as error:
        raise click.ClickException(str(error)) from error


def colours() -> bool:
    """Whether a terminal may get colours."""
    return not (os.environ.get("NO_COLOR") or os.environ.get("COG_NO_COLOR"))


def make_plan(
    model: str,
    flags: dict[str, str | Sequence[str]],
    terminal: bool,
    x_mode: str = options.PREDICT,
    config_file: str | None = None,
) -> LaunchPlan:
    """The plan of one command. ``config_file``: takes the place of the cog.yaml.

    Raises:
      click.ClickException: with one line for the user.
    """
    environ = dict(os.environ)
    try:
        target = find_model(model, train_only=x_mode == options.TRAIN, config_file=config_file)
        chosen, warnings = settings.read_settings(flags, environ, file=target.config.settings(), terminal=terminal)
    except (BadModel, settings.BadSetting) as error:
        raise click.ClickException(str(error)) from error
    return LaunchPlan(
        options.NAME,
        chosen,
        str(target.folder),
        target.predict,
        target.train,
        target.config.unset(environ),
        (*target.config.warnings, *warnings),
        terminal and chosen.log_format == "console",
        partial(make_plan, model, flags, terminal, x_mode, config_file),
        FILE if config_file is None else os.path.basename(config_file),
        MAKE_PORT if "MAKE_SERVE" in environ else "--port",
    )
