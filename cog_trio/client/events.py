"""The events of a prediction that is followed, and how they are read from a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from cog_trio.client.errors import ClientError
from cog_trio.client.remote_prediction import RemotePrediction

LARGEST: Final = 2**31  # bytes of an event: an output with its files


class BadStream(ClientError):
    """The server sends what is not a stream of events of a prediction."""


@dataclass(frozen=True)
class StartEvent:
    """The prediction has begun; ``id`` is its."""

    id: str


@dataclass(frozen=True)
class OutputEvent:
    """A part of the output, or the whole of one that has no parts."""

    output: Any
    index: int


@dataclass(frozen=True)
class LogEvent:
    """Text that the model has printed."""

    data: str
    source: str  # stdout, stderr


@dataclass(frozen=True)
class MetricEvent:
    """A metric that the model has recorded."""

    name: str
    value: Any
    mode: str  # replace, increment, append


@dataclass(frozen=True)
class LostEvent:
    """So many events were lost on the way: the reader was too slow."""

    count: int


@dataclass(frozen=True)
class CompletedEvent:
    """The end, however it came; always the last event."""

    prediction: RemotePrediction


ClientEvent: TypeAlias = StartEvent | OutputEvent | LogEvent | MetricEvent | LostEvent | CompletedEvent


class ServerSentEvents:
    """Takes a body apart, piece by piece."""

    def __init__(self) -> None:
        self._name = self._id = ""
        self._data = bytearray()
        self._begun: list[bytes] = []  # of the line that is not yet whole
        self._size = 0  # bytes of the event so far

    def feed(self, piece: bytes) -> Iterator[tuple[str, str, bytes]]:
        """The events that are whole with this piece: name, id and data.

        Raises:
          BadStream: one is larger than ``LARGEST``.
        """
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = b"".join([*self._begun, end]).removesuffix(b"\r")  # joined once: a line may be a file
            self._begun = []
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                self._name = value.decode(errors="replace")
            elif field == b"id":
                self._id = value.decode(errors="replace")
            elif field == b"data":
                self._data += value
            elif not line:
                if self._name:
                    yield self._name, self._id, bytes(self._data)
                self._name = self._id = ""
                self._data = bytearray()
                self._size = 0
        self._begun.append(rest)
        self._size += len(piece)
        if self._size > LARGEST:
            raise BadStream(f"the server sends an event of more than {LARGEST} bytes")


def event_of(name: str, data: bytes) -> ClientEvent | None:
    """What an event of a server says; None for one of a kind that is not known.

    Raises:
      BadStream: it is not as it should be.
    """
    try:
        told = json.loads(data)
        match name:
            case "start":
                return StartEvent(str(told["id"]))
            case "output":
                return OutputEvent(told["chunk"], int(told["index"]))
            case "log":
                return LogEvent(str(told["data"]), str(told.get("source", "stdout")))
            case "metric":
                return MetricEvent(str(told["name"]), told["value"], str(told.get("mode", "replace")))
            case "error":
                return LostEvent(int(told.get("skipped") or 0))
            case "completed":
                return CompletedEvent(RemotePrediction.of(told))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadStream(f"the event {name} is not as it should be") from error
    return None
