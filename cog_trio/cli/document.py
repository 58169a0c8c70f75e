"""``cog-trio schema``: the OpenAPI document of a model, on stdout.

A worker imports the model, describes it and ends before ``setup``; user code never runs in this process. What the
model prints meanwhile goes to stderr, as does the reason when it does not load: the place in the model where there
is one, then one line. Signals keep their default: if we die, the guardian ends the worker.

This module imports the rest of the package, so it is imported only after the worker was spawned (D46).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from cog_trio.bridge.protocol import Init, Log
from cog_trio.cli.options import fail
from cog_trio.orchestrator import Event, SetupFailed, open_orchestrator

if TYPE_CHECKING:
    from cog_trio.cli.launch import Launch
    from cog_trio.spawn import WorkerProcess

DOES_NOT_LOAD: Final = 1  # exit code


def print_schema(plan: Launch, process: WorkerProcess) -> int:
    """Print the document; the exit code."""
    heard: list[str] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Log):
            heard.append(event.data)

    for warning in plan.warnings:
        print(f"{plan.name}: warning: {warning}", file=sys.stderr)
    try:
        document = trio.run(_describe, plan, process, on_event)
    except SetupFailed as error:
        _show("".join(heard).removesuffix(f"{error}\n"))  # a trace without a place says no more than the cause
        return fail(plan.name, f"{plan.predict or plan.train} does not load: {error}", DOES_NOT_LOAD)
    _show("".join(heard))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends us without a word
    sys.stdout.buffer.write(msgspec.json.format(document, indent=2) + b"\n")
    sys.stdout.flush()
    return 0


async def _describe(plan: Launch, process: WorkerProcess, on_event: Callable[[Event], None]) -> bytes:
    init = Init(plan.predict, plan.train, max_concurrency=plan.settings.max_concurrency, describe=True)
    async with open_orchestrator(process, init, plan.settings, on_event=on_event) as orchestrator:
        return bytes(orchestrator.described.schema)


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
