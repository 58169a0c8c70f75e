"""A typed channel over any trio stream: whole messages out, whole messages in, as many as there are.

One task reads a channel; any task may send. A failed or cancelled send leaves part of a frame on the wire, so
the channel is broken from there on and says so by name: nobody retries on a half-written frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec
import trio

from cog_trio.bridge.codec import Decoder, FrameBuffer, LineBuffer, ProtocolBroken, encode_frame, encode_line

READ_SIZE: Final = 64 * 2**10  # bytes a read; one read brings many small frames, which are one step of the loop
FIRST_READ: Final = 16 * 2**10  # bytes, while little comes: a large buffer costs more than the read itself
Sent = TypeVar("Sent", bound=msgspec.Struct)
Received = TypeVar("Received")


class ChannelBroken(Exception):
    """The channel can't carry messages any more: an earlier send failed, or the other side is gone."""


class Channel(Generic[Sent, Received]):
    """Messages of one channel, over a stream that it owns.

    Args:
      lines: the control channel's form, else frames are used.
      write_to: the descriptor that the stream writes to, where it is not a socket.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        decoder: Decoder[Received],
        *,
        lines: bool = False,
        write_to: int | None = None,
    ) -> None:
        self._stream = stream
        self._decoder = decoder
        self._buffer: FrameBuffer | LineBuffer = LineBuffer() if lines else FrameBuffer()
        self._sending = trio.Lock()
        self._broken: str | None = None
        self._fault: ProtocolBroken | None = None
        self._read_size = FIRST_READ
        self._read_from = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None
        self._write_to = self._read_from if write_to is None else write_to
        self.encode: Callable[[msgspec.Struct], bytearray] = encode_line if lines else encode_frame

    def write_nowait(self, data: bytearray) -> bool:
        """Write one small encoded message if that needs no wait, and no turn of the scheduler; False: nothing was sent.

        Only descriptors can do this. A message that fits an empty buffer goes whole.

        Raises:
          ChannelBroken: if an earlier send failed, the other side closed, or only part of the message fitted.
        """
        if self._sending.locked():
            return False
        if self._broken is not None:
            raise ChannelBroken(self._broken)
        if self._write_to is None:
            return False
        try:
            sent = os.write(self._write_to, data)
        except BlockingIOError:
            return False
        except OSError as error:
            self._broken = f"the other side is gone: {error}"
            raise ChannelBroken(self._broken) from error
        if sent < len(data):
            self._broken = "a send was cut short: the buffer is full"
            raise ChannelBroken(self._broken)
        return True

    async def send(self, message: Sent) -> None:
        """Encode and write one message.

        Raises:
          FrameTooLarge: nothing was sent, the channel is whole.
          ChannelBroken: as ``write``.

        Cancellation: as ``write``.
        """
        await self.write(self.encode(message))

    async def write(self, data: bytearray) -> None:
        """Write one encoded message.

        Raises:
          ChannelBroken: if an earlier send failed or the other side closed.

        Cancellation: part of the message may be out, so the channel is broken afterwards.
        """
        try:
            self._sending.acquire_nowait()  # the usual case: no turn of the scheduler before the first byte is out
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            if self._broken is not None:
                raise ChannelBroken(self._broken)
            self._broken = "an earlier send was cut short"
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._broken = f"the other side is gone: {error}"
                raise ChannelBroken(self._broken) from error
            self._broken = None
        finally:
            self._sending.release()

    async def receive(self) -> list[Received]:
        """Wait for bytes, then give every whole message in them; an empty list is the clean end.

        Raises:
          ProtocolBroken: for a body that is not a message, a frame over the limit, an end inside a frame; the
            whole messages before it came out first. It is raised again at each later call.
          ChannelBroken: if the stream failed.

        Cancellation: nothing is lost.
        """
        while True:
            if self._fault is not None:
                raise self._fault
            data = await self._read()
            if not data:
                self._buffer.close()
                return []
            self._read_size = READ_SIZE if len(data) == self._read_size else FIRST_READ
            if messages := self.feed(data):
                return messages

    async def _read(self) -> bytes | bytearray:
        try:
            if self._read_from is None:
                return await self._stream.receive_some(self._read_size)
            while True:  # what is not there yet costs no failed read
                await trio.lowlevel.wait_readable(self._read_from)
                try:
                    return os.read(self._read_from, self._read_size)
                except BlockingIOError:
                    continue
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ChannelBroken(f"the stream failed: {error}") from error

    def feed(self, data: bytes | bytearray) -> list[Received]:
        """Every whole message that these bytes complete, up to the first fault (the next ``receive`` raises it)."""
        messages: list[Received] = []
        self._buffer.feed(data)
        try:
            for body in self._buffer.frames():
                messages.append(self._decoder.decode(body))
        except ProtocolBroken as fault:
            self._fault = fault
        return messages

    async def aclose(self) -> None:
        self._read_from = self._write_to = None
        self._broken = self._broken or "closed"
        await trio.aclose_forcefully(self._stream)
