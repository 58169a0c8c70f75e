"""A run's way through the model, written once: call it, await it, take what it puts out, send that, close it.

``walk`` does none of this itself. It yields one step after the other, and whoever runs the model (a thread, an asyncio
task, a trio task) does the step in its own way, with user code open to a cancel and everything else closed to it, and
answers with its result, or by throwing what it raised. So the order of things, and what becomes of a fault, is the
same for all kinds of runners.

Small items are taken many in one step, and travel together; the step ends when they are to be sent. A cancel that comes
between two items is thrown into the generator: scopes and time-outs of its own may be around what we do then. If it
yields on all the same, that counts where the cancel was meant for one of those, and is the end where it was meant for
the run.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

from cog_trio.worker.cancel.stack import STATEFUL_FILES
from cog_trio.worker.runs.output_sender import DUE, END, Items, OutputSender, Unencoded
from cog_trio.worker.runs.slots import Job

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never

STATEFUL_FILES.add(__file__)


class Call(NamedTuple):
    """Call user code."""

    function: Callable[[], Any]


class Await(NamedTuple):
    """Call user code, and await what it gives."""

    function: Callable[[], Awaitable[Any]]


class InThread(NamedTuple):
    """Call what touches the disk; an event loop leaves it to a thread."""

    function: Callable[[], Any]


class Send(NamedTuple):
    """Send a frame, or what waits to be sent; then wait for room, if need be, and give others their turn."""

    frame: bytearray | None


Step: TypeAlias = Call | Await | InThread | Send
Walk: TypeAlias = Generator[Step, Any, BaseException | None]


def walk(
    job: Job, outputs: OutputSender, *, cancel: type[BaseException], is_cut: Callable[[], bool], awaits: bool = True
) -> Walk:
    """The steps of one run; returns its fault, if it has failed.

    Args:
      cancel: what a step raises when it is cancelled.
      is_cut: whether the run itself is cancelled.
      awaits: whether awaitables and async iterators are waited for, or values like all others.
    """
    faults: list[BaseException] = []  # a list can be emptied: a fault in a variable would keep itself alive
    items: Items | None = None
    try:
        result = yield Call(job.call_model)
        if awaits and inspect.isawaitable(result):
            awaitable = result
            try:
                result = yield Await(lambda: awaitable)
            finally:
                if inspect.iscoroutine(awaitable):
                    awaitable.close()  # a cancel came before its first step
                del awaitable
        if result is not None:
            found = yield Call(partial(outputs.look_at, result, awaits=awaits))
            result = None
            if not isinstance(found, Items):
                outputs.keep((yield InThread(found.encode)) if isinstance(found, Unencoded) else found)
            else:
                items = found
                while True:
                    try:
                        found = yield _next(items, faults)
                        if faults and found is not END and is_cut():
                            break
                        faults.clear()
                        if found is END:
                            break
                        found = (yield InThread(found.encode)) if isinstance(found, Unencoded) else found
                        yield Send(None if found is DUE else outputs.frame(found))
                    except cancel as error:
                        if not items.can_throw:
                            raise
                        faults[:] = [error]
    except BaseException as error:  # noqa: BLE001  whatever user code raises is the run's failure, not ours
        faults[:] = [error]
    if items is not None and items.close is not None:
        try:
            yield Await(items.close) if items.is_async else Call(items.close)
        except BaseException as second:  # noqa: BLE001  its clean-up failed too: the first fault is the run's
            if not faults:
                faults.append(second)
            elif not isinstance(second, cancel) or not isinstance(faults[0], cancel):
                outputs.note(second)
    return faults.pop() if faults else None


def _next(items: Items, thrown: list[BaseException]) -> Step:
    function = partial(items.throw, thrown[0]) if thrown else items.next
    return Await(function) if items.is_async else Call(function)


class RunTask(ABC):
    """A run that is a task of an event loop."""

    async def drive(self, steps: Walk) -> BaseException | None:
        """Do all steps; gives the run's fault, if it has failed."""
        faults: list[BaseException] = []
        value: Any = None
        while True:
            try:
                step = steps.throw(faults.pop()) if faults else steps.send(value)
            except StopIteration as end:
                return cast("BaseException | None", end.value)  # in a variable it would keep itself alive
            value = None
            try:
                match step:
                    case Call():
                        value = self.call(step.function)
                    case Await():
                        value = await self.wait_for(step.function)
                    case InThread():
                        value = await self.call_in_thread(partial(_outcome, step.function))
                        if isinstance(value, BaseException):
                            raise value  # here, so that no traceback shows the way through the thread
                    case Send():
                        await self.send(step.frame)
                    case _:
                        assert_never(step)
            except BaseException as error:  # noqa: BLE001  it is thrown into the walk
                faults.append(error)

    @abstractmethod
    def call(self, function: Callable[[], Any]) -> Any:
        """Call user code, open to a cancel."""

    @abstractmethod
    async def wait_for(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Call user code and await what it gives, open to a cancel."""

    @abstractmethod
    async def call_in_thread(self, function: Callable[[], Any]) -> Any:
        """Call ours in a thread. Cancellation: raised when the call has ended."""

    @abstractmethod
    async def send(self, frame: bytearray | None) -> None:
        """Send a frame, or what waits; then wait for room, and give others their turn. Cancellation: it is sent."""


def _outcome(function: Callable[[], Any]) -> Any:
    """What a function gives, or what it raises."""
    try:
        return function()
    except BaseException as error:  # noqa: BLE001  the caller raises it
        return error


def explain(
    call: Callable[[Callable[[], str | None]], str | None], outputs: OutputSender, fault: BaseException | None
) -> str | None:
    """Have ``call`` ask user code for the text of a fault; a text that can't be had leaves the type."""
    try:
        return call(partial(outputs.explain, fault))
    except BaseException:  # noqa: BLE001  a cancel, or what a signal handler of the user's raised
        return None if fault is None else type(fault).__name__
