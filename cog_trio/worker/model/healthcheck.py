"""The user's health check: beside the control path, never in it, and five seconds at most.

A coroutine function of an async or trio model runs on its loop; every other check runs in one thread, made at the first
one. A check that hangs keeps its thread or task: until it has ended, all that come after are answered "timed out"
at once. ``None`` and truthy results are healthy, everything else is not.
"""

from __future__ import annotations

import contextvars
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import trio

from cog_trio.bridge.protocol import HealthcheckResult, HealthcheckStatus
from cog_trio.worker.model.tracebacks import cut, last_line

LIMIT: Final = 5.0  # seconds
MAX_SHOWN: Final = 200  # bytes of a falsy result
PREFIX: Final = "Healthcheck failed: "  # as the reference words it
CANCELLED: Final = f"{PREFIX}CancelledError"
TIMED_OUT: Final = f"{PREFIX}user-defined healthcheck timed out after {LIMIT:.1f} seconds"


class Loop(Protocol):
    """The event loop of a model that has one."""

    def check(
        self,
        context: contextvars.Context,
        check: Callable[[], Coroutine[Any, Any, str | None]],
        finish: Callable[[str | None], None],
    ) -> Callable[[], object]:
        """Run a check as a task, in this context, and call ``finish`` in any thread; gives what cancels the task."""


class HealthcheckCall:
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

    ``loop`` is that of an async or trio model.
    """

    def __init__(
        self,
        check: Callable[[], Any] | None,
        context: contextvars.Context,
        loop: Loop | None = None,
    ) -> None:
        self._check = check
        self._context = context
        self._loop = loop if inspect.iscoroutinefunction(check) else None
        self._jobs: queue.SimpleQueue[HealthcheckCall] | None = None
        self._run: HealthcheckCall | None = None

    async def __call__(self, id: str) -> HealthcheckResult:
        """In the I/O thread."""
        fault = await self._ask() if self._check is not None else None
        status = HealthcheckStatus.HEALTHY if fault is None else HealthcheckStatus.UNHEALTHY
        return HealthcheckResult(id, status, fault)

    async def _ask(self) -> str | None:
        if self._run is not None and not self._run.done.is_set():
            return TIMED_OUT
        run = HealthcheckCall()
        try:
            task = self._start(run)
        except RuntimeError as error:  # no thread can be started: at the interpreter's end, or beyond a limit
            return PREFIX + last_line(error)
        self._run = run
        with trio.move_on_after(LIMIT) as limit:
            await run.done.wait()
        if not limit.cancelled_caught:
            return run.fault
        if task is not None:
            task()
        return TIMED_OUT

    def _start(self, run: HealthcheckCall) -> Callable[[], object] | None:
        """Begin a check; gives what cancels it, where that can be done."""
        if self._loop is None:
            if self._jobs is None:
                jobs: queue.SimpleQueue[HealthcheckCall] = queue.SimpleQueue()
                threading.Thread(target=self._work, args=(jobs,), name="cog-trio health", daemon=True).start()
                self._jobs = jobs  # now that its thread is there
            self._jobs.put(run)
            return None
        return self._loop.check(self._context.copy(), self._on_loop, run.finish)

    def _work(self, jobs: queue.SimpleQueue[HealthcheckCall]) -> None:
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
            return PREFIX + last_line(error)

    async def _on_loop(self) -> str | None:
        assert self._check is not None
        try:
            return verdict(await self._check())
        except trio.Cancelled:
            raise  # the scope around it takes this, and nothing else may
        except BaseException as error:  # noqa: BLE001  none may end the loop, or leave the check without an answer
            return PREFIX + last_line(error)


async def _await(awaitable: Any) -> Any:
    return await awaitable


def verdict(result: object) -> str | None:
    if result is None or result:
        return None
    return f"{PREFIX}user-defined healthcheck returned {cut(repr(result), MAX_SHOWN)}"
