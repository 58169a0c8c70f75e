"""What is heard of a worker on its control channel, and what of it goes on to the service, as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from cog_trio.bridge.codec import Decoder, ProtocolBroken
from cog_trio.bridge.protocol import ControlResponse, Described, DroppedLogs, Log, LogSource, Ready, WorkerLog


@dataclass(frozen=True)
class WorkerGone:
    """A usable worker ends, unasked. Said once, before any of its runs is failed by it."""

    cause: str


Event: TypeAlias = Described | Ready | Log | WorkerLog | DroppedLogs | WorkerGone


class ControlDecoder(Decoder[ControlResponse]):
    """Before Ready, a line that is not a message is something that was printed."""

    def __init__(self) -> None:
        super().__init__(ControlResponse)
        self._lenient = True

    def decode(self, body: bytes) -> ControlResponse:
        try:
            message = super().decode(body)
        except ProtocolBroken:
            if not self._lenient or _is_message(body):
                raise
            return Log(LogSource.STDOUT, body.decode(errors="replace") + "\n")
        if type(message) is Ready:
            self._lenient = False
        return message


def _is_message(body: bytes) -> bool:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(value, dict) and "type" in value
