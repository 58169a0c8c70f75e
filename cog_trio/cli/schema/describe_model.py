"""What ``schema`` prints and ``doctor`` asks for: the OpenAPI document of a model.

A worker imports the model, describes it and ends, before ``setup`` unless that is wanted; user code never runs in this
process. ``schema`` shows on stderr what the model prints meanwhile, and the reason when it does not load: the place in
the model where there is one, then one line. Signals keep their default: if we die, the guardian ends the worker.

This module imports the rest of the package, so it is imported only after the worker was spawned.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import trio

from cog_trio.bridge.protocol import Init, Log
from cog_trio.cli.options import PREDICT, TRAIN, fail
from cog_trio.cli.run.input_table import input_lines, input_rows
from cog_trio.orchestrator.control_channel import Event
from cog_trio.orchestrator.orchestrator import NeverReady, open_orchestrator

if TYPE_CHECKING:
    from cog_trio.cli.launch_plan import LaunchPlan
    from cog_trio.orchestrator.spawn import WorkerProcess

DOES_NOT_LOAD: Final = 1  # exit code


class Loaded(NamedTuple):
    """What came of it."""

    document: bytes
    printed: str  # by the model, meanwhile
    cause: str | None = None  # why there is no document
    faults: tuple[str, ...] = ()  # the lines of the cause, if it has several; they are printed too


def load_model_schema(plan: LaunchPlan, process: WorkerProcess, *, setup: bool = False) -> Loaded:
    """Have a worker import the model and describe it, with ``setup`` also set it up."""
    heard: list[str] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Log):
            heard.append(event.data)

    chosen = plan.settings
    init = Init(
        plan.predict,
        plan.train,
        chosen.max_concurrency,
        describe=not setup,
        concurrency_from=chosen.concurrency_from,
    )
    try:
        return Loaded(trio.run(_describe, plan, process, init, on_event), "".join(heard))
    except NeverReady as error:
        printed = "".join(heard)
        if printed.endswith(f"{error}\n"):  # a trace without a place says no more than the cause
            return Loaded(b"", printed.removesuffix(f"{error}\n"), str(error))
        return Loaded(b"", printed, str(error), _faults(printed, str(error)))
    except OSError as error:  # no descriptors are left, for instance
        return Loaded(b"", "".join(heard), f"the worker can't be used: {error}")


def print_schema(plan: LaunchPlan, process: WorkerProcess, *, as_table: bool = False) -> int:
    """Print the document, or its inputs ``as_table``; the exit code."""
    for warning in plan.warnings:
        print(f"{plan.name}: warning: {warning}", file=sys.stderr)
    loaded = load_model_schema(plan, process)
    document = loaded.document
    sys.stderr.write(loaded.printed)
    sys.stderr.flush()
    if loaded.cause is not None:
        why = "the faults are told above, a line each" if loaded.faults else loaded.cause
        return fail(plan.name, f"{plan.predict or plan.train} does not load: {why}", DOES_NOT_LOAD)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends us without a word
    if as_table:
        whole = msgspec.json.decode(document)
        trains = plan.predict is None
        print("\n".join(input_lines(input_rows(whole, TRAIN if trains else PREDICT))))
    else:
        sys.stdout.buffer.write(msgspec.json.format(document, indent=2) + b"\n")
    sys.stdout.flush()
    return 0


def _faults(printed: str, cause: str) -> tuple[str, ...]:
    """The last lines of what was printed, if they are the cause; it came as one line."""
    lines: list[str] = []
    for line in reversed(printed.splitlines()):
        lines.insert(0, line)
        if (text := " ".join(lines)) == cause:
            return tuple(lines) if len(lines) > 1 else ()
        if len(text) > len(cause):
            break
    return ()


async def _describe(plan: LaunchPlan, process: WorkerProcess, init: Init, on_event: Callable[[Event], None]) -> bytes:
    async with open_orchestrator(process, init, plan.settings, on_event=on_event) as orchestrator:
        return bytes(orchestrator.described.schema)
