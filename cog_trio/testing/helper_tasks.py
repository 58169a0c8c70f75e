"""The one nursery of the fixtures: helper tasks for the length of a block, which never hide what the block raised.

A test reads better when its own error comes out as it is, and not inside of a group with one member.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock


@asynccontextmanager
async def open_helpers() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled when the block ends. What the block raises passes through unchanged.

    Raises:
      BaseExceptionGroup: if a helper failed; the block was cancelled for it.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001 (raised again below, once the nursery is closed)
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def need_real_time(what: str) -> None:
    """Refuse a test that has no trio, or that has a fake clock although ``what`` takes real time.

    Raises:
      RuntimeError: with what to do.
    """
    try:
        clock = trio.lowlevel.current_clock()
    except RuntimeError:
        raise RuntimeError(
            f"{what} needs trio: set trio_mode = true for pytest-trio, or mark the test with @pytest.mark.trio"
        ) from None
    if isinstance(clock, MockClock):
        raise RuntimeError(
            f"{what} works in real time, but this test has a fake clock (fake_worker, autojump_clock or mock_clock), "
            f"which jumps ahead while a process or a socket is waited for: use one or the other"
        )
