"""``open_service``: from a model and settings to a service that runs for the length of a block.

The block's end is the service's: what is in flight is drained within the graces, the worker is ended and reaped,
the temporary folder goes. An error of the block cuts the grace and passes through as it was; an error of the service
itself becomes one named error with the group as its cause.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import trio

from cog_trio.files import open_workspace
from cog_trio.prediction import utcnow
from cog_trio.service import PredictionService
from cog_trio.settings import Settings
from cog_trio.spawn import WorkerProcess

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

if TYPE_CHECKING:
    from cog_trio.process import Link


class ServiceBroken(Exception):
    """The service itself failed, by a bug of ours or of the system; the causes are in ``__cause__``."""


@asynccontextmanager
async def open_service(
    model: str | None = None,
    *,
    settings: Settings | None = None,
    worker: WorkerProcess | Link | None = None,
    train: str | None = None,
    cwd: str | None = None,
    environment: Mapping[str, str] | None = None,
    now: Callable[[], datetime] = utcnow,
) -> AsyncIterator[PredictionService]:
    """A running service for as long as the block lasts. ``model`` is a reference like ``predict.py:Runner``.

    Yields at once, while setup goes on. ``worker`` is a process that was spawned before (it is adopted, ended and
    reaped here); all others are spawned here, in ``cwd``, with ``environment`` over ours. With neither a model nor a
    worker health stays UNKNOWN. Leaving the block drains the service; an exception that leaves it cuts the drain's
    grace.

    Raises:
      ServiceBroken: if the service itself failed; what the block raised passes through unchanged.

    Cancellation: predictions are cancelled, the worker is ended and reaped; both take bounded time.
    """
    settings = settings or Settings()
    failure: BaseException | None = None
    try:
        async with AsyncExitStack() as stack:
            if isinstance(worker, WorkerProcess):
                stack.enter_context(worker)  # killed and reaped on every way out, also if it is never adopted (D46)
            workspace = await stack.enter_async_context(open_workspace())
            nursery = await stack.enter_async_context(trio.open_nursery())
            service = PredictionService(settings, workspace, nursery, now)
            service._start(model, train, worker, cwd, environment or {})
            try:
                yield service
            except BaseException as error:  # noqa: BLE001 (raised again below, once the nursery is closed)
                failure = error
                service._abort()
            if not service.draining:
                service.shutdown()
            with trio.move_on_after(service._ending.limit, shield=True):
                await service.wait_stopped()
            service._webhooks.close()
            service._lifecycle.close()
            nursery.cancel_scope.cancel()
    except (trio.Cancelled, BaseExceptionGroup) as caught:
        ours = caught.split(trio.Cancelled)[1] if isinstance(caught, BaseExceptionGroup) else None
        if ours is not None and ours.split(Exception)[1] is None:  # KeyboardInterrupt and the like are no fault
            raise ServiceBroken(f"the service failed: {ours!r}") from caught
        if ours is not None or failure is None or isinstance(failure, trio.Cancelled):
            raise
    if failure is not None:
        raise failure
