"""Frames and lines: every split of the wire gives the same messages, and no rule is broken silently."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_trio.bridge.codec import (
    FrameBuffer,
    FrameTooLarge,
    LineBuffer,
    ProtocolBroken,
    TruncatedFrame,
    control_requests,
    encode_frame,
    encode_line,
    slot_responses,
)
from cog_trio.bridge.protocol import LogLine, LogSource, Shutdown

BODIES = [b'{"a":1}', b"", b"x" * 300, b'"\xc3\xa9"']
FRAMES = b"".join(struct.pack(">I", len(body)) + body for body in BODIES)
LINES = b"".join(body + b"\n" for body in BODIES)


@pytest.mark.parametrize(("make", "wire"), [(FrameBuffer, FRAMES), (LineBuffer, LINES)])
def test_every_split_gives_the_same_messages(make: Any, wire: bytes) -> None:
    for cut in range(len(wire) + 1):
        buffer = make()
        got = []
        for part in (wire[:cut], wire[cut:]):
            buffer.feed(part)
            got += list(buffer.frames())
        buffer.close()
        assert got == BODIES, cut


@pytest.mark.parametrize(("make", "wire"), [(FrameBuffer, FRAMES), (LineBuffer, LINES)])
def test_byte_by_byte(make: Any, wire: bytes) -> None:
    buffer = make()
    got = []
    for byte in wire:
        buffer.feed(bytes([byte]))
        got += list(buffer.frames())
    buffer.close()
    assert got == BODIES


@pytest.mark.parametrize(("make", "wire"), [(FrameBuffer, FRAMES), (LineBuffer, LINES)])
def test_a_clean_end_is_told_from_a_cut_one(make: Any, wire: bytes) -> None:
    buffer = make()
    buffer.feed(wire[:-1])
    list(buffer.frames())
    with pytest.raises(TruncatedFrame):
        buffer.close()


def test_an_oversized_length_is_refused_before_its_body() -> None:
    buffer = FrameBuffer(limit=10)
    buffer.feed(struct.pack(">I", 3) + b"abc" + struct.pack(">I", 11))
    frames = buffer.frames()
    assert next(frames) == b"abc"
    with pytest.raises(FrameTooLarge):
        next(frames)
    buffer.feed(b"x" * 11)
    with pytest.raises(FrameTooLarge):
        list(buffer.frames())


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_oversized_line_is_refused_finished_or_not(end: bytes) -> None:
    buffer = LineBuffer(limit=10)
    buffer.feed(b"abc\n" + b"x" * 11 + end)
    lines = buffer.frames()
    assert next(lines) == b"abc"
    with pytest.raises(FrameTooLarge):
        next(lines)


@pytest.mark.parametrize("make", [FrameBuffer, LineBuffer])
def test_bodies_taken_one_at_a_time_are_not_given_twice(make: Any) -> None:
    wire = FRAMES if make is FrameBuffer else LINES
    buffer = make()
    buffer.feed(wire)
    got = []
    for _ in BODIES:
        frames = buffer.frames()
        got.append(next(frames))
        frames.close()
    assert got == BODIES
    buffer.close()


@pytest.mark.exhaustive
@given(st.lists(st.binary(max_size=50), max_size=20), st.randoms(use_true_random=False))
def test_random_frames_in_random_pieces(bodies: list[bytes], random: Any) -> None:
    wire = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    buffer, got = FrameBuffer(), []
    while wire:
        cut = random.randint(1, len(wire))
        buffer.feed(wire[:cut])
        wire = wire[cut:]
        got += list(buffer.frames())
    buffer.close()
    assert got == bodies


def test_a_message_over_the_limit_is_not_encoded() -> None:
    line = LogLine(LogSource.STDOUT, "x" * 100)
    assert encode_frame(line, limit=200)[:4] == struct.pack(">I", len(msgspec.json.encode(line)))
    with pytest.raises(FrameTooLarge, match="LogLine"):
        encode_frame(line, limit=50)
    with pytest.raises(FrameTooLarge, match="LogLine"):
        encode_line(line, limit=50)
    assert encode_line(Shutdown()) == b'{"type":"shutdown"}\n'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"type":"predict"}',
        b'{"type":"log_line"}',
        b'{"type":"log_line","source":"stdin","data":""}',
        b'{"type":"log_line","source":"stdout","data":"\xff"}',
        b'{"type":"output_chunk","index":0}',
        b'{"type":"output_chunk","index":"0","output":1}',
        b'{"type":"log_line","source":"stdout","data":"\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_garbage_is_named_as_broken(body: bytes) -> None:
    with pytest.raises(ProtocolBroken):
        slot_responses.decode(body)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(body: bytes) -> None:
    for decoder in (slot_responses, control_requests):
        with contextlib.suppress(ProtocolBroken):
            decoder.decode(body)


def test_raw_json_does_not_pin_the_receive_buffer() -> None:
    wire = b'{"type":"output_chunk","output":[1,2],"index":0}'
    buffer = FrameBuffer()
    buffer.feed(struct.pack(">I", len(wire)) + wire + b"\0" * 3)
    (body,) = list(buffer.frames())
    message: Any = slot_responses.decode(body)
    assert bytes(message.output) == b"[1,2]"
    buffer.feed(b"\0")  # a pinned bytearray would raise BufferError here
    assert list(buffer.frames()) == [b""]
