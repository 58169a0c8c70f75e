"""Makes the inputs of one run ready.

Most runs need nothing but the decoding of some JSON: ``load_inputs`` does that on the thread that runs the model.
Decoding keeps the interpreter to itself wherever it is done, so a thread of its own would gain nothing, and the objects
that it makes would have the model's finalizers run there. Files from URLs are fetched in the I/O thread, by a task that
a cancel of the run cuts. Nothing is deleted here: the spilled input and the downloads are the parent's to remove.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from cog_trio.bridge.json_value import decode_json
from cog_trio.bridge.protocol import DOWNLOADS, Fetching, Spilled
from cog_trio.net import http_client
from cog_trio.net.host_policy import HostPolicy
from cog_trio.sdk import _urls
from cog_trio.worker.ipc.message_writer import WriterBroken
from cog_trio.worker.model.input_values import FileSource, InputError, sources
from cog_trio.worker.model.tracebacks import last_line
from cog_trio.worker.runs.download import fetch_all
from cog_trio.worker.runs.slots import Job

_TIMEOUT: Final = float(os.environ.get("COG_TRIO_DOWNLOAD_TIMEOUT", "600"))  # seconds for all files of a run
_LIMIT: Final = int(os.environ["COG_TRIO_DOWNLOAD_LIMIT"]) if "COG_TRIO_DOWNLOAD_LIMIT" in os.environ else None
_HOSTS: Final = (
    HostPolicy(os.environ["COG_TRIO_INPUT_HOSTS"].split(",")) if "COG_TRIO_INPUT_HOSTS" in os.environ else None
)

NO_OBJECT: Final = "Input validation error: the input must be a JSON object"


def guard_url_files() -> None:
    """Have files that a model reads from URLs itself come by our client too, which knows what may be fetched."""
    _urls.open_client = partial(http_client.open_sync_client, hosts=_HOSTS)


class Unready(Exception):
    """The inputs can't be made; the run fails with this text."""


def load_inputs(job: Job) -> list[FileSource]:
    """Decode the input, on the thread that runs the model; gives the files that it needs besides.

    Raises:
      Unready: if it can't be read, or is not a JSON object.
    """
    raw, file = job.predict.input, job.predict.input_file
    if isinstance(raw, msgspec.Raw):
        job.input = _decode(raw)
    else:
        assert isinstance(file, str)
        try:
            spilled = _read_spilled(file)
        except (
            OSError,
            ValueError,
            msgspec.DecodeError,
            RecursionError,
        ) as error:  # ValueError: an empty file, no UTF-8
            raise Unready(f"Failed to rehydrate input: {last_line(error)}") from error
        job.context = spilled.context
        job.input = spilled.input
    if not isinstance(job.input, dict):
        raise Unready(NO_OBJECT)
    return sources(job.model.parameters, job.input)


async def fetch(job: Job, wanted: list[FileSource]) -> None:
    """Get the files, in the I/O thread.

    Raises:
      Unready: if one can't be had.

    Cancellation: files that were begun are left.
    """
    folder = partial(job.folder.make, DOWNLOADS)
    try:
        job.local = await fetch_all(
            wanted, folder, timeout=_TIMEOUT, limit=_LIMIT, hosts=_HOSTS, tell=partial(_tell, job)
        )
    except InputError as error:
        raise Unready(str(error)) from error
    except OSError as error:
        raise Unready(f"Input validation error: {last_line(error)}") from error


def _tell(job: Job, done: int, total: int | None) -> None:
    with suppress(WriterBroken):  # the end of the parent shows elsewhere
        job.slot.emit(Fetching(done, total))


class _Spilled(msgspec.Struct):
    """``Spilled`` with the input decoded at once."""

    input: Any
    context: dict[str, str] = {}


def _read_spilled(path: str) -> _Spilled:
    """Decoded out of the system's own pages: a copy of so much would cost as much time as its decoding."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return msgspec.json.decode(data, type=_Spilled)
        except msgspec.ValidationError:
            whole = data[:]
    parts = msgspec.json.decode(whole, type=Spilled)
    return _Spilled(decode_json(parts.input), parts.context)


def _decode(raw: msgspec.Raw) -> Any:
    try:
        return decode_json(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unready(f"Failed to rehydrate input: {last_line(error)}") from error
