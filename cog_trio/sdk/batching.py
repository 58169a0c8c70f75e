"""`batch`: a helper of an async model that takes items of many predictions in one call.

Each prediction awaits the helper with one item of its own. The items wait in one line, first come, first served. A
batch leaves when ``max_size`` items wait, or when the first of them has waited for ``max_wait``; while one is worked
at, the next one fills. Each prediction stays one of its own: its id, logs, metrics, webhooks, cancel and error are
those of any concurrent run.

No task stands behind the line: whoever waits for an item looks at its own deadline, and the end of a batch begins the
next one. A plain helper is called in one thread. An async helper is a task beside the predictions, so that the end of
one of them does not end it for the others. asyncio and trio are imported by the model, never by this module.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from types import TracebackType

T = TypeVar("T")
R = TypeVar("R")
MAX_SIZE: Final = 8  # items
MAX_WAIT: Final = 0.01  # seconds


class Host(Protocol):
    """What a worker adds: whose the text of a batch is, and the nursery of a trio model."""

    def share(self, contexts: list[Context]) -> Context:
        """A context in which what is printed goes to the runs of all of these."""

    def end_share(self, context: Context) -> None:
        """The call in this context has ended: what it has printed is sent before the ends of its runs."""

    def start_trio_task(self, function: Callable[[], Awaitable[None]]) -> None:
        """Start a task that lives as long as the model's loop."""


_host: Host | None = None


def set_host(host: Host | None) -> None:
    """Say who serves the model; None: nobody, as when its code is called by a test."""
    global _host
    _host = host


@overload
def batch(function: Callable[..., Any], /) -> BatchMethod[Any, Any]: ...
@overload
def batch(
    *, max_size: int = MAX_SIZE, max_wait: float = MAX_WAIT
) -> Callable[[Callable[..., Any]], BatchMethod[Any, Any]]: ...
def batch(function: Any = None, /, *, max_size: int = MAX_SIZE, max_wait: float = MAX_WAIT) -> Any:
    """Make a helper that takes a list and returns a list into one that is awaited with one item.

    Args:
      max_size: items of one call, at most.
      max_wait: seconds that an item waits for others.

    Raises:
      TypeError, ValueError: if a limit is not a number of its kind, or ``function`` is not a function.
    """
    if isinstance(max_size, bool) or not isinstance(max_size, int):
        raise TypeError(f"@batch(max_size=...) takes an int, got {type(max_size).__name__}")
    if max_size < 1:
        raise ValueError(f"@batch(max_size=...) must be at least 1, got {max_size}")
    if isinstance(max_wait, bool) or not isinstance(max_wait, (int, float)):
        raise TypeError(f"@batch(max_wait=...) takes seconds, got {type(max_wait).__name__}")
    if not 0 <= max_wait < math.inf:
        raise ValueError(f"@batch(max_wait=...) must be 0 or more seconds, got {max_wait}")

    def wrap(target: Callable[..., Any]) -> BatchMethod[Any, Any]:
        if not inspect.isfunction(target) or inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
            raise TypeError("@batch goes on a function or method that takes a list and returns a list")
        return BatchMethod(target, max_size, float(max_wait))

    return wrap if function is None else wrap(function)


class BatchMethod(Generic[T, R]):
    """What `batch` makes of a function; each instance of its class has a line of its own."""

    def __init__(self, function: Callable[..., Any], max_size: int, max_wait: float) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._limits = (max_size, max_wait)
        self._name = function.__name__
        self._key = f"{function.__qualname__} of {id(self)}"  # not the name: ``super().helper`` has a line of its own
        self._alone: Batcher[T, R] | None = None

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        try:
            lines = vars(instance)
        except TypeError:
            raise TypeError(f"a class with __slots__ can't have the batch method {self._name}") from None
        line = lines.get(self._key)
        if line is None:
            line = lines[self._key] = Batcher(self._function.__get__(instance), *self._limits)
        return line

    async def __call__(self, item: T) -> R:
        """Of a function that is not a method. See `Batcher.__call__`."""
        if self._alone is None:
            self._alone = Batcher(self._function, *self._limits)
        return await self._alone(item)


class _Item(Generic[T, R]):
    """One item, from its call to its result."""

    def __init__(self, value: T, loop: _Loop, deadline: float) -> None:
        self.value = value
        self.context = copy_context()
        self.deadline = deadline
        self.done = loop.make_event()
        self.batch: _Batch[T, R] | None = None  # once it has left the line
        self.result: Any = None
        self.error: BaseException | None = None
        self.trace: TracebackType | None = None  # of the error; each item that raises it would add its own frames


