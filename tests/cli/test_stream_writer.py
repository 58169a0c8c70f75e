"""A thread writes what was queued, in order and whole, and says which descriptor can't be written."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import pytest

from cog_trio.cli.stream_writer import PIECE, StreamWriter

WAIT = 30.0  # seconds after which a test has failed


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # a test has closed it


def _read_all(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, PIECE):
        pieces.append(piece)
    return b"".join(pieces)


def test_large_and_small_data_of_two_descriptors_is_whole_and_in_order(pipe: tuple[int, int]) -> None:
    other = os.pipe()
    writer = StreamWriter()
    writer.start()
    large = os.urandom(3 * PIECE + 1)
    for data in (b"a", b"b", large, b"c"):
        writer.write(pipe[1], data)
    writer.write(other[1], b"x")
    writer.write(pipe[1], lambda: b"made in the thread", 100)
    expected = b"ab" + large + b"cmade in the thread"
    got = b""
    while len(got) < len(expected):
        got += os.read(pipe[0], PIECE)
    assert got == expected
    assert writer.close(WAIT)
    assert writer.waiting == 0
    assert os.read(other[0], 10) == b"x"
    for end in other:
        os.close(end)


def test_a_stalled_reader_holds_up_the_thread_alone(pipe: tuple[int, int]) -> None:
    writer = StreamWriter()
    writer.start()
    data = b"x" * (4 * PIECE)
    writer.write(pipe[1], data)
    assert writer.waiting > 0
    assert not writer.close(0.05), "the reader has not taken everything"
    got = b""
    while len(got) < len(data):
        got += os.read(pipe[0], PIECE)
    assert writer.close(WAIT)


def test_a_descriptor_that_fails_is_named_once_and_the_others_go_on(pipe: tuple[int, int]) -> None:
    gone = os.pipe()
    os.close(gone[0])
    failed = threading.Event()
    writer = StreamWriter(failed.set)
    writer.start()
    writer.write(gone[1], b"nobody reads this")
    assert failed.wait(WAIT)
    writer.write(gone[1], b"nor this")
    writer.write(pipe[1], b"still written")
    assert writer.close(WAIT)
    assert {descriptor: fault.errno for descriptor, fault in writer.faults.items()} == {gone[1]: errno.EPIPE}
    assert os.read(pipe[0], 100) == b"still written"
    os.close(gone[1])


def test_a_descriptor_that_does_not_block_loses_nothing(pipe: tuple[int, int]) -> None:
    """Another program that shares a terminal may have made it non-blocking."""
    os.set_blocking(pipe[1], False)
    writer = StreamWriter()
    writer.start()
    data = os.urandom(8 * PIECE)
    writer.write(pipe[1], data)
    got = b""
    while len(got) < len(data):
        got += os.read(pipe[0], PIECE)
    assert got == data
    assert writer.close(WAIT)


def test_what_comes_within_the_pause_is_one_write(pipe: tuple[int, int]) -> None:
    writes = []
    writer = StreamWriter(lambda: writes.append(1), pause=0.2)
    writer.start()
    for _ in range(100):
        writer.write(pipe[1], b"line\n")
    assert writer.close(WAIT)
    os.close(pipe[1])
    assert _read_all(pipe[0]) == b"line\n" * 100
    assert len(writes) < 100
