"""A fake clock that stands while a thread works: threads take real time, and trio does not see them at work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import MockClock

T = TypeVar("T")


@contextmanager
def threads_hold_the_clock() -> Iterator[None]:
    """Within the block a ``MockClock`` does not jump as long as ``trio.to_thread.run_sync`` waits for a thread.

    It replaces that function for the whole process until the block ends, so it is for tests alone, one at a time.
    """
    run, working, threshold = trio.to_thread.run_sync, 0, 0.0

    async def run_sync(sync_fn: Callable[..., T], *args: Any, **options: Any) -> T:
        nonlocal working, threshold
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, MockClock):
            return await run(sync_fn, *args, **options)
        if not working:
            threshold, clock.autojump_threshold = clock.autojump_threshold, math.inf
        working += 1
        try:
            return await run(sync_fn, *args, **options)
        finally:
            working -= 1
            if not working:
                clock.autojump_threshold = threshold

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", run_sync)
        yield