class _Batch(Generic[T, R]):
    """The items of one call."""

    def __init__(self, items: list[_Item[T, R]]) -> None:
        self.items = items
        self.wanted = len(items)  # of those that wait for it
        self.cancel: Callable[[], object] | None = None  # of an async helper
        self.context: Context | None = None  # of the call


class Batcher(Generic[T, R]):
    """The line of one helper. All methods are for the model's event loop."""

    def __init__(self, function: Callable[[list[T]], Any], max_size: int, max_wait: float) -> None:
        self._function = function
        self._name = getattr(function, "__name__", "the batch helper")
        self._max_size = max_size
        self._max_wait = max_wait
        self._line: deque[_Item[T, R]] = deque()
        self._working = False
        self._loop: _Loop | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def __call__(self, item: T) -> R:
        """Wait for the result of one item.

        Raises:
          Exception: what stands for this item in the list that the helper returned, or what the helper raised.
          TypeError: if the helper did not return a list with one result for each item.

        Cancellation: the item is left out of a batch that has not begun. One that has begun goes on for the others; if
        nobody waits for it any more, an async helper is cancelled, and what a plain one returns is dropped.
        """
        loop = self._enter()
        mine: _Item[T, R] = _Item(item, loop, loop.now() + self._max_wait)
        self._line.append(mine)
        if len(self._line) >= self._max_size:
            self._begin()
        try:
            if mine.batch is None and not await loop.wait(mine.done, self._max_wait):
                self._begin(overdue=True)
            await loop.wait(mine.done, None)
        finally:
            if mine.batch is None:
                with suppress(ValueError):  # its loop has ended, and the line with it
                    self._line.remove(mine)
            else:
                mine.batch.wanted -= 1
                if not mine.batch.wanted and mine.batch.cancel is not None:
                    mine.batch.cancel()
        if mine.error is not None:
            raise mine.error.with_traceback(mine.trace)
        return mine.result  # type: ignore[no-any-return]

    def _enter(self) -> _Loop:
        """The running loop; what waits in one that has ended is forgotten."""
        loop = self._loop
        if loop is None or not loop.runs:
            loop = self._loop = _running_loop()
            self._line.clear()
            self._working = False
        return loop

    def _begin(self, *, overdue: bool = False) -> None:
        """Begin a batch, if none is worked at and the line is full or the first of it has waited long enough."""
        line, loop = self._line, self._loop
        if self._working or not line or loop is None or not (overdue or len(line) >= self._max_size):
            return
        batch: _Batch[T, R] = _Batch([line.popleft() for _ in range(min(self._max_size, len(line)))])
        for item in batch.items:
            item.batch = batch
        self._working = True
        contexts = [item.context for item in batch.items]
        context = contexts[0].copy() if _host is None else _host.share(contexts)
        batch.context = context
        values = [item.value for item in batch.items]
        try:
            if inspect.iscoroutinefunction(self._function):
                batch.cancel = loop.start(functools.partial(self._work, batch, values, loop), context)
            else:
                self._call_in_thread(batch, values, loop, context)
        except Exception as error:  # noqa: BLE001  no thread or task can be started: it is the failure of the batch
            self._end(batch, None, error)

    async def _work(self, batch: _Batch[T, R], values: list[T], loop: _Loop) -> None:
        """Run an async helper; the task of one batch."""
        results, fault = None, None
        try:
            results = await self._function(values)
        except loop.cancelled as error:
            fault = error
            raise
        except BaseException as error:  # noqa: BLE001  SystemExit too is a failure of the batch, not of the loop
            fault = error
        finally:
            if self._loop is loop:
                self._end(batch, results, fault)

    def _call_in_thread(self, batch: _Batch[T, R], values: list[T], loop: _Loop, context: Context) -> None:
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, f"batch {self._name}")
        called: Future[Any] = self._thread.submit(context.run, self._function, values)

        def tell(future: Future[Any]) -> None:
            fault = future.exception()
            results = future.result() if fault is None else None
            loop.call_soon(lambda: self._end(batch, results, fault) if self._loop is loop else None)

        called.add_done_callback(tell)

    def _end(self, batch: _Batch[T, R], results: Any, fault: BaseException | None) -> None:
        """Give each item its result, and begin the next batch."""
        self._working = False
        if _host is not None and batch.context is not None:
            _host.end_share(batch.context)
        if fault is None:
            fault = _misfit(self._name, results, len(batch.items))
        elif not isinstance(fault, Exception):
            fault = RuntimeError(f"{self._name} ended with {type(fault).__name__}")
        for number, item in enumerate(batch.items):
            result = results[number] if fault is None else fault
            item.error, item.result = (result, None) if isinstance(result, Exception) else (None, result)
            item.trace = None if item.error is None else item.error.__traceback__
            item.done.set()
        loop = self._loop
        self._begin(overdue=loop is not None and bool(self._line) and self._line[0].deadline <= loop.now())


