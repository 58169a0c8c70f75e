"""One run's text, and the service log."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.codec import LineBuffer, control_responses
from cog_trio.bridge.protocol import Log, LogLine, LogSource, PredictionId, SlotId
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken
from cog_trio.worker.logs import run_log as record_module
from cog_trio.worker.logs.run_log import BURST, LATE, RunLog, ServiceLog, current

JOIN = 20.0  # seconds that a thread of a test may take
OUT, ERR = LogSource.STDOUT, LogSource.STDERR


class Service:
    """A service log on a pipe that is read in the test."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.writer = MessageWriter(self.write_end, lambda: None)
        self.log = ServiceLog(self.writer)
        self._lines = LineBuffer()

    def take(self) -> list[Log]:
        os.set_blocking(self.read_end, False)
        try:
            while data := os.read(self.read_end, 2**20):
                self._lines.feed(data)
        except BlockingIOError:
            pass
        messages = [control_responses.decode(line) for line in self._lines.frames()]
        assert all(isinstance(message, Log) for message in messages)
        return [message for message in messages if isinstance(message, Log)]


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    os.close(service.read_end)
    os.close(service.write_end)


def run_log(sent: list[LogLine], id: str = "a") -> RunLog:
    return RunLog(SlotId(0), PredictionId(id), 1, sent.append)


def test_a_print_is_one_message() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    one.write(OUT, "hello")
    one.write(OUT, "\n")
    assert sent == [LogLine(OUT, "hello\n")]


@pytest.mark.covers("worker:W40")
def test_W40_unfinished_lines_leave_with_their_run_before_it_is_closed() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    one.write(OUT, "no newline")
    one.write(ERR, "nor here")
    one.finish()
    assert sent == [LogLine(OUT, "no newline"), LogLine(ERR, "nor here")]
    other: list[LogLine] = []
    two = run_log(other, "b")
    two.write(OUT, "next\n")
    assert other == [LogLine(OUT, "next\n")]


def test_the_two_streams_keep_the_order_in_which_their_lines_ended() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    for source, text in ((OUT, "a"), (ERR, "1\n"), (OUT, "b\n"), (ERR, "2\n")):
        one.write(source, text)
    assert [(line.source, line.data) for line in sent] == [(ERR, "1\n"), (OUT, "ab\n"), (ERR, "2\n")]


def test_flush_is_of_one_stream() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    one.write(OUT, "10%")
    one.write(ERR, "e")
    one.flush(OUT)
    assert sent == [LogLine(OUT, "10%")]


@pytest.mark.covers("worker:W46")
def test_W46_bytes_and_text_share_one_line() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    one.write(OUT, "a")
    one.write(OUT, "\u20ac".encode()[:2])
    one.write(OUT, "\u20ac".encode()[2:] + b"\n")
    assert "".join(line.data for line in sent) == "a\u20ac\n"


def test_text_from_the_pipes_does_not_mix_with_an_unfinished_line() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    one.write(OUT, "py")
    one.queue_pieces(OUT, ("from C\n",))
    one.send()
    one.write(OUT, "thon\n")
    assert [line.data for line in sent] == ["from C\n", "python\n"]


@pytest.mark.covers("worker:W42")
def test_W42_late_text_goes_to_the_service_log_with_the_old_id(service: Service) -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    one.service = service.log
    one.write(OUT, "in time\n")
    one.finish()
    assert not one.alive
    one.write(OUT, "la")
    one.write(OUT, "te\n")
    one.write(ERR, b"bytes too\n")
    one.queue_pieces(ERR, ("and pieces\n",))
    one.send()
    one.write(OUT, "flushed")
    one.flush(OUT)
    assert sent == [LogLine(OUT, "in time\n")]
    assert service.take() == [
        Log(OUT, "late\n", PredictionId("a")),
        Log(ERR, "bytes too\n", PredictionId("a")),
        Log(ERR, "and pieces\n", PredictionId("a")),
        Log(OUT, "flushed", PredictionId("a")),
    ]


