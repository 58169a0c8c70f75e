"""A service for programs that are not trio programs: ``with start_service("predict.py") as service:``.

The service runs in a thread of its own, on a trio loop of its own, for the length of the block. Any thread may ask it:
``service.predict(...)`` blocks, ``await service.asyncio.predict(...)`` is for an event loop of asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import trio

import cog_trio

B = TypeVar("B")
T = TypeVar("T")
END: Final = object()  # of a stream
OVER: Final = "the service is closed: its block was left"


@contextlib.contextmanager
def start_service(model: Any = None, **options: Any) -> Iterator[ServicePortal]:
    """A service in a thread of its own, for the length of the block. Yields at once, while setup goes on.

    Arguments are those of ``cog_trio.open_service``. At the end of the block what runs is drained, as there; an
    exception that leaves the block does not wait for it. The worker has ended when the block is left.

    Raises:
      BadModel, ServiceBroken: as ``open_service``.
    """
    portal = ServicePortal(partial(cog_trio.open_service, model, **options))
    with portal.running():
        yield portal


class TrioThread(Generic[B]):
    """A thread with a trio loop, which holds an asynchronous block open. Other threads have calls made in it.

    ``name`` is that of the thread; ``block`` is what the block gives.
    """

    block: B

    def __init__(self, open_block: Callable[[], AbstractAsyncContextManager[B]], name: str) -> None:
        self._open_block = open_block
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._leave: trio.Event
        self._abort = False

    def start(self) -> None:
        """Enter the block. Raises: what that raises."""
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:
            if self._opened.exception() is None:  # Ctrl-C came while the block was entered
                self.stop(at_once=True)
            raise

    def stop(self, *, at_once: bool) -> None:
        """Leave the block, ``at_once`` by an exception, and wait until that is done. Raises: what that raises."""

        def leave() -> None:
            self._abort = at_once
            self._leave.set()

        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(leave)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 (raised where the block is left)
            if not self._opened.done():
                self._opened.set_exception(error)
            elif not isinstance(error, _LeftAtOnce):
                self._failure = error

    async def _serve(self) -> None:
        self._token, self._leave = trio.lowlevel.current_trio_token(), trio.Event()
        async with self._open_block() as self.block:
            async with trio.open_nursery() as self._nursery:
                self._opened.set_result(None)
                await self._leave.wait()
                self._nursery.cancel_scope.cancel()
            if self._abort:
                raise _LeftAtOnce

    def begin(self, function: Callable[..., Awaitable[T]], *args: Any, timeout: float | None = None) -> Future[T]:
        """Start a call; cancelling the future that it gives ends it.

        Raises:
          RuntimeError: the block is over.
        """
        future: Future[T] = Future()
        scope = trio.CancelScope()

        def start() -> None:
            if not self._leave.is_set():
                self._nursery.start_soon(self._do, function, args, timeout, future, scope)
            else:
                future.set_exception(RuntimeError(OVER))

        def cancel_it(done: Future[T]) -> None:
            if done.cancelled():
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(scope.cancel)

        future.add_done_callback(cancel_it)
        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            raise RuntimeError(OVER) from None
        return future

    async def _do(
        self,
        function: Callable[..., Awaitable[T]],
        args: Any,
        timeout: float | None,
        future: Future[T],
        scope: trio.CancelScope,
    ) -> None:
        error: BaseException | None = None
        try:
            with scope:
                if timeout is None:
                    result = await function(*args)
                else:
                    with trio.fail_after(timeout):
                        result = await function(*args)
        except trio.TooSlowError as late:
            error = late if timeout is None else TimeoutError(f"it did not end within {timeout:g} s, and was cancelled")
        except trio.Cancelled:
            _settle(future, RuntimeError(OVER))
            raise
        except BaseException as caught:  # noqa: BLE001 (the caller's)
            error = caught
        if error is not None:
            _settle(future, error)
        elif not scope.cancelled_caught:
            with contextlib.suppress(InvalidStateError):  # the caller has just left
                future.set_result(result)


class _LeftAtOnce(Exception):
    """The block was left by an exception: nothing waits for a grace."""


def _settle(future: Future[Any], error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # the caller has left
        future.set_exception(error)


def _wait(future: Future[T]) -> T:
    """Block until a call is over. Ctrl-C, or whatever else ends the wait, ends the call."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class ServicePortal:
    """A service in another thread; calls block. What they do and raise is as of ``cog_trio.PredictionService``.

    ``timeout`` is in seconds; when it is over the prediction is cancelled, and ``TimeoutError`` raised.
    """

    def __init__(self, open_service: Callable[[], AbstractAsyncContextManager[cog_trio.PredictionService]]) -> None:
        self._calls = TrioThread(open_service, "cog_trio service")
        self.asyncio = AsyncioPortal(self._calls)
        """The same for an event loop of asyncio."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The service runs for the length of the block. Raises: as ``open_service``."""
        self._calls.start()
        try:
            yield
        except BaseException:
            self._calls.stop(at_once=True)
            raise
        self._calls.stop(at_once=False)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until predictions can be created."""
        _wait(self._calls.begin(self._calls.block.wait_ready, timeout=timeout))

    def predict(
        self, input: Mapping[str, Any] | None = None, *, timeout: float | None = None, **options: Any
    ) -> cog_trio.Prediction:
        """Run a prediction to its end; ``Prediction.result()`` gives its output, or raises what became of it."""
        call = partial(self._calls.block.predict, input, **options)
        return _wait(self._calls.begin(call, timeout=timeout))

    def submit(self, input: Mapping[str, Any] | None = None, **options: Any) -> cog_trio.Prediction:
        """Start a prediction that nobody has to wait for."""
        return _wait(self._calls.begin(partial(self._calls.block.submit, input, **options)))

    def stream(
        self, input: Mapping[str, Any] | None = None, **options: Any
    ) -> Generator[cog_trio.StreamEvent, None, None]:
        """Run a prediction and give its events. Closing the generator early cancels the prediction."""
        manager = self._calls.block.stream(input, **options)
        events = _wait(self._calls.begin(manager.__aenter__))
        try:
            while (event := _wait(self._calls.begin(_next, events))) is not END:
                yield cast("cog_trio.StreamEvent", event)
        finally:
            _wait(self._calls.begin(manager.__aexit__, None, None, None))

    def get(self, id: str) -> cog_trio.Prediction | None:
        """The prediction of this id, if it runs or is retained."""
        return _wait(self._calls.begin(_later(self._calls.block.get, id)))

    def cancel(self, id: str) -> bool:
        """Cancel the prediction of this id; False if none runs."""
        return _wait(self._calls.begin(_later(self._calls.block.cancel, id)))

    def health(self) -> cog_trio.HealthSnapshot:
        """Health, without the model's own check."""
        return _wait(self._calls.begin(_later(self._calls.block.health)))