def _misfit(name: str, results: Any, count: int) -> TypeError | None:
    if not isinstance(results, (list, tuple)):
        what = f"returned {type(results).__name__}"
    elif len(results) != count:
        what = f"returned {len(results)} results"
    else:
        return None
    return TypeError(f"{name} was called with {count} items and {what}: it must return a list with one result for each")


# The two kinds of event loops.


class _Event(Protocol):
    def set(self) -> object: ...


class _Loop(Protocol):
    """One event loop, as far as a line needs it."""

    cancelled: type[BaseException]  # what a cancelled task gets

    @property
    def runs(self) -> bool: ...
    def now(self) -> float: ...
    def make_event(self) -> _Event: ...
    async def wait(self, event: Any, seconds: float | None) -> bool:
        """Wait until the event is set, for so long at most; return whether it is."""
        ...

    def start(self, function: Callable[[], Awaitable[None]], context: Context) -> Callable[[], object]:
        """Start a task; return what cancels it."""
        ...

    def call_soon(self, function: Callable[[], object]) -> None:
        """From any thread: call it in the loop. A loop that has ended calls nothing."""
        ...


class _FutureEvent:
    """An event of one asyncio loop."""

    def __init__(self, future: Any) -> None:
        self.future = future

    def set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _AsyncioLoop:
    def __init__(self) -> None:
        import asyncio

        self._asyncio = asyncio
        self.cancelled: type[BaseException] = asyncio.CancelledError
        self._loop = asyncio.get_running_loop()
        self._tasks: set[Any] = set()  # asyncio keeps none alive

    @property
    def runs(self) -> bool:
        return _asyncio_loop() is self._loop

    def now(self) -> float:
        return self._loop.time()

    def make_event(self) -> _FutureEvent:
        return _FutureEvent(self._loop.create_future())

    async def wait(self, event: _FutureEvent, seconds: float | None) -> bool:
        await self._asyncio.wait({event.future}, timeout=seconds)
        return bool(event.future.done())

    def start(self, function: Callable[[], Awaitable[None]], context: Context) -> Callable[[], object]:
        task = context.run(self._loop.create_task, _coroutine(function))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task.cancel

    def call_soon(self, function: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # it is closed, and nobody waits


class _TrioLoop:
    def __init__(self) -> None:
        import trio

        self._trio = trio
        self.cancelled: type[BaseException] = trio.Cancelled
        self._token = trio.lowlevel.current_trio_token()

    @property
    def runs(self) -> bool:
        try:
            return self._trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def now(self) -> float:
        return self._trio.current_time()

    def make_event(self) -> Any:
        return self._trio.Event()

    async def wait(self, event: Any, seconds: float | None) -> bool:
        with self._trio.move_on_after(math.inf if seconds is None else seconds):
            await event.wait()
        return bool(event.is_set())

    def start(self, function: Callable[[], Awaitable[None]], context: Context) -> Callable[[], object]:
        if _host is None:
            raise RuntimeError("an async batch helper of a trio model needs a worker of cog-trio around it")
        scope = self._trio.CancelScope()

        async def run() -> None:
            with scope:
                await function()

        context.run(_host.start_trio_task, run)
        return scope.cancel

    def call_soon(self, function: Callable[[], object]) -> None:
        try:
            self._token.run_sync_soon(function)
        except self._trio.RunFinishedError:
            return  # nobody waits


async def _coroutine(function: Callable[[], Awaitable[None]]) -> None:
    await function()


def _asyncio_loop() -> Any:
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def _running_loop() -> _Loop:
    return _TrioLoop() if _asyncio_loop() is None else _AsyncioLoop()
