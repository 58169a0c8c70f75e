"""Whole messages on one descriptor, from any thread."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from cog_trio.worker.ipc.message_writer import HIGH_WATER, MessageWriter, WriterBroken

JOIN = 20.0  # seconds that a thread of a test may take


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class Woken:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def fill(writer: MessageWriter, message: bytes = b"x" * 1000) -> int:
    """Write until full; gives the number of messages."""
    count = 0
    while not writer.full:
        writer.write(message)
        count += 1
    return count


def read_exactly(sock: socket.socket, size: int) -> bytes:
    sock.settimeout(JOIN)
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(2**18, size - len(data)))
        assert part
        data += part
    return bytes(data)


def test_what_the_kernel_takes_leaves_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    woken = Woken()
    writer = MessageWriter(pair[0].fileno(), woken)
    writer.write(b"hello")
    assert pair[1].recv(100) == b"hello"
    assert (writer.pending, woken.count, writer.full) == (0, 0, False)


def test_a_slow_reader_never_blocks_write_and_wakes_once(pair: tuple[socket.socket, socket.socket]) -> None:
    woken = Woken()
    writer = MessageWriter(pair[0].fileno(), woken)
    fill(writer)
    writer.write(b"more")
    assert writer.pending > HIGH_WATER
    assert woken.count == 1


async def test_flush_sends_all_in_order_and_can_be_asked_for_again(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    woken = Woken()
    writer = MessageWriter(pair[0].fileno(), woken)
    for round_ in (1, 2):
        count = 0
        while not writer.full:
            writer.write(b"%09d\n" % count)
            count += 1
        with trio.fail_after(JOIN):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.flush)
                data = await trio.to_thread.run_sync(read_exactly, pair[1], count * 10)
        assert data == b"".join(b"%09d\n" % number for number in range(count))
        assert (writer.pending, woken.count) == (0, round_)


def test_a_waiting_producer_sends_by_itself(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    count = fill(writer)
    reader = threading.Thread(target=read_exactly, args=(pair[1], count * 1000))
    reader.start()
    writer.wait()
    assert not writer.full
    assert writer.finish(JOIN)
    reader.join(JOIN)
    assert not reader.is_alive()


def test_a_wake_descriptor_ends_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    fill(writer)
    wake_r, wake_w = os.pipe()
    try:
        waiter = threading.Thread(target=writer.wait, args=(wake_r,))
        waiter.start()
        os.write(wake_w, b"\0")
        waiter.join(JOIN)
        assert not waiter.is_alive()
        assert writer.full
    finally:
        os.close(wake_r)
        os.close(wake_w)


def test_finish_gives_up_at_its_deadline(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    fill(writer)
    assert not writer.finish(0.0)
    assert writer.pending


@pytest.mark.covers("worker:W17")
def test_W17_a_closed_peer_is_said_by_name_and_frees_who_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    fill(writer)
    told = threading.Event()
    assert writer.when_room(told.set)
    waiter = threading.Thread(target=writer.wait)
    waiter.start()
    pair[1].close()
    waiter.join(JOIN)
    assert not waiter.is_alive()
    assert told.is_set()
    with pytest.raises(WriterBroken, match="the other end is gone"):
        writer.write(b"late")
    assert writer.pending == 0


async def test_flush_ends_when_the_peer_closes(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    fill(writer)
    with trio.fail_after(JOIN):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.flush)
            await trio.testing.wait_all_tasks_blocked()
            pair[1].close()
    assert writer.broken


async def test_room_is_told_once(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    assert not writer.when_room(lambda: pytest.fail("there was room"))
    count = fill(writer)
    told = Woken()
    assert writer.when_room(told)
    with trio.fail_after(JOIN):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.wait_room)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(writer.flush)
            await trio.to_thread.run_sync(read_exactly, pair[1], count * 1000)
    assert told.count == 1


async def test_wait_room_cancelled_loses_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    count = fill(writer)
    with trio.move_on_after(0):
        await writer.wait_room()
    reader = threading.Thread(target=read_exactly, args=(pair[1], count * 1000))
    reader.start()
    assert writer.finish(JOIN)
    reader.join(JOIN)


def test_messages_of_many_threads_stay_whole_and_in_their_order(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    threads, messages, length = 4, 3000, 100

    def produce(number: int) -> None:
        for index in range(messages):
            writer.write(b"%d %08d " % (number, index) + bytes([97 + number]) * (length - 12) + b"\n")
            writer.wait()

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
    for producer in producers:
        producer.start()
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read_exactly(pair[1], threads * messages * length)))
    reader.start()
    for producer in producers:
        producer.join(JOIN)
        assert not producer.is_alive()
    assert writer.finish(JOIN)
    reader.join(JOIN)
    following = [0] * threads
    for line in got[0].splitlines():
        number, index = int(line[:1]), int(line[2:10])
        assert line[11:] == bytes([97 + number]) * (length - 12)
        assert index == following[number]
        following[number] += 1
    assert following == [messages] * threads


def test_a_write_from_inside_a_write_is_queued_behind_it(pair: tuple[socket.socket, socket.socket]) -> None:
    """As a ``__del__`` that prints while a frame is being sent: no deadlock, no torn frame."""

    def print_inside() -> None:
        writer.write(b"inner" * 10)
        writer.wait()

    writer = MessageWriter(pair[0].fileno(), print_inside)
    count = fill(writer)  # the first partial write calls on_pending, with the lock held
    reader_got: list[bytes] = []
    reader = threading.Thread(target=lambda: reader_got.append(read_exactly(pair[1], count * 1000 + 50)))
    reader.start()
    assert writer.finish(JOIN)
    reader.join(JOIN)
    assert reader_got[0].replace(b"inner" * 10, b"", 1) == b"x" * count * 1000
    assert reader_got[0].index(b"inner") % 1000 == 0


def test_abandoned_writers_send_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    fill(writer)
    writer.abandon("forked")
    writer.wait()
    with pytest.raises(WriterBroken, match="forked"):
        writer.write(b"x")
    assert not writer.pending


def test_a_large_message_is_kept_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    writer = MessageWriter(pair[0].fileno(), Woken())
    message = os.urandom(8 * 2**20)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read_exactly(pair[1], len(message) + 4)))
    reader.start()
    writer.write(message)
    writer.wait()
    writer.write(b"tail")
    assert writer.finish(JOIN)
    reader.join(JOIN)
    assert got == [message + b"tail"]