class AsyncioPortal:
    """As ``ServicePortal``, to be awaited under asyncio. A cancelled await cancels the prediction."""

    def __init__(self, calls: TrioThread[cog_trio.PredictionService]) -> None:
        self._calls = calls

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until predictions can be created."""
        await asyncio.wrap_future(self._calls.begin(self._calls.block.wait_ready, timeout=timeout))

    async def predict(
        self, input: Mapping[str, Any] | None = None, *, timeout: float | None = None, **options: Any
    ) -> cog_trio.Prediction:
        """Run a prediction to its end. Cancellation: the prediction is cancelled."""
        call = partial(self._calls.block.predict, input, **options)
        return await asyncio.wrap_future(self._calls.begin(call, timeout=timeout))

    async def submit(self, input: Mapping[str, Any] | None = None, **options: Any) -> cog_trio.Prediction:
        """Start a prediction that nobody has to wait for. Cancellation: it may have been started."""
        return await asyncio.wrap_future(self._calls.begin(partial(self._calls.block.submit, input, **options)))

    async def stream(
        self, input: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncGenerator[cog_trio.StreamEvent, None]:
        """Run a prediction and give its events. Closing the generator early, or a cancel, cancels the prediction."""
        manager = self._calls.block.stream(input, **options)
        events = await asyncio.wrap_future(self._calls.begin(manager.__aenter__))
        try:
            while (event := await asyncio.wrap_future(self._calls.begin(_next, events))) is not END:
                yield cast("cog_trio.StreamEvent", event)
        finally:
            await asyncio.wrap_future(self._calls.begin(manager.__aexit__, None, None, None))

    async def get(self, id: str) -> cog_trio.Prediction | None:
        """The prediction of this id, if it runs or is retained."""
        return await asyncio.wrap_future(self._calls.begin(_later(self._calls.block.get, id)))

    async def cancel(self, id: str) -> bool:
        """Cancel the prediction of this id; False if none runs."""
        return await asyncio.wrap_future(self._calls.begin(_later(self._calls.block.cancel, id)))


async def _next(events: cog_trio.PredictionStream) -> object:
    """The next event, or ``END``."""
    try:
        return await anext(events)
    except StopAsyncIteration:
        return END


def _later(function: Callable[..., T], *args: Any) -> Callable[[], Coroutine[Any, Any, T]]:
    """A function of the service that does not wait, called on its loop."""

    async def call() -> T:
        await trio.lowlevel.checkpoint()
        return function(*args)

    return call
