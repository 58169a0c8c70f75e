"""``open_service``: from a model and settings to a service that runs for the length of a block.

The block's end is the service's: what is in flight is drained within the graces, the worker is ended and reaped,
the temporary folder goes. An error of the block cuts the grace and passes through as it was; an error of the service
itself becomes one named error with the group as its cause.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

import trio

from cog_trio.config.settings import CONCURRENCY_KEY, Settings
from cog_trio.files.workspace import open_workspace
from cog_trio.orchestrator.spawn import WorkerProcess
from cog_trio.service.service import PredictionService
from cog_trio.state.prediction import utcnow

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

if TYPE_CHECKING:
    from cog_trio.config.cog_yaml import ModelTarget
    from cog_trio.orchestrator.process import WorkerLink


log: Final = logging.getLogger("cog_trio.service")
NO_TRIO: Final = (
    "open_service needs an event loop of trio: start the program by trio.run(main), or take "
    "cog_trio.portal.start_service, which works under asyncio and without a loop"
)


class ServiceBroken(Exception):
    """The service itself failed, by a bug of ours or of the system; the causes are in ``__cause__``."""


@asynccontextmanager
async def open_service(
    model: str | os.PathLike[str] | None = None,
    *,
    settings: Settings | None = None,
    worker: WorkerProcess | WorkerLink | None = None,
    train: str | os.PathLike[str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    output_folder: str | os.PathLike[str] | None = None,
    now: Callable[[], datetime] = utcnow,
) -> AsyncIterator[PredictionService]:
    """A running service for as long as the block lasts. Yields at once, while setup goes on.

    ``model`` is a Python file, ``file.py:Name``, or a folder with a cog.yaml, which counts as it does for ``cog-trio
    serve``: it says where the worker starts and with which environment, and how many slots it has, unless ``settings``
    say so. With ``cwd`` nothing is looked for: ``model`` and ``train`` are references as the worker takes them,
    relative to that folder. ``environment`` goes over ours. ``worker`` is a process that was spawned before (it is
    adopted, ended and reaped here). With neither a model nor a worker health stays UNKNOWN.

    ``output_folder`` is where files that the model puts out stay, each run's in a folder of its own with a random name;
    the output has ``file:`` URLs then, which ``local_path`` takes apart, and removing them is the caller's. Without it
    they become data URLs, or go to ``Settings.upload_url``.

    Leaving the block drains the service; an exception that leaves it cuts the drain's grace.

    Raises:
      BadModel: if there is no such file or folder, or its cog.yaml is wrong.
      ServiceBroken: if the service itself failed; what the block raised passes through unchanged.
      RuntimeError: outside of trio; the text says what to do.

    Cancellation: predictions are cancelled, the worker is ended and reaped; both take bounded time.
    """
    try:
        trio.lowlevel.current_trio_token()  # before trio 0.29 there is no in_trio_run()
    except RuntimeError:
        raise RuntimeError(NO_TRIO) from None
    chosen, variables = settings or Settings(), dict(environment or {})
    predict, trains, folder = _text(model), _text(train), _text(cwd)
    files = _text(output_folder)
    if worker is None and folder is None and (target := _locate(predict, trains)) is not None:
        predict, trains, folder = target.predict, target.train, str(target.folder)
        variables = {**target.config.unset(os.environ), **variables}
        if chosen.max_concurrency is None:
            slots = target.config.max_concurrency
            chosen = dataclasses.replace(chosen, max_concurrency=slots, concurrency_from=CONCURRENCY_KEY)
        for warning in target.config.warnings:
            log.warning("%s", warning)
    failure: BaseException | None = None
    try:
        async with AsyncExitStack() as stack:
            if isinstance(worker, WorkerProcess):
                stack.enter_context(worker)  # killed and reaped on every way out, also if it is never adopted
            try:
                workspace = await stack.enter_async_context(open_workspace())
            except OSError as error:
                raise ServiceBroken(f"there is no temporary folder: {error}") from error
            nursery = await stack.enter_async_context(trio.open_nursery())
            service = PredictionService(chosen, workspace, nursery, now, files)
            service._start(predict, trains, worker, folder, variables)
            try:
                yield service
            except BaseException as error:  # noqa: BLE001 (raised again below, once the nursery is closed)
                failure = error
                service._abort()
            await service._close()
            nursery.cancel_scope.cancel()
    except (trio.Cancelled, BaseExceptionGroup) as caught:
        ours = caught.split(trio.Cancelled)[1] if isinstance(caught, BaseExceptionGroup) else None
        if ours is not None and ours.split(Exception)[1] is None:  # KeyboardInterrupt and the like are not faults
            raise ServiceBroken(f"the service failed: {ours!r}") from caught
        if ours is not None or failure is None or isinstance(failure, trio.Cancelled):
            raise
    if failure is not None:
        raise failure


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _locate(model: str | None, train: str | None) -> ModelTarget | None:
    """What is to be served, if anything is named.

    Raises:
      BadModel: as ``open_service``, and if model and training are not of one folder.
    """
    if model is None and train is None:
        return None
    from cog_trio.config.cog_yaml import BadModel, find_model  # with YAML, which those who say a cwd do without

    if model is None:
        return None if train is None else find_model(train, train_only=True)
    target = find_model(model)
    if train is None:
        return target
    training = find_model(train, train_only=True)
    if training.folder != target.folder:
        raise BadModel(f"{train} is of the folder {training.folder}, {model} of {target.folder}: name a cwd for both")
    return dataclasses.replace(target, train=training.train)
