"""What ``run`` and ``train`` are asked for: their options, and the two ways they go, here or on another server.

Everything that can be wrong without the model is found out here, before a worker is spawned: ``name=value``, the
JSON, the place for the output. What a text means for its input is told by the model, later.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cog_trio.cli import options
from cog_trio.cli.launch_plan import LaunchPlan, colours, make_plan, read_settings
from cog_trio.cli.run.input_parser import json_object, pair
from cog_trio.cli.run.output_writer import check_destination
from cog_trio.cli.run.run_request import RunOptions
from cog_trio.cli.signals import collect_signals

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

WEIGHTS: Final = "weights"  # where train writes without -o, as Cog does
FIELDS: Final = (
    "url",
    "auth_token",
    "cafile",
    "setup_timeout",
    "predict_timeout",
    "cancel_grace",
    "download_limit",
    "download_timeout",
    "input_hosts",
    "log_limit",
    "gpus",
)


def inputs_offered(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a shell that completes: the inputs of the model."""
    from cog_trio.cli.run.input_completion import complete_input

    return complete_input(context, parameter, incomplete)


def run_arguments(function: F) -> F:
    """The options of ``run`` and ``train``."""
    for decorate in reversed(
        (
            options.model,
            click.argument("rest", nargs=-1, metavar=""),
            options.config_file,
            click.option(
                "-i",
                "--input",
                "inputs",
                multiple=True,
                metavar="NAME=VALUE",
                shell_complete=inputs_offered,
                help="an input: its text, @FILE for a file, @- for stdin; repeated for a list",
            ),
            click.option(
                "--json",
                "json_text",
                metavar="JSON",
                help="inputs as a JSON object: itself, @FILE, or @- for stdin; the result is printed as JSON too",
            ),
            click.option(
                "-o",
                "--output",
                "destination",
                metavar="PATH",
                shell_complete=options.files,
                help="where the output goes: a file, a folder, or - for stdout  "
                "[default: printed, files: output.*; of train: weights]",
            ),
            click.option(
                "-e",
                "--env",
                "environment",
                multiple=True,
                metavar="NAME=VALUE",
                help="a variable of the model's environment; may be repeated",
            ),
            options.options(only=FIELDS),
            click.option("--debug", is_flag=True, help="tell more on stderr: the log of the runtime, and tracebacks"),
        )
    ):
        decorate(function)
    return function


def answer(
    mode: str,
    *,
    model: str,
    rest: Sequence[str],
    config_file: str | None,
    inputs: Sequence[str],
    json_text: str | None,
    destination: str | None,
    environment: Sequence[str],
    debug: bool,
    **values: Any,
) -> int:
    """Do what was asked for; the exit code.

    Raises:
      click.ClickException: with one line for the user.
    """
    for text in (model, *rest):
        if "=" in text and not os.path.exists(text):
            raise click.UsageError(f"inputs are given by -i: write -i {shlex.quote(text)}")
    if rest:
        raise click.UsageError(f"there is one MODEL, but {len(rest)} more were named: {' '.join(rest)}")
    if mode == options.TRAIN and destination is None and json_text is None:
        destination = WEIGHTS
    given = options.given(values)
    run_options = _run_options(mode, model, inputs, json_text, destination, debug)
    variables = dict(_pairs("-e", environment))
    chosen, _ = read_settings(given)
    if chosen.url is not None:
        if config_file is not None:
            raise click.UsageError("-f is for models that run here: --url names another server")
        if variables:
            raise click.UsageError("-e is for models that run here: --url names another server")
        if model != ".":
            raise click.UsageError(
                f"both MODEL ({model}) and --url (or COG_TRIO_URL) are given: the server has a model of its own"
            )
        with collect_signals() as early:
            from cog_trio.cli.run.remote_run import run_there

            return run_there(chosen, early, run_options)
    plan = make_plan(model, given, terminal=False, x_mode=mode, config_file=config_file)
    if mode == options.TRAIN and plan.train is None:
        raise click.ClickException(f"{model} has no training")
    train = plan.train if mode == options.TRAIN else None  # a trainer that is not asked for is not set up
    return _run_here(replace(plan, train=train, environment={**plan.environment, **variables}), run_options)


def _run_here(plan: LaunchPlan, run_options: RunOptions) -> int:
    with collect_signals() as early, plan.spawn() as process:
        from cog_trio.cli.run.local_run import run_here

        return run_here(plan, process, early, run_options)


def _run_options(
    mode: str, model: str, inputs: Sequence[str], json_text: str | None, destination: str | None, debug: bool
) -> RunOptions:
    pairs = tuple(_pairs("-i", inputs))
    if (fault := check_destination(destination)) is not None:
        raise click.ClickException(fault)
    run_options = RunOptions(mode, model, pairs, {}, destination, json_text is not None, debug, colours())
    if json_text is None:
        return run_options
    try:
        return replace(run_options, given=json_object(json_text, run_options.read))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _pairs(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    try:
        return [pair(text) for text in texts]
    except ValueError as error:
        raise click.UsageError(f"{flag}: {error}") from error
