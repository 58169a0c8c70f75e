"""A typed channel over any trio stream: whole messages out, whole messages in, as many as there are.

One task reads a channel; any task may send. A failed or cancelled send leaves part of a frame on the wire, so
the channel is broken from there on and says so by name: nobody retries on a half-written frame.
"""

from __future__ import annotations

import os
from typing import Any, Final, Generic, TypeVar

import trio

from cog_trio.bridge.codec import Decoder, FrameBuffer, LineBuffer, ProtocolBroken, encode_frame, encode_line

READ_SIZE: Final = 256 * 2**10  # bytes a read; one read brings many small frames
FIRST_READ: Final = 16 * 2**10  # bytes, while little comes: a large buffer costs more than the read itself
Sent = TypeVar("Sent")
Received = TypeVar("Received")


class ChannelBroken(Exception):
    """The channel can't carry messages any more: an earlier send failed, or the other side is gone."""


class Channel(Generic[Sent, Received]):
    """Messages of one channel, over a stream that it owns.

    ``lines`` picks the control channel's form, else frames are used.
    """

    def __init__(self, stream: trio.abc.Stream, decoder: Decoder[Received], *, lines: bool = False) -> None:
        self._stream = stream
        self._decoder = decoder
        self._buffer: FrameBuffer | LineBuffer = LineBuffer() if lines else FrameBuffer()
        self._encode: Any = encode_line if lines else encode_frame
        self._sending = trio.Lock()
        self._broken: str | None = None
        self._fault: ProtocolBroken | None = None
        self._read_size = FIRST_READ
        self._descriptor = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None

    def send_nowait(self, message: Sent) -> bool:
        """Send one small message if that needs no wait, and no turn of the scheduler; False: nothing was sent.

        Only sockets can do this. A message that fits the buffer of an idle socket goes whole.

        Raises:
          FrameTooLarge: nothing was sent, the channel is whole.
          ChannelBroken: if an earlier send failed, the other side closed, or only part of the message fitted.
        """
        if self._broken is not None and not self._sending.locked():
            raise ChannelBroken(self._broken)
        if self._descriptor is None or self._sending.locked():
            return False
        data = self._encode(message)
        try:
            sent = os.write(self._descriptor, data)
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
        """Send one message.

        Raises:
          FrameTooLarge: nothing was sent, the channel is whole.
          ChannelBroken: if an earlier send failed or the other side closed.

        Cancellation: part of the message may be out, so the channel is broken afterwards.
        """
        data = self._encode(message)
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
          ProtocolBroken: for a body that is no message, a frame over the limit, an end inside a frame; the
            whole messages before it came out first. It is raised again at each later call.
          ChannelBroken: if the stream failed.

        Cancellation: nothing is lost.
        """
        while True:
            if self._fault is not None:
                raise self._fault
            try:
                data = await self._stream.receive_some(self._read_size)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ChannelBroken(f"the stream failed: {error}") from error
            if not data:
                self._buffer.close()
                return []
            self._read_size = READ_SIZE if len(data) == self._read_size else FIRST_READ
            if messages := self.feed(data):
                return messages

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
        self._descriptor = None
        self._broken = self._broken or "closed"
        await trio.aclose_forcefully(self._stream)
