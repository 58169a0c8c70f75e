"""Bytes to messages and back, without I/O: the same code serves the parent and every kind of runner.

Frames: a 4-byte big-endian length, then that many bytes of JSON. Lines: JSON, ended by a newline. Bytes are
fed as they come; whole messages are taken out. An oversized length is refused as soon as its four bytes are
there, before a byte of the body is buffered. A clean end (on a boundary) is told from a cut one.

Bodies are handed out as ``bytes`` copies, never as views: a ``msgspec.Raw`` decoded from a view would pin the
whole receive buffer for as long as a prediction's output lives.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from cog_trio.bridge.protocol import (
    MAX_FRAME,
    ControlRequest,
    ControlResponse,
    SlotRequest,
    SlotResponse,
)

_LENGTH: Final = struct.Struct(">I")
T = TypeVar("T")


class ProtocolBroken(Exception):
    """The other side broke the protocol: what it sends from here on can't be trusted."""


class FrameTooLarge(ProtocolBroken):
    """A frame or line beyond the limit was announced, sent, or asked to be sent."""


class TruncatedFrame(ProtocolBroken):
    """The stream ended inside a frame or line."""


class FrameBuffer:
    """Cuts a byte stream into frame bodies.

    After ``FrameTooLarge`` the buffer stays broken: there is no next boundary to find.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def frames(self) -> Iterator[bytes]:
        """Take every whole frame body that is there.

        Raises:
          FrameTooLarge: when a length beyond the limit stands next; the frames before it came out first.
        """
        data, start = self._data, 0
        try:
            while len(data) - start >= 4:
                (length,) = _LENGTH.unpack_from(data, start)
                if length > self._limit:
                    raise FrameTooLarge(f"a frame of {length} bytes is over the limit of {self._limit}")
                end = start + 4 + length
                if len(data) < end:
                    return
                body = bytes(data[start + 4 : end])
                start = end
                yield body
        finally:
            if start:
                del data[:start]

    def close(self) -> None:
        """Say that the stream has ended.

        Raises:
          TruncatedFrame: unless it ended on a boundary.
        """
        if self._data:
            raise TruncatedFrame(f"the stream ended inside a frame, {len(self._data)} bytes of it are here")


class LineBuffer:
    """Cuts a byte stream into lines, without their newline."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._data = bytearray()
        self._seen = 0  # bytes known to hold no newline, so that a long line is searched once

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def frames(self) -> Iterator[bytes]:
        """Take every whole line that is there.

        Raises:
          FrameTooLarge: when a line, finished or not, is beyond the limit.
        """
        data, start = self._data, 0
        try:
            while True:
                end = data.find(b"\n", max(start, self._seen))
                length = (len(data) if end < 0 else end) - start
                if length > self._limit:
                    raise FrameTooLarge(f"a control line of {length} bytes is over the limit of {self._limit}")
                if end < 0:
                    return
                line = bytes(data[start:end])
                start = end + 1
                yield line
        finally:
            if start:
                del data[:start]
            self._seen = len(data) if b"\n" not in data else 0

    def close(self) -> None:
        """Say that the stream has ended.

        Raises:
          TruncatedFrame: unless it ended on a boundary.
        """
        if self._data:
            raise TruncatedFrame(f"the stream ended inside a line, {len(self._data)} bytes of it are here")


def encode_subclass(value: object) -> str:
    """Hook of an encoder: return an instance of a subclass of str as the text that it is.

    Raises:
      TypeError: for any other value that is not JSON.
    """
    if isinstance(value, str):
        return str.__str__(value)  # not its own __str__, which may say anything
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encoder: Final = msgspec.json.Encoder(enc_hook=encode_subclass)


def encode_frame(message: msgspec.Struct, limit: int = MAX_FRAME) -> bytearray:
    """One message as a frame, header and body.

    Raises:
      FrameTooLarge: beyond the limit; nothing was sent, the channel is whole.
    """
    buffer = bytearray(4)
    _encoder.encode_into(message, buffer, 4)
    length = len(buffer) - 4
    if length > limit:
        raise FrameTooLarge(f"a {type(message).__name__} of {length} bytes is over the limit of {limit}")
    _LENGTH.pack_into(buffer, 0, length)
    return buffer


def encode_line(message: msgspec.Struct, limit: int = MAX_FRAME) -> bytearray:
    """One message as a line.

    Raises:
      FrameTooLarge: beyond the limit; nothing was sent, the channel is whole.
    """
    buffer = bytearray()
    _encoder.encode_into(message, buffer)
    if len(buffer) > limit:
        raise FrameTooLarge(f"a {type(message).__name__} of {len(buffer)} bytes is over the limit of {limit}")
    buffer += b"\n"
    return buffer


class Decoder(Generic[T]):
    """Bodies of one direction of one channel to messages."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(union)

    def decode(self, body: bytes) -> T:
        """One message.

        Raises:
          ProtocolBroken: if the body is not a message of this direction.
        """
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolBroken(f"not a message of this channel: {error}") from error


control_requests: Final[Decoder[ControlRequest]] = Decoder(ControlRequest)
control_responses: Final[Decoder[ControlResponse]] = Decoder(ControlResponse)
slot_requests: Final[Decoder[SlotRequest]] = Decoder(SlotRequest)
slot_responses: Final[Decoder[SlotResponse]] = Decoder(SlotResponse)
