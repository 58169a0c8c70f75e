"""Threads that decode and check large JSON, two at a time.

One call into a decoder keeps the interpreter's lock to its end, about 5 ms for each MB. A thread lets the event loop
run between two such calls, and the limit bounds how many of them can stand between two turns of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")

AT_ONCE: Final = 2  # threads
_limiter: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("decoding threads")


async def run_in_decoding_thread(function: Callable[..., T], *args: object) -> T:
    """Call a function that decodes or checks large JSON in a thread, when one of the few is free.

    Raises:
      Whatever the function raises.

    Cancellation: seen before the call begins and after it has ended.
    """
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(AT_ONCE)
        _limiter.set(limiter)
    return await trio.to_thread.run_sync(function, *args, limiter=limiter)
