"""The typed channel: batches, faults after the good messages, and a channel that stays broken."""

from __future__ import annotations

import struct

import pytest
import trio
import trio.testing

from cog_trio.bridge.channel import Channel, ChannelBroken
from cog_trio.bridge.codec import (
    FrameTooLarge,
    ProtocolBroken,
    TruncatedFrame,
    control_requests,
    encode_frame,
    slot_responses,
)
from cog_trio.bridge.protocol import (
    ControlRequest,
    LogLine,
    LogSource,
    Shutdown,
    SlotResponse,
)

LINE = LogLine(LogSource.STDOUT, "hello\n")


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


async def test_messages_cross_a_lockstep_stream() -> None:
    left, right = trio.testing.lockstep_stream_pair()
    sender: Channel[LogLine, ControlRequest] = Channel(left, control_requests)
    receiver: Channel[LogLine, SlotResponse] = Channel(right, slot_responses)
    got: list[SlotResponse] = []

    async def read() -> None:
        while messages := await receiver.receive():
            got.extend(messages)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(3):
            await sender.send(LINE)
        await left.send_eof()
    assert got == [LINE] * 3


async def test_one_read_gives_all_that_is_there() -> None:
    left, right = trio.testing.memory_stream_pair()
    receiver: Channel[LogLine, SlotResponse] = Channel(right, slot_responses)
    body = b'{"type":"log_line","source":"stderr","data":"x"}'
    await left.send_all(frame(body) * 50)
    assert len(await receiver.receive()) == 50


@pytest.mark.covers("D20")
async def test_lines_on_the_control_channel() -> None:
    left, right = trio.testing.memory_stream_pair()
    sender: Channel[Shutdown, ControlRequest] = Channel(left, control_requests, lines=True)
    receiver: Channel[Shutdown, ControlRequest] = Channel(right, control_requests, lines=True)
    await sender.send(Shutdown())
    assert await receiver.receive() == [Shutdown()]


async def test_good_messages_come_before_the_fault_and_the_fault_stays() -> None:
    left, right = trio.testing.memory_stream_pair()
    receiver: Channel[LogLine, SlotResponse] = Channel(right, slot_responses)
    good = b'{"type":"log_line","source":"stdout","data":"hello\\n"}'
    await left.send_all(frame(good) + frame(b"garbage") + frame(good))
    assert await receiver.receive() == [LINE]
    for _ in range(2):
        with pytest.raises(ProtocolBroken):
            await receiver.receive()


async def test_an_end_inside_a_frame_is_no_clean_end() -> None:
    left, right = trio.testing.memory_stream_pair()
    receiver: Channel[LogLine, SlotResponse] = Channel(right, slot_responses)
    await left.send_all(frame(b"12345")[:-1])
    await left.aclose()
    with pytest.raises(TruncatedFrame):
        await receiver.receive()


@pytest.mark.covers("D20")
async def test_a_message_too_large_leaves_the_channel_whole() -> None:
    left, right = trio.testing.memory_stream_pair()
    sender: Channel[LogLine, SlotResponse] = Channel(left, slot_responses)
    receiver: Channel[LogLine, SlotResponse] = Channel(right, slot_responses)
    with pytest.raises(FrameTooLarge):
        await sender.send(LogLine(LogSource.STDOUT, "x" * (9 * 2**20)))
    await sender.send(LINE)
    assert await receiver.receive() == [LINE]


async def test_a_cut_send_breaks_the_channel_by_name(autojump_clock: trio.testing.MockClock) -> None:
    left, _right = trio.testing.lockstep_stream_pair()
    sender: Channel[LogLine, SlotResponse] = Channel(left, slot_responses)
    with trio.move_on_after(1) as scope:
        await sender.send(LINE)
    assert scope.cancelled_caught
    with pytest.raises(ChannelBroken, match="cut short"):
        await sender.send(LINE)


async def test_a_closed_peer_is_a_broken_channel() -> None:
    left, right = trio.testing.memory_stream_pair()
    sender: Channel[LogLine, SlotResponse] = Channel(left, slot_responses)
    await right.aclose()
    for _ in range(2):
        with pytest.raises(ChannelBroken):
            await sender.send(LINE)


async def test_a_cancelled_receive_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    left, right = trio.testing.memory_stream_pair()
    receiver: Channel[LogLine, SlotResponse] = Channel(right, slot_responses)
    wire = frame(b'{"type":"log_line","source":"stdout","data":"hello\\n"}')
    await left.send_all(wire[:7])
    with trio.move_on_after(1):
        await receiver.receive()
    await left.send_all(wire[7:])
    assert await receiver.receive() == [LINE]


async def socket_channels() -> tuple[Channel[LogLine, SlotResponse], Channel[LogLine, SlotResponse]]:
    left, right = trio.socket.socketpair()
    return Channel(trio.SocketStream(left), slot_responses), Channel(trio.SocketStream(right), slot_responses)


async def test_a_small_message_leaves_without_a_turn_of_the_scheduler() -> None:
    sender, receiver = await socket_channels()
    with trio.testing.assert_no_checkpoints():
        assert sender.write_nowait(encode_frame(LINE))
    await sender.send(LINE)
    with trio.fail_after(5):
        got = await receiver.receive()
        while len(got) < 2:
            got += await receiver.receive()
    assert got == [LINE, LINE]
    await sender.aclose()
    await receiver.aclose()


async def test_a_full_buffer_takes_nothing_or_breaks_the_channel_by_name() -> None:
    sender, receiver = await socket_channels()
    big = LogLine(LogSource.STDOUT, "x" * 2**16)

    def fill() -> None:
        while sender.write_nowait(encode_frame(big)):
            pass

    with pytest.raises(ChannelBroken, match="cut short"):
        fill()
    with pytest.raises(ChannelBroken, match="cut short"):
        sender.write_nowait(encode_frame(LINE))
    await sender.aclose()
    await receiver.aclose()


async def test_streams_without_a_descriptor_always_wait() -> None:
    left, right = trio.testing.memory_stream_pair()
    sender: Channel[LogLine, SlotResponse] = Channel(left, slot_responses)
    receiver: Channel[LogLine, SlotResponse] = Channel(right, slot_responses)
    assert not sender.write_nowait(encode_frame(LINE))
    await sender.send(LINE)
    assert await receiver.receive() == [LINE]


async def test_a_closed_socket_is_a_broken_channel_at_once() -> None:
    sender, receiver = await socket_channels()
    await receiver.aclose()
    for _ in range(2):
        with pytest.raises(ChannelBroken):
            sender.write_nowait(encode_frame(LINE))
    await sender.aclose()