def test_unfinished_late_lines_leave_at_the_next_barrier(service: Service) -> None:
    for id in ("a", "b"):
        one = run_log([], id)
        one.service = service.log
        one.finish()
        one.write(OUT, f"late of {id}")
    service.log.write(OUT, "nobody's")
    assert service.take() == []
    service.log.finish()
    assert service.take() == [
        Log(OUT, "late of a", PredictionId("a")),
        Log(OUT, "late of b", PredictionId("b")),
        Log(OUT, "nobody's"),
    ]


def test_frames_keep_their_place_among_the_text_and_never_follow_the_end() -> None:
    read_end, write_end = os.pipe()
    try:
        writer = MessageWriter(write_end, lambda: None)
        one = RunLog(SlotId(0), PredictionId("a"), 1, lambda line: writer.write(line.data.encode()), writer)
        one.write(OUT, "before\n")
        one.post_frame(bytearray(b"<metric>"))
        one.write(OUT, "after\n")
        one.finish()
        one.post_frame(bytearray(b"<late>"))
        assert os.read(read_end, 1000) == b"before\n<metric>after\n"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_text_of_a_broken_slot_is_kept_in_the_service_log(service: Service) -> None:
    def emit(_line: LogLine) -> None:
        raise WriterBroken("the other end is gone")

    one = RunLog(SlotId(0), PredictionId("a"), 1, emit)
    one.service = service.log
    one.write(OUT, "one\n")
    one.write(OUT, "two\n")
    assert service.take() == [Log(OUT, "one\n", PredictionId("a")), Log(OUT, "two\n", PredictionId("a"))]


def test_threads_that_print_lose_nothing_and_end_in_time() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    service = Service()
    one.service = service.log
    threads, lines = 4, 2000
    begun = threading.Barrier(threads + 1)

    def produce(number: int) -> None:
        begun.wait(JOIN)
        for index in range(lines):
            one.write(OUT, f"{number} {index}\n")

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
    for producer in producers:
        producer.start()
    got: list[Log] = []
    begun.wait(JOIN)
    one.finish()  # somewhere in the middle
    closed_at = len(sent)
    while any(producer.is_alive() for producer in producers):
        got += service.take()
        service.writer.finish(0.0)
    for producer in producers:
        producer.join(JOIN)
    while service.writer.pending:
        got += service.take()
        service.writer.finish(0.0)
    got += service.take()
    assert len(sent) == closed_at  # not one frame after the end
    texts = "".join([*(line.data for line in sent), *(log.data for log in got)]).splitlines()
    for number in range(threads):
        mine = [int(text.split()[1]) for text in texts if text.split()[0] == str(number)]
        assert mine == list(range(lines))
    os.close(service.read_end)
    os.close(service.write_end)


@pytest.mark.covers("worker:W27")
def test_W27_a_print_from_inside_a_print_is_queued_behind_it() -> None:
    """As a ``__del__`` that the garbage collector runs in the middle of a write."""
    sent: list[LogLine] = []

    def emit(line: LogLine) -> None:
        if line.data == "outer\n":
            one.write(OUT, "inner\n")
            one.flush(OUT)
        sent.append(line)

    one = RunLog(SlotId(0), PredictionId("a"), 1, emit)
    one.write(OUT, "outer\n")
    assert [line.data for line in sent] == ["outer\n", "inner\n"]


async def test_room_is_the_writers(service: Service) -> None:
    while not service.writer.full:
        service.log.post(OUT, "x" * 1000 + "\n")
    assert service.log.full
    with trio.fail_after(JOIN):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.log.wait_room)
            while service.writer.pending:
                service.take()
                service.writer.finish(0.0)
    assert not service.log.full


def test_messages_of_the_service_log_name_no_id_when_there_is_none(service: Service) -> None:
    service.log.write(OUT, "hello\n")
    assert msgspec.json.encode(service.take()[0]) == b'{"type":"log","source":"stdout","data":"hello\\n"}'


