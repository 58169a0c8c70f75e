"""Command-line options out of the table of settings, and errors in one line.

The options hand over plain texts: parsing, defaults and variables stay in ``settings``. click is used for what it
is good at (help, unknown flags, completion); its own messages of three lines are cut down to one.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from cog_trio.config import settings

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
NAME: Final = "cog-trio"  # of the program, before its error lines
PREDICT, TRAIN = "predict", "train"  # values of --x-mode
CLIENT_MEANING: Final = {"auth_token": "bearer token for the server at --url; better by the variable"}
FAILED: Final = 1  # exit code of what went wrong in our surroundings
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a stdout that is a file
USAGE: Final = 2  # exit code of a wrong flag, variable or MODEL


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a shell that completes: files and folders go here."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


model: Final = click.argument("model", default=".", shell_complete=files)

config_file: Final = click.option(
    "-f",
    "--file",
    "config_file",
    metavar="FILE",
    shell_complete=files,
    help="the cog.yaml to read, where it has another name or place",
)

x_mode: Final = click.option(
    "--x-mode",
    type=click.Choice([PREDICT, TRAIN]),
    default=PREDICT,
    help="what is served: predictions (and trainings, where the model has them), or trainings alone",
)


GROUPS: Final[Mapping[str, Collection[str]]] = {  # of serve's help, the common ones first; fields of the settings
    "Common options": (
        "host",
        "port",
        "max_concurrency",
        "workers",
        "queue",
        "gpus",
        "reload",
        "log_level",
        "log_format",
        "auth_token",
        "auth_token_file",
    ),
    "Predictions": (
        "setup_timeout",
        "predict_timeout",
        "cancel_grace",
        "queue_timeout",
        "stream_grace",
        "log_limit",
        "body_limit",
        "retain",
        "retain_age",
        "retain_bytes",
        "respawn",
    ),
    "Files and webhooks": (
        "upload_url",
        "upload_timeout",
        "download_limit",
        "download_timeout",
        "input_hosts",
        "webhook_secret",
        "webhook_secret_file",
        "webhook_grace",
    ),
    "Network": (
        "uds",
        "fd",
        "certfile",
        "keyfile",
        "cors_origins",
        "root_path",
        "openai",
        "timeout_keep_alive",
        "header_timeout",
        "write_timeout",
        "limit_connections",
        "backlog",
    ),
    "Start, end and log": (
        "reload_dir",
        "ready_file",
        "drain_grace",
        "await_explicit_shutdown",
        "access_log",
        "prediction_logs",
    ),
}
OTHER: Final = "Other options"


class ServerCommand(click.Command):
    """A command with the flags of a server: its help has them in groups, and flags like ``--await-explicit-shutdown``
    take ``true`` or ``false``, or stand alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_joined(args)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            str(parameter.name): record
            for parameter in self.get_params(ctx)
            if (record := parameter.get_help_record(ctx)) is not None
        }
        for title, fields in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(field) for field in fields if field in records])
        with formatter.section(OTHER):
            formatter.write_dl(list(records.values()))


def options(*, container: bool = False, only: Collection[str] | None = None) -> Callable[[F], F]:
    """Add an option for each row of the table that a server has, or for the rows of the fields in ``only``.

    ``container``: the help says the defaults of the container entry.
    """

    def decorate(function: F) -> F:
        for option in reversed(settings.OPTIONS):
            named = not option.client if only is None else option.field in only
            if not option.flag or not named:
                continue
            names = (option.flag, *option.aliases, option.field)
            default = settings.default(option, container=container)
            value = "" if default in ("none", "off") else f"default {default}; "
            meaning = CLIENT_MEANING.get(option.field, option.meaning) if only is not None else option.meaning
            text = f"{meaning} [{value}{option.variable}]"
            if option.switch:
                click.option(*names, is_flag=True, default=False, help=text)(function)
            else:
                kind = option.parser.metavar
                complete = files if kind == "PATH" else None
                click.option(*names, multiple=option.many, metavar=kind, help=text, shell_complete=complete)(function)
        return function

    return decorate


def given(values: dict[str, Any]) -> dict[str, str | Sequence[str]]:
    """Of what click collected, the flags that were on the command line, as ``settings.read_settings`` takes them."""
    texts = {field: "true" if value is True else value for field, value in values.items()}
    return {field: text for field, text in texts.items() if text not in (None, False, ())}


class StartFailed(Exception):
    """Nothing could be started; the text is one line for the user."""


def run_command(command: click.Command, name: str, context: object = None) -> int:
    """Run a command and return its exit code; every error that is the user's is one line on stderr.

    Args:
      context: what a command with ``click.pass_obj`` gets.
    """
    _standard_streams()
    try:
        code = command.main(prog_name=name, standalone_mode=False, obj=context)
        sys.stdout.flush()
    except click.ClickException as error:
        text = error.format_message()
        if text.startswith("Usage:"):  # no command was named: click answers with the whole help
            print(text, file=sys.stderr)
            return USAGE
        return fail(name, text, USAGE)
    except StartFailed as error:
        return fail(name, str(error), FAILED)
    except click.Abort:
        return 130
    except OSError as error:
        if error.filename is not None or error.errno not in (*FULL, errno.EPIPE):
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for the interpreter's end, which writes the rest)
        if error.errno == errno.EPIPE:
            return 128 + signal.SIGPIPE
        return fail(name, f"stdout can't be written: {error.strerror}", FAILED)
    return code if isinstance(code, int) else 0


def exit_with(code: int) -> NoReturn:
    """End the program. What is left goes with the process: a last look at all of it would take a twentieth of a second.

    Raises:
      SystemExit: always.
    """
    gc.freeze()
    sys.exit(code)


def _standard_streams() -> None:
    """Open those of 0, 1 and 2 that whoever started us has closed: else a socket or a file of ours would get the
    number, and what is printed would go there."""
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:  # a lower one was free, so this is not the lowest
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, stream, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def fail(name: str, text: str, code: int) -> int:
    """Say on one line why nothing was started."""
    print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    return code


def _joined(args: Sequence[str]) -> Iterator[str]:
    bare = {option.flag for option in settings.OPTIONS if option.bare}
    words = (*settings.TRUE, *settings.FALSE)
    position = 0
    while position < len(args):
        argument = args[position]
        position += 1
        if argument == "--":
            yield from args[position - 1 :]
            return
        if argument in bare:
            follows = position < len(args) and args[position].lower() in words
            yield f"{argument}={args[position] if follows else 'true'}"
            position += follows
        else:
            yield argument
