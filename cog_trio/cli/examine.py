"""What ``doctor`` has a worker do: import the model, describe it, and if asked set it up.

User code runs in the worker alone. A signal ends us at once, and our guardian the worker.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from cog_trio.cli.launch import Launch
from cog_trio.settings import worker_variables
from cog_trio.spawn import spawn

if TYPE_CHECKING:
    from cog_trio.bridge.protocol import Init
    from cog_trio.orchestrator import Event
    from cog_trio.spawn import WorkerProcess


def examine(plan: Launch, setup: bool) -> str | None:
    """Why the model does not load, or with ``setup`` can't be set up; None if it does. What it printed meanwhile goes
    to stderr if so, or if it was set up."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with spawn(plan.folder, {**plan.environment, **worker_variables(plan.settings)}) as process:
        import trio

        from cog_trio.bridge.protocol import Init, Log
        from cog_trio.orchestrator import SetupFailed

        heard: list[str] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Log):
                heard.append(event.data)

        init = Init(plan.predict, plan.train, max_concurrency=plan.settings.max_concurrency, describe=not setup)
        cause: str | None = None
        try:
            trio.run(_load, plan, process, init, on_event)
        except SetupFailed as error:
            cause = str(error)
        if setup or cause is not None:
            sys.stderr.write("".join(heard).removesuffix(f"{cause}\n"))
        return cause


async def _load(plan: Launch, process: WorkerProcess, init: Init, on_event: Callable[[Event], None]) -> None:
    from cog_trio.orchestrator import open_orchestrator

    async with open_orchestrator(process, init, plan.settings, on_event=on_event):
        return
