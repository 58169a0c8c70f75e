"""The command of a container: Cog's address, all flags and variables of ``cog-trio serve``, and then the same program.

COG_PREDICT_TYPE_STUB and COG_TRAIN_TYPE_STUB name the model; ./cog.yaml tells what the variables leave open. The worker
starts in the current folder, and nothing is checked here that the worker finds out: a missing file shows as
SETUP_FAILED, so that the container's health route can tell it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

from cog_trio._version import COG_RELEASE, __version__
from cog_trio.cli import options
from cog_trio.cli.launch_plan import LaunchPlan
from cog_trio.cli.serve.launch import launch
from cog_trio.config import settings
from cog_trio.config.cog_yaml import FILE, BadModel, Config, load_config
from cog_trio.server.early_worker import EarlyWorker

NAME: Final = "cog_trio.server.http"
NO_MODEL: Final = 1  # exit code


@click.command(cls=options.ServerCommand, context_settings={"help_option_names": ["-h", "--help"]})
@options.options(container=True)
@options.x_mode
@click.option("--threads", type=int, help="accepted for Cog's sake; has no effect")
@click.version_option(__version__, "-v", "--version", message=f"cog-trio %(version)s (Cog {COG_RELEASE})")
@click.pass_obj
def entry(early: EarlyWorker | None, /, x_mode: str, threads: int | None, **values: Any) -> int:
    """Serve the model of this container over HTTP."""
    environ = dict(os.environ)
    try:
        config = load_config(Path(FILE)) if Path(FILE).is_file() else Config()
        chosen, warnings = settings.read_settings(
            options.given(values), environ, file=config.settings(), container=True
        )
    except (BadModel, settings.BadSetting) as error:
        raise click.ClickException(str(error)) from error
    variables = settings.model_variables(environ)
    predict, train = variables[0] or config.predict, variables[1] or config.train
    if x_mode == options.TRAIN:
        predict = None
    if (train if x_mode == options.TRAIN else predict) is None:
        name = f"COG_{x_mode.upper()}_TYPE_STUB"
        return options.fail(NAME, f"no model: {name} is not set and ./{FILE} names none to {x_mode}", NO_MODEL)
    plan = LaunchPlan(
        NAME,
        chosen,
        os.getcwd(),
        predict,
        train,
        config.unset(environ),
        (*(config.warnings if variables[0] is None else ()), *warnings),
    )
    return launch(plan, None if early is None else early.take(plan.folder, plan.variables()))
