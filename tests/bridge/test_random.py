"""Bytes that nobody meant, against the decoders of the bridge: a plain reading of them says what must come out."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cog_trio.bridge.codec import (
    FrameBuffer,
    FrameTooLarge,
    LineBuffer,
    ProtocolBroken,
    TruncatedFrame,
    encode_frame,
    encode_line,
)
from tests.bridge.test_protocol import SNAPSHOTS

pytestmark = pytest.mark.exhaustive

LIMIT: Final = 40  # bytes
STRANGE: Final = [b'"', b"null", b"-1", b"1e99", b"{}", b"\\ud800", b"\xff", b",", b"9" * 30]
FRAME: Final = st.integers(0, LIMIT + 2).flatmap(
    lambda size: st.binary(max_size=size).map(lambda body: struct.pack(">I", size) + body)  # it may be too short
)
LINE: Final = st.binary(max_size=LIMIT + 2).map(lambda body: body + b"\n")
DRAWN: Final = settings(derandomize=True, max_examples=200, deadline=None)


def plain_frames(wire: bytes) -> tuple[list[bytes], type[ProtocolBroken] | None]:
    """The frames in some bytes, and how the end of the stream is told."""
    found: list[bytes] = []
    while len(wire) >= 4:
        size = int.from_bytes(wire[:4], "big")
        if size > LIMIT:
            return found, FrameTooLarge
        if len(wire) < 4 + size:
            break
        found.append(wire[4 : 4 + size])
        wire = wire[4 + size :]
    return found, TruncatedFrame if wire else None


def plain_lines(wire: bytes) -> tuple[list[bytes], type[ProtocolBroken] | None]:
    *whole, rest = wire.split(b"\n")
    for number, line in enumerate(whole):
        if len(line) > LIMIT:
            return whole[:number], FrameTooLarge
    return whole, FrameTooLarge if len(rest) > LIMIT else TruncatedFrame if rest else None


def taken(buffer: Any, wire: bytes, cuts: list[int]) -> tuple[list[bytes], type[ProtocolBroken] | None]:
    """What a buffer gives when the bytes come in pieces."""
    found: list[bytes] = []
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    try:
        for start, end in pairwise(places):
            buffer.feed(wire[start:end])
            found.extend(buffer.frames())
        buffer.close()
    except ProtocolBroken as error:
        return found, type(error)
    return found, None


CUTS: Final = st.lists(st.integers(0, 500), max_size=8)


@DRAWN
@given(wire=st.lists(FRAME | st.binary(max_size=20), max_size=8).map(b"".join), cuts=CUTS)
def test_any_bytes_in_any_pieces_give_the_frames_that_are_in_them(wire: bytes, cuts: list[int]) -> None:
    assert taken(FrameBuffer(LIMIT), wire, cuts) == plain_frames(wire)


@DRAWN
@given(wire=st.lists(LINE | st.binary(max_size=20), max_size=8).map(b"".join), cuts=CUTS)
def test_any_bytes_in_any_pieces_give_the_lines_that_are_in_them(wire: bytes, cuts: list[int]) -> None:
    assert taken(LineBuffer(LIMIT), wire, cuts) == plain_lines(wire)


@pytest.mark.parametrize(("decoder", "wire"), [(decoder, wire) for decoder, _, wire in SNAPSHOTS])
def test_a_message_that_was_damaged_is_broken_or_is_a_message(decoder: Any, wire: str) -> None:
    """It never raises anything else, and what is taken for a message can be sent on and is the same then."""
    rng = random.Random(wire)
    for _ in range(100):
        data = bytearray(wire.encode())
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(data) or 1)
            match rng.randrange(4):
                case 0:
                    data[place : place + 1] = bytes([rng.randrange(256)])
                case 1:
                    del data[place : place + rng.randint(1, 4)]
                case 2:
                    data[place:place] = rng.choice(STRANGE)
                case 3:
                    data = data[: place + 1]
        try:
            message = decoder.decode(bytes(data))
        except ProtocolBroken:
            continue
        again = bytes(encode_frame(message)[4:])
        assert decoder.decode(again) == message
        assert bytes(encode_line(message)) == again + b"\n"
