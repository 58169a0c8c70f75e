"""A call of ours beside an asyncio loop, in a thread of its pool, that is never left alone."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def call_in_thread(loop: asyncio.AbstractEventLoop, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread, in the context of the task.

    Cancellation: raised when the call has ended. Otherwise it would go on to write into the folder of a run that has
    ended, and whose folder was removed.
    """
    done = loop.run_in_executor(None, partial(contextvars.copy_context().run, partial(call, *args, **kwargs)))
    try:
        return await asyncio.shield(done)
    finally:
        while not done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([done])
