"""What a program calls that runs a model inside its own nursery, made of what every face has: create, watch, follow.

``predict`` and ``stream`` are structured: the prediction belongs to the caller's block, so it has stopped when the
block is left, also by a cancelled scope, as far as the model stops within ``STOP_LIMIT``. ``submit`` is for the other
kind: the prediction is the service's.

Inputs are JSON values. A ``pathlib.Path`` among them is a local file: it is read in a thread, and travels as a data
URL.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import trio

from cog_trio.bridge.codec import encode_subclass
from cog_trio.bridge.protocol import Json, Mode
from cog_trio.files.output_files import data_url
from cog_trio.net.urls import shown_url
from cog_trio.service.prediction_stream import PredictionStream
from cog_trio.service.service_interface import ServiceInterface
from cog_trio.state.ids import BAD_ID, BAD_WEBHOOK, is_id, is_url
from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.prediction_errors import interruption

log: Final = logging.getLogger("cog_trio.service")

STOP_LIMIT: Final = 5.0  # seconds that a caller who leaves waits for the model to stop
_NO_JSON: Final = "an input of the type {} has no form in JSON; a file is given as a pathlib.Path"


class PythonAPI:
    """The part of the service that waits for predictions."""

    async def predict(
        self: ServiceInterface,
        input: Mapping[str, Json] | None = None,
        *,
        id: str | None = None,
        context: dict[str, str] | None = None,
        mode: Mode = Mode.PREDICT,
    ) -> Prediction:
        """Run one prediction to its end and give it, whether the model succeeded or failed, or somebody cancelled it;
        ``Prediction.result`` tells these apart.

        ``id`` is a name of the caller's. ``context`` is what the model sees as ``current_scope().context``. With
        ``Mode.TRAIN`` it is a training.

        Raises:
          InvalidInput, NotReady, NotOffered, AlreadyRunning, AtCapacity, QueueTimedOut: it was refused.
          WorkerDied, PredictionTimedOut, ServiceEnded, PredictionLost: it was cut short; the error has the prediction.
          OSError: a file among the inputs can't be read.
          TypeError, ValueError: an input is not a JSON value, the id is malformed, or the context holds non-strings.

        Cancellation: the prediction is cancelled, and Cancelled goes on when the model has stopped, ``STOP_LIMIT``
        later at most; a slot that is not free by then is free once it does stop.
        """
        check_request(id, context)
        sent = await encode_input(input)
        prediction = self.create(NewPrediction(sent, id, context or {}, mode, watched=True))
        try:
            with self.watch(prediction):
                await prediction.wait_finished()
        finally:
            await stopped(prediction)
        if (why := interruption(prediction)) is not None:
            raise why
        return prediction

    async def submit(
        self: ServiceInterface,
        input: Mapping[str, Json] | None = None,
        *,
        id: str | None = None,
        context: dict[str, str] | None = None,
        webhook: str | None = None,
        mode: Mode = Mode.PREDICT,
    ) -> Prediction:
        """Start a prediction that nobody has to wait for: it goes on in the service until it ends, is cancelled or the
        service ends.

        Raises: as ``predict`` when refused; after that nothing: see ``Prediction.result``.
        """
        check_request(id, context, webhook)
        sent = await encode_input(input)
        prediction = self.create(NewPrediction(sent, id, context or {}, mode, webhook=webhook))
        if prediction.waits_briefly:  # for a slot that is being freed
            await prediction.wait_decided()
            if prediction.refusal is not None:
                raise prediction.refusal
        return prediction

    @asynccontextmanager
    async def stream(
        self: ServiceInterface,
        input: Mapping[str, Json] | None = None,
        *,
        id: str | None = None,
        context: dict[str, str] | None = None,
        mode: Mode = Mode.PREDICT,
    ) -> AsyncIterator[PredictionStream]:
        """Start a prediction and give its events: ``async for event in stream``. Any model will do, ``@streaming`` or
        not.

        Leaving the block before the end cancels the prediction, as in ``predict``. A reader that is more than 4 MiB
        behind makes the model wait, until it has taken nothing for 10 seconds; then it loses events (``Lost``).

        Raises: as ``predict``; what cuts the prediction short is raised by the iteration.
        """
        check_request(id, context)
        sent = await encode_input(input)
        prediction = self.create(NewPrediction(sent, id, context or {}, mode, streamed=True))
        try:
            with self.follow(prediction) as subscription:
                yield PredictionStream(prediction, subscription)
        finally:
            self.creator_left(prediction)
            await stopped(prediction)


def check_request(id: str | None, context: dict[str, str] | None, webhook: str | None = None) -> None:
    """See to it that what goes beside an input can be sent on.

    Raises:
      TypeError, ValueError: with what is wrong.
    """
    if id is not None and not is_id(id):
        raise ValueError(f"the id {BAD_ID}")
    if webhook is not None and not is_url(webhook):
        raise ValueError(f"the webhook {BAD_WEBHOOK}")
    for item in (context or {}).items():
        if not all(isinstance(text, str) for text in item):
            raise TypeError(f"the context must hold texts alone, not {item!r}")


async def stopped(prediction: Prediction) -> None:
    """Wait until a prediction that was cancelled has stopped, for ``STOP_LIMIT`` at most. Cancellation: waits on."""
    if prediction.terminal or not prediction.cancel_requested:
        return
    with trio.move_on_after(STOP_LIMIT, shield=True) as limit:
        await prediction.wait_finished()
    if limit.cancelled_caught:
        log.warning("its model does not stop: the slot stays taken until it does", extra={"id": prediction.id})


class _HasFiles(Exception):
    """A file is among the inputs."""


async def encode_input(input: Mapping[str, Json] | None) -> bytes:
    """The input as JSON, local files as data URLs.

    Raises:
      OSError: if a file can't be read; the text names it.
      TypeError: if a value is not JSON, nor like it.
    """
    values = dict(input or {})
    with suppress(_HasFiles):
        return msgspec.json.encode(values, enc_hook=_refuse_files)
    return await trio.to_thread.run_sync(partial(msgspec.json.encode, values, enc_hook=_read_files))


def _refuse_files(value: object) -> Any:
    if isinstance(value, os.PathLike):
        raise _HasFiles
    return _plain(value)


def _read_files(value: object) -> Any:
    return data_url(os.fsdecode(value)) if isinstance(value, os.PathLike) else _plain(value)


def _plain(value: object) -> str:
    try:
        return encode_subclass(value)
    except TypeError:
        raise TypeError(_NO_JSON.format(type(value).__name__)) from None


def local_path(url: str) -> Path:
    """The place of a file that stands in an output as a ``file:`` URL: see ``output_folder`` of ``open_service``.

    Raises:
      ValueError: if it is not such a URL.
    """
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc:
        raise ValueError(f"not a file: URL: {shown_url(url)}")
    return Path(unquote(parts.path))