def test_there_is_no_current_record_outside_of_runs() -> None:
    assert current.get() is None


class Watch:
    """Stands in for the time module: a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    mine = Watch()
    monkeypatch.setattr(record_module, "time", mine)
    return mine


def torrent(sent: list[LogLine], asked: list[RunLog], watch: Watch) -> RunLog:
    """A record in the middle of a torrent: some lines are out, the last one waits."""
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, asked.append)
    for number in range(BURST + 2):
        watch.now += 0.00001
        one.write(OUT, f"{number}")
        one.write(OUT, "\n")
    assert [line.data for line in sent] == [f"{number}\n" for number in range(BURST + 1)]
    assert asked == [one]
    sent.clear()
    return one


LAST = f"{BURST + 1}\n"  # what waits in it


def test_in_a_torrent_lines_travel_together_and_none_is_lost(watch: Watch) -> None:
    sent: list[LogLine] = []
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, lambda run_log: None)
    lines = [f"line {number}\n" for number in range(20_000)]
    for line in lines:
        watch.now += 0.00001
        one.write(OUT, line[:-1])
        one.write(OUT, "\n")
    one.finish()
    assert "".join(line.data for line in sent) == "".join(lines)
    assert len(sent) < len(lines) / 20


def test_without_the_io_thread_nothing_is_held(watch: Watch) -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    for _ in range(1000):
        one.write(OUT, "x\n")
    assert len(sent) == 1000


@pytest.mark.parametrize("gap", [0.00011, 0.001, 1.0])
def test_lines_that_come_slower_leave_at_once(watch: Watch, gap: float) -> None:
    sent: list[LogLine] = []
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, lambda run_log: None)
    for number in range(500):
        watch.now += gap
        one.write(OUT, "x\n")
        assert len(sent) == number + 1


def test_after_a_pause_a_torrent_is_over(watch: Watch) -> None:
    sent: list[LogLine] = []
    one = torrent(sent, [], watch)
    watch.now += 0.02
    one.write(OUT, "now\n")
    assert [line.data for line in sent] == [LAST + "now\n"]


def test_standard_error_a_flush_and_other_frames_take_along_what_waits(watch: Watch) -> None:
    sent: list[LogLine] = []
    torrent(sent, [], watch).write(ERR, "error\n")
    assert sent == [LogLine(OUT, LAST), LogLine(ERR, "error\n")]
    sent.clear()
    torrent(sent, [], watch).flush(OUT)
    assert sent == [LogLine(OUT, LAST)]
    sent.clear()
    torrent(sent, [], watch).post_frame(bytearray(b"metric"))
    assert sent == [LogLine(OUT, LAST)]
    sent.clear()
    torrent(sent, [], watch).send()
    assert sent == [LogLine(OUT, LAST)]
    sent.clear()
    torrent(sent, [], watch).finish()
    assert sent == [LogLine(OUT, LAST)]


async def test_what_a_torrent_leaves_is_sent_a_moment_later(
    watch: Watch, autojump_clock: trio.testing.MockClock
) -> None:
    sent: list[LogLine] = []
    asked: list[RunLog] = []
    one = torrent(sent, asked, watch)
    with trio.move_on_after(LATE * 1.5):
        await one.send_late()
    assert sent == [LogLine(OUT, LAST)]
    asked.clear()
    await one.send_late()  # ends by itself
    watch.now += 0.00001
    one.write(OUT, "more\n")
    assert asked == [one]  # and is asked for again
    one.finish()
    await one.send_late()
    assert [line.data for line in sent] == [LAST, "more\n"]


def test_text_without_an_end_waits_within_bounds() -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    for _ in range(10_000):
        one.write(OUT, "x" * 100)
    assert sum(len(line.data) for line in sent) >= 10_000 * 100 - 2**17
    one.finish()
    assert "".join(line.data for line in sent) == "x" * 1_000_000
