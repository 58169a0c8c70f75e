"""A trio run's way through the model: call it, await it, take what it yields, send that, close it.

All here is protected, as ``trio_executor.py`` says, but for what ``open_to_gate`` and ``call`` enter.

An async generator that has yielded is suspended inside scopes of its own, perhaps: they are around what we do next, so
a ``Cancelled`` that comes to us is thrown into it, and what it yields after one of its own scopes has caught it counts.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import trio
from trio.lowlevel import disable_ki_protection

from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.model.output_values import is_file
from cog_trio.worker.model.tracebacks import leaves
from cog_trio.worker.runs.output_sender import Encoded, OutputSender, is_async_stream, is_stream
from cog_trio.worker.runs.slots import Job

SLICE: Final = 0.005  # seconds that a generator which never waits may keep the loop
T = TypeVar("T")
STATEFUL_FILES.add(__file__)


async def run_model(job: Job, scope: trio.CancelScope, outputs: OutputSender) -> None:
    model = job.model
    args, kwargs = call(lambda: model.bind(job.values()))
    result = call(lambda: model.call(*args, **kwargs))
    if inspect.isawaitable(result):
        result = await open_to_gate(partial(same, result))
    if is_async_stream(result):
        outputs.is_stream = True
        await _stream(job, scope, result, outputs)
    elif is_stream(result) or isinstance(result, (list, tuple)):
        outputs.is_stream = True
        await _each(job, result, outputs)
    elif result is not None:
        outputs.keep(await _encode(result, outputs, yielded=False))


async def _stream(job: Job, scope: trio.CancelScope, items: Any, outputs: OutputSender) -> None:
    """Send what an async iterator yields, then close it, whatever happens."""
    try:
        await _items(job, scope, items, outputs)
    except BaseException as error:
        try:
            await _close(items)
        except BaseException as second:  # noqa: BLE001  its clean-up failed too: the first fault is the run's
            if not isinstance(error, trio.Cancelled) or not isinstance(second, trio.Cancelled):
                outputs.note(second)
        raise
    await _close(items)


async def _items(job: Job, scope: trio.CancelScope, items: Any, outputs: OutputSender) -> None:
    throws = inspect.isasyncgen(items)
    thrown: trio.Cancelled | None = None
    last = time.monotonic()
    try:
        while True:
            try:
                item = await open_to_gate(items.__anext__ if thrown is None else partial(items.athrow, thrown))
            except StopAsyncIteration:
                return
            if thrown is not None and scope.cancel_called:
                raise thrown  # it yields on although it is cancelled: no more of it is taken
            thrown = None
            try:
                await _send(job, item, outputs, yielded=True)
                item = None
                now = time.monotonic()
                if now - last > SLICE:
                    await trio.lowlevel.checkpoint()
                    last = time.monotonic()
            except trio.Cancelled as error:
                if not throws:
                    raise
                thrown = error
    finally:
        del thrown  # its traceback holds this frame


async def _each(job: Job, result: Any, outputs: OutputSender) -> None:
    """A list, or a sync iterator that a coroutine returned: item by item, other tasks in between."""
    yielded = not isinstance(result, (list, tuple))
    items, end = iter(result), object()
    try:
        while (item := call(lambda: next(items, end))) is not end:
            await _send(job, item, outputs, yielded=yielded)
            await trio.lowlevel.checkpoint()
    finally:
        if yielded and (close := getattr(items, "close", None)) is not None:
            call(close)


async def _encode(item: Any, outputs: OutputSender, *, yielded: bool) -> Encoded:
    """One item as it travels; what touches the disk does so in a thread."""
    if is_file(item):
        wire = await trio.to_thread.run_sync(partial(outputs.try_encode, item, yielded=yielded))
        if isinstance(wire, BaseException):
            raise wire
        return wire
    return call(partial(outputs.encode, item, yielded=yielded))


async def _send(job: Job, item: Any, outputs: OutputSender, *, yielded: bool) -> None:
    """Send one item, once there is room; a cancel ends the wait, and the item is sent all the same."""
    frame = outputs.frame(await _encode(item, outputs, yielded=yielded))
    writer = job.slot.writer
    try:
        if writer.full:
            await writer.wait_room()
    finally:
        job.run_log.send()  # what was printed before it
        writer.write(frame)


def is_cancelled(fault: BaseException | None) -> bool:
    """Whether a fault is nothing but the end of a scope."""
    return fault is not None and all(isinstance(error, trio.Cancelled) for error in leaves(fault))


def explain(outputs: OutputSender, fault: BaseException | None) -> str | None:
    try:
        return call(lambda: outputs.explain(fault))
    except BaseException:  # noqa: BLE001  a cancel, or what a signal handler of the user's raised
        return None if fault is None else type(fault).__name__


@disable_ki_protection
async def open_to_gate(step: Callable[[], Awaitable[T]]) -> T:
    """Await user code, open to the gate: its frames, and those that it calls, may be interrupted."""
    return await step()


@disable_ki_protection
def call(step: Callable[[], T]) -> T:
    """Call user code that is not awaited, open to the gate."""
    return step()


def same(awaitable: Awaitable[T]) -> Awaitable[T]:
    return awaitable


async def _close(items: Any) -> None:
    if (close := getattr(items, "aclose", None)) is not None:
        await open_to_gate(close)
