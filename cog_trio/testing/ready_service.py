"""A service in the test's own process, ready when the block begins; the worker is a real process, or a fake one."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from cog_trio import PredictionService, Settings, open_service
from cog_trio.testing.helper_tasks import need_real_time
from cog_trio.testing.processes import MARK, kill_marked, nothing_left

if TYPE_CHECKING:
    from cog_trio.orchestrator.process import WorkerLink

START: Final = 30.0  # seconds until the model must be ready


@asynccontextmanager
async def open_ready_service(
    model: str | Path | None = None,
    *,
    settings: Settings | None = None,
    worker: WorkerLink | None = None,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
    timeout: float = START,
) -> AsyncIterator[PredictionService]:
    """A service for ``model``, which means what it means for ``cog_trio.open_service``, or for a fake ``worker``.

    ``env`` goes over our environment. With ``ready`` it is READY when the block begins, which may take ``timeout``
    seconds; without it setup still goes on.

    Raises:
      AssertionError: if setup failed (the text has what it printed) or took too long, or a process of the model is
        left at the end.
      BadModel: if there is no such file or folder, or its cog.yaml is wrong.
      ServiceBroken: as ``cog_trio.open_service``. What the block raises passes through unchanged.

    Cancellation: as ``cog_trio.open_service``.
    """
    if worker is not None:
        async with open_service(settings=settings, worker=worker) as service:
            if ready:
                await _until_ready(service, timeout)
            yield service
        return
    need_real_time("a model in a worker process")
    if model is None:
        raise TypeError("open_service needs a model or a worker")
    mark = uuid.uuid4().hex
    try:
        async with open_service(model, settings=settings, environment={MARK: mark, **(env or {})}) as service:
            if ready:
                await _until_ready(service, timeout)
            yield service
        await nothing_left(mark)
    finally:
        kill_marked(mark)


async def _until_ready(service: PredictionService, timeout: float) -> None:
    with trio.move_on_after(timeout):
        health = await service.wait_started()
        if health.status != "READY":
            printed = "" if health.setup is None else health.setup.logs.strip()
            raise AssertionError(f"the model is {health.status}, not READY: {printed or health.cause}")
        return
    raise AssertionError(f"the model's setup took more than {timeout:g} s")
