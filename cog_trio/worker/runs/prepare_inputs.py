"""Makes the inputs of one run ready, in the I/O thread, before the main thread hears of it.

Most runs need nothing but the decoding of a little JSON: ``decode`` does that at once. The rest (a spilled or large
input, URLs that must become files) is a task, which a cancel of the run cuts. Nothing is deleted here: the spilled
input and the downloads are the parent's to remove, with the run's folder.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import trio

from cog_trio.bridge.json_value import decode_json
from cog_trio.bridge.protocol import DOWNLOADS, Fetching, Spilled
from cog_trio.net import http_client
from cog_trio.net.host_policy import HostPolicy
from cog_trio.sdk import _urls
from cog_trio.worker.ipc.message_writer import WriterBroken
from cog_trio.worker.model.input_values import InputError, sources
from cog_trio.worker.model.tracebacks import one_line
from cog_trio.worker.runs.download import fetch_all
from cog_trio.worker.runs.slots import Job

AT_ONCE: Final = 2**16  # bytes of JSON that are decoded without a thread
_TIMEOUT: Final = float(os.environ.get("COG_TRIO_DOWNLOAD_TIMEOUT", "600"))  # seconds for all files of a run
_LIMIT: Final = int(os.environ["COG_TRIO_DOWNLOAD_LIMIT"]) if "COG_TRIO_DOWNLOAD_LIMIT" in os.environ else None
_HOSTS: Final = (
    HostPolicy(os.environ["COG_TRIO_INPUT_HOSTS"].split(",")) if "COG_TRIO_INPUT_HOSTS" in os.environ else None
)
_urls.open_client = partial(http_client.open_sync_client, hosts=_HOSTS)  # files that a model reads itself


NO_OBJECT: Final = "Input validation error: the input must be a JSON object"


class Unready(Exception):
    """The inputs can't be made; the run fails with this text."""


def decode(job: Job) -> bool:
    """Decode the input, if it is small and at hand. Whether the job is ready to run.

    Raises:
      Unready: if it is no JSON object.
    """
    raw = job.predict.input
    if not isinstance(raw, msgspec.Raw) or len(memoryview(raw)) > AT_ONCE:
        return False
    job.input = _object(raw)
    return not sources(job.model.parameters, job.input)


async def prepare(job: Job) -> None:
    """Do what ``decode`` could not.

    Raises:
      Unready: if the input can't be read, or one of its files can't be had.

    Cancellation: files that were begun are left.
    """
    await trio.to_thread.run_sync(_load, job)
    wanted = sources(job.model.parameters, job.input)
    if not wanted:
        return
    try:
        job.local = await fetch_all(
            wanted,
            partial(job.folder.make, DOWNLOADS),
            timeout=_TIMEOUT,
            limit=_LIMIT,
            hosts=_HOSTS,
            tell=partial(_tell, job),
        )
    except InputError as error:
        raise Unready(str(error)) from error
    except OSError as error:
        raise Unready(f"Input validation error: {one_line(error)}") from error


def _tell(job: Job, done: int, total: int | None) -> None:
    with suppress(WriterBroken):  # the end of the parent shows elsewhere
        job.slot.emit(Fetching(done, total))


def _load(job: Job) -> None:
    predict = job.predict
    if isinstance(predict.input, msgspec.Raw):
        job.input = _object(predict.input)
        return
    assert isinstance(predict.input_file, str)
    try:
        spilled = _read_spilled(predict.input_file)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: an empty file, no JSON, no UTF-8
        raise Unready(f"Failed to rehydrate input: {one_line(error)}") from error
    if not isinstance(spilled.input, dict):
        raise Unready(NO_OBJECT)
    job.context = spilled.context
    job.input = spilled.input


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


def _object(raw: msgspec.Raw) -> dict[str, Any]:
    value = _decode(raw)
    if not isinstance(value, dict):
        raise Unready(NO_OBJECT)
    return value


def _decode(raw: msgspec.Raw) -> Any:
    try:
        return decode_json(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unready(f"Failed to rehydrate input: {one_line(error)}") from error
