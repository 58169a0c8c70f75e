"""The capture pipes, without a worker around them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from cog_trio.bridge.protocol import LogLine, LogSource, PredictionId, SlotId
from cog_trio.worker.logs.pipes import PATIENCE, CapturePipes
from cog_trio.worker.logs.run_log import RunLog

OUT, ERR = LogSource.STDOUT, LogSource.STDERR
LIMIT = 20.0  # seconds


class Ends:
    """Both pipes and the text that was read from them."""

    def __init__(self, *, epoll: bool) -> None:
        self.reads, self.writes = zip(os.pipe(), os.pipe(), strict=True)
        self.sent: list[LogLine] = []
        self.run_log = RunLog(SlotId(0), PredictionId("a"), 1, self.take)
        self.meanwhile: Callable[[], None] = lambda: None  # called while a thread reads
        self.pipes = CapturePipes(*self.reads, self.find, epoll=epoll)
        self.arrived = trio.Event()

    def find(self) -> RunLog:
        self.meanwhile()
        return self.run_log

    def take(self, line: LogLine) -> None:
        self.sent.append(line)
        self.arrived.set()

    def text(self) -> str:
        return "".join(line.data for line in self.sent)

    def close(self) -> None:
        for fd in self.reads + self.writes:
            os.close(fd)


@pytest.fixture(params=[True, False], ids=["epoll", "poll"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    ends = Ends(epoll=request.param)
    yield ends
    ends.close()


def test_drain_takes_whole_lines_and_leaves_the_unfinished_one(ends: Ends) -> None:
    os.write(ends.writes[0], b"one\ntwo\nthr")
    os.write(ends.writes[1], b"error\n")
    ends.pipes.drain()
    assert ends.sent == [LogLine(OUT, "one\ntwo\n"), LogLine(ERR, "error\n")]
    os.write(ends.writes[0], b"ee\n")
    ends.pipes.drain()
    assert ends.text() == "one\ntwo\nerror\nthree\n"


def test_drain_of_nothing_gives_nothing(ends: Ends) -> None:
    ends.pipes.drain()
    ends.pipes.finish()
    assert ends.sent == []


def test_finish_takes_everything(ends: Ends) -> None:
    os.write(ends.writes[0], b"unfinished \xe2\x82")
    ends.pipes.finish()
    assert ends.text() == "unfinished \ufffd"


def test_a_full_pipe_is_drained_whole(ends: Ends) -> None:
    os.set_blocking(ends.writes[0], False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += os.write(ends.writes[0], b"x" * 999 + b"\n")
    assert size > 2**14
    ends.pipes.finish()
    assert len(ends.text()) == size


@pytest.mark.covers("worker:W44")
async def test_W44_an_unfinished_line_goes_200_ms_after_its_beginning(
    ends: Ends, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.pipes.pump, OUT)
        os.write(ends.writes[0], b"whole\nbegun")
        await ends.arrived.wait()
        start = trio.current_time()
        assert ends.text() == "whole\n"
        await trio.testing.wait_all_tasks_blocked()
        ends.arrived = trio.Event()
        await ends.arrived.wait()
        assert trio.current_time() - start == pytest.approx(PATIENCE)
        assert ends.text() == "whole\nbegun"
        nursery.cancel_scope.cancel()


@pytest.mark.covers("worker:W44")
async def test_W44_the_same_when_drain_has_read_it(ends: Ends, autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.pipes.pump, OUT)
        await trio.testing.wait_all_tasks_blocked()
        os.write(ends.writes[0], b"begun")
        ends.pipes.drain()
        assert ends.sent == []
        start = trio.current_time()
        await ends.arrived.wait()
        assert trio.current_time() - start == pytest.approx(PATIENCE)
        assert ends.text() == "begun"
        nursery.cancel_scope.cancel()


async def test_pump_ends_when_no_write_end_is_left(ends: Ends) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.pipes.pump, OUT)
            os.write(ends.writes[0], b"last")
            os.dup2(null, ends.writes[0])
    os.close(null)
    assert ends.text() == "last"
    os.write(ends.writes[1], b"the other\n")
    ends.pipes.drain()
    ends.pipes.finish()
    assert ends.text() == "lastthe other\n"


async def test_both_readers_may_see_the_end(ends: Ends) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.pipes.pump, OUT)
            await trio.testing.wait_all_tasks_blocked()
            os.write(ends.writes[0], b"last\n")
            os.dup2(null, ends.writes[0])
            ends.pipes.drain()  # before the pump, which the end has woken as well
            ends.pipes.finish()
    os.close(null)
    assert ends.text() == "last\n"


def test_text_that_another_thread_has_just_read_goes_first(ends: Ends) -> None:
    """Given a thread between reading and handing on, when another one drains, then it waits for the first."""
    read, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        read.set()
        go_on.wait(LIMIT)

    ends.meanwhile = pause
    os.write(ends.writes[0], b"raw\n")
    reader = threading.Thread(target=ends.pipes.drain)
    reader.start()
    assert read.wait(LIMIT)
    ends.meanwhile = lambda: None
    assert ends.pipes.has_text()
    threading.Timer(0.02, go_on.set).start()
    ends.pipes.drain()
    ends.run_log.write(OUT, "py\n")
    reader.join(LIMIT)
    assert ends.text() == "raw\npy\n"


def test_a_destructor_may_wait_for_a_thread_that_prints_while_another_one_is_read(ends: Ends) -> None:
    """Given a destructor, called while text is read, that joins a printing thread, then all of them go on."""

    def join_threads_that_drain() -> None:
        ends.meanwhile = lambda: None
        os.write(ends.writes[0], b"more\n")
        threads = [threading.Thread(target=ends.pipes.drain, daemon=True) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()

    ends.meanwhile = join_threads_that_drain
    os.write(ends.writes[0], b"text\n")
    ends.pipes.drain()
    assert ends.text() == "text\nmore\n"


async def test_many_threads_drain_beside_the_pump(ends: Ends) -> None:
    count, stop = 20_000, threading.Event()

    def write() -> None:
        for number in range(count):
            os.write(ends.writes[0], b"%d\n" % number)
        stop.set()

    def drain() -> None:
        while not stop.is_set():
            ends.pipes.drain()

    threads = [threading.Thread(target=target) for target in (write, drain, drain)]
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends.pipes.pump, OUT)
            for thread in threads:
                thread.start()
            for thread in threads:
                await trio.to_thread.run_sync(thread.join)
            nursery.cancel_scope.cancel()
    ends.pipes.finish()
    assert ends.text().split() == [str(number) for number in range(count)]
