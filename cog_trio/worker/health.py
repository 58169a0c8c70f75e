"""The user's health check: beside the control path, never in it, and five seconds at most (W32, W64).

A coroutine function of an async model runs on its loop; every other check runs in one thread, made at the first
one. A check that hangs keeps its thread or task: until it has ended, all that come after are answered "timed out"
at once. ``None`` and truthy results are healthy, everything else is not (D32).
"""

from __future__ import annotations

import contextvars
import inspect
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from cog_trio.bridge.protocol import HealthcheckResult, HealthcheckStatus
from cog_trio.worker.faults import cut, one_line

if TYPE_CHECKING:
    import asyncio

LIMIT: Final = 5.0  # seconds
MAX_SHOWN: Final = 200  # bytes of a falsy result
PREFIX: Final = "Healthcheck failed: "  # as the reference words it
CANCELLED: Final = f"{PREFIX}CancelledError"
TIMED_OUT: Final = f"{PREFIX}user-defined healthcheck timed out after {LIMIT:.1f} seconds"


class Run:
    """One check under way, or stuck."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.fault: str | None = None
        self.token = trio.lowlevel.current_trio_token()

    def finish(self, fault: str | None) -> None:
        """From any thread."""
        self.fault = fault
        try:
            self.token.run_sync_soon(self.done.set)
        except trio.RunFinishedError:
            return  # the worker is on its way out: nobody asks any more


class HealthCheck:
    """``check`` is the model's bound method, None without one; ``context`` is what it runs in.

    ``loop`` is that of an async model.
    """

    def __init__(
        self,
        check: Callable[[], Any] | None,
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._check = check
        self._context = context
        self.loop = loop if inspect.iscoroutinefunction(check) else None
        self._jobs: queue.SimpleQueue[Run] | None = None
        self._run: Run | None = None

    async def __call__(self, id: str) -> HealthcheckResult:
        """In the I/O thread."""
        fault = await self._ask() if self._check is not None else None
        status = HealthcheckStatus.HEALTHY if fault is None else HealthcheckStatus.UNHEALTHY
        return HealthcheckResult(id, status, fault)

    async def _ask(self) -> str | None:
        if self._run is not None and not self._run.done.is_set():
            return TIMED_OUT
        run = self._run = Run()
        task = self._start(run)
        with trio.move_on_after(LIMIT) as limit:
            await run.done.wait()
        if not limit.cancelled_caught:
            return run.fault
        if task is not None:
            task()
        return TIMED_OUT

    def _start(self, run: Run) -> Callable[[], object] | None:
        """Begin a check; gives what cancels it, where that can be done."""
        if self.loop is None:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=self._work, args=(self._jobs,), name="cog-trio health", daemon=True).start()
            self._jobs.put(run)
            return None
        loop, tasks = self.loop, []

        def begin() -> None:
            task = self._context.copy().run(loop.create_task, self._on_loop())
            task.add_done_callback(lambda task: run.finish(CANCELLED if task.cancelled() else task.result()))
            tasks.append(task)

        def cancel() -> None:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        loop.call_soon_threadsafe(begin)
        return cancel

    def _work(self, jobs: queue.SimpleQueue[Run]) -> None:
        while True:
            run = jobs.get()
            run.finish(self._context.copy().run(self._in_thread))

    def _in_thread(self) -> str | None:
        assert self._check is not None
        try:
            result = self._check()
            if inspect.isawaitable(result):
                import asyncio  # a sync model does without, unless its check is a coroutine

                result = asyncio.run(_await(result))
            return verdict(result)
        except BaseException as error:  # noqa: BLE001  SystemExit and the like are the check's failure, not ours
            return PREFIX + one_line(error)

    async def _on_loop(self) -> str | None:
        assert self._check is not None
        try:
            return verdict(await self._check())
        except BaseException as error:  # noqa: BLE001  none may end the loop, or leave the check without an answer
            return PREFIX + one_line(error)


async def _await(awaitable: Any) -> Any:
    return await awaitable


def verdict(result: object) -> str | None:
    if result is None or result:
        return None
    return f"{PREFIX}user-defined healthcheck returned {cut(repr(result), MAX_SHOWN)}"
