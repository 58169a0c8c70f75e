"""One run's text, and the service log."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.bridge.codec import FrameBuffer, LineBuffer, control_responses, encode_frame, slot_responses
from cog_trio.bridge.protocol import Log, LogLine, LogSource, PredictionId, SlotId
from cog_trio.worker.cancel.gate import gate
from cog_trio.worker.ipc.message_writer import MessageWriter, WriterBroken
from cog_trio.worker.logs import run_log as record_module
from cog_trio.worker.logs.run_log import HELD, LATE, LOOP_CUT, LOOP_ROOM, TOKENS, RunLog, ServiceLog, current

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
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    mine = Watch()
    monkeypatch.setattr(record_module, "monotonic", lambda: mine.now)
    return mine


def say(one: RunLog, source: LogSource, text: str) -> None:
    """Write as a stream does."""
    if not one.hold(source, text):
        one.write(source, text)


def torrent(sent: list[LogLine], asked: list[RunLog], watch: Watch) -> RunLog:
    """A record in the middle of a torrent: some lines are out, the last one waits."""
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, asked.append)
    for number in range(FIRST + 1):
        watch.now += 0.00001
        say(one, OUT, f"{number}")
        say(one, OUT, "\n")
    assert [line.data for line in sent] == [f"{number}\n" for number in range(FIRST)]
    assert asked == [one]
    sent.clear()
    return one


FIRST = int(TOKENS)  # lines that leave at once, come they ever so fast
LAST = f"{FIRST}\n"  # what waits in a torrent


def test_in_a_torrent_lines_travel_together_and_none_is_lost(watch: Watch) -> None:
    sent: list[LogLine] = []
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, lambda run_log: None)
    lines = [f"line {number}\n" for number in range(20_000)]
    for line in lines:
        watch.now += 0.00001
        say(one, OUT, line[:-1])
        say(one, OUT, "\n")
    one.finish()
    assert "".join(line.data for line in sent) == "".join(lines)
    assert len(sent) < len(lines) / 20


def test_a_crash_after_a_few_prints_costs_none(watch: Watch) -> None:
    """The first lines after a pause are with the kernel when ``print`` returns."""
    sent: list[LogLine] = []
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, lambda run_log: None)
    for _ in range(3):
        sent.clear()
        for number in range(FIRST):
            say(one, OUT, f"line {number}")
            say(one, OUT, "\n")
            assert len(sent) == number + 1
        watch.now += 1.0


def test_without_the_io_thread_nothing_is_held(watch: Watch) -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    for _ in range(1000):
        say(one, OUT, "x\n")
    assert len(sent) == 1000


@pytest.mark.parametrize("gap", [0.001, 0.0011, 1.0])
def test_lines_that_come_slower_leave_at_once(watch: Watch, gap: float) -> None:
    sent: list[LogLine] = []
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, lambda run_log: None)
    for number in range(500):
        watch.now += gap
        say(one, OUT, "x\n")
        assert len(sent) == number + 1


def test_after_a_pause_a_torrent_is_over(watch: Watch) -> None:
    sent: list[LogLine] = []
    one = torrent(sent, [], watch)
    watch.now += 0.02
    say(one, OUT, "now\n")
    assert [line.data for line in sent] == [LAST + "now\n"]


def test_standard_error_a_flush_and_other_frames_take_along_what_waits(watch: Watch) -> None:
    sent: list[LogLine] = []
    say(torrent(sent, [], watch), ERR, "error\n")
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


def test_descriptors_that_hold_text_are_read_before_a_line_waits(watch: Watch) -> None:
    sent: list[LogLine] = []
    one = torrent(sent, [], watch)
    one.has_older = lambda: True
    assert one.hold(OUT, "py")  # it ends no line: nothing of it is shown before what is older
    assert not one.hold(OUT, "\n")
    one.has_older = lambda: False
    assert one.hold(OUT, "\n")


async def test_what_a_torrent_leaves_is_sent_a_moment_later(
    watch: Watch, autojump_clock: trio.testing.MockClock
) -> None:
    sent: list[LogLine] = []
    asked: list[RunLog] = []
    one = torrent(sent, asked, watch)
    with trio.move_on_after(LATE * 1.5):
        await one.send_late()
    assert sent == []  # it goes on: its own thread sends
    watch.now += 0.002
    asked.clear()
    await one.send_late()  # ends by itself
    assert sent == [LogLine(OUT, LAST)]
    for _ in range(3):
        say(one, OUT, "more\n")
    assert asked == [one]  # and is asked for again
    one.finish()
    await one.send_late()
    assert "".join(line.data for line in sent) == LAST + "more\n" * 3


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_text_without_an_end_waits_within_bounds(size: int) -> None:
    sent: list[LogLine] = []
    one = run_log(sent)
    count = 5_000_000 // size if size > 1 else 200_000
    for _ in range(count):
        say(one, OUT, "x" * size)
    assert sum(len(line.data) for line in sent) >= min((count - HELD) * size - 2**17, 4 * 2**20 - 2**17)
    one.finish()
    text = "".join(line.data for line in sent)
    assert text == "x" * (count * size) or "TRUNCATED" in text  # a line of over 4 MiB is cut


def test_held_text_of_a_thread_that_is_late_goes_to_the_service_log(service: Service) -> None:
    sent: list[LogLine] = []
    one = RunLog(SlotId(0), PredictionId("a"), 1, sent.append, None, lambda run_log: None)
    one.service = service.log
    one.finish()
    say(one, OUT, "late")
    one.flush(OUT)
    assert (sent, service.take()) == ([], [Log(OUT, "late", PredictionId("a"))])


class Stalled:
    """A record on a socket that nobody reads, as of an async model's run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gate, "in_task", lambda: True)
        monkeypatch.setattr(gate, "main", threading.get_ident())
        self.ours, self.theirs = socket.socketpair()
        self.writer = MessageWriter(self.theirs.fileno(), lambda: None)
        self.dropped: list[int] = []
        self.log = RunLog(
            SlotId(0),
            PredictionId("a"),
            1,
            lambda line: self.writer.write(encode_frame(line)),
            self.writer,
            drop=self.dropped.append,
        )

    def read(self) -> str:
        """What comes until nothing is pending."""
        frames, texts = FrameBuffer(), []
        self.ours.setblocking(False)
        while True:
            try:
                frames.feed(self.ours.recv(2**20))
            except BlockingIOError:
                if self.writer.finish(0.0):
                    break
        with contextlib.suppress(BlockingIOError):
            while data := self.ours.recv(2**20):
                frames.feed(data)
        for body in frames.frames():
            line = slot_responses.decode(body)
            assert isinstance(line, LogLine)
            texts.append(line.data)
        return "".join(texts)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalled]:
    stalled = Stalled(monkeypatch)
    yield stalled
    stalled.close()


@pytest.mark.parametrize("size", [100, 10_000, 3 * 2**20])
def test_text_of_an_event_loops_thread_waits_within_a_bound_and_is_cut_and_counted(stalled: Stalled, size: int) -> None:
    """Given a reader that stalls, printing never blocks; what is over the bound is cut, with a mark, and counted."""
    line = "x" * (size - 1) + "\n"
    count = 3 * LOOP_ROOM // size
    for _ in range(count):
        say(stalled.log, OUT, line)
    assert LOOP_ROOM - size <= stalled.writer.pending <= LOOP_ROOM * 1.2
    text = stalled.read()
    assert text.endswith(LOOP_CUT)
    assert sum(stalled.dropped) == count - text[: -len(LOOP_CUT)].count("\n")
    say(stalled.log, OUT, "room again\n")
    assert stalled.read() == "room again\n"


def test_one_text_over_the_bound_is_cut(stalled: Stalled) -> None:
    say(stalled.log, OUT, "y\n" * LOOP_ROOM)
    assert stalled.dropped == [LOOP_ROOM // 2]
    assert stalled.read() == "y\n" * (LOOP_ROOM // 2) + LOOP_CUT


def test_bytes_are_cut_as_text_is(stalled: Stalled) -> None:
    for _ in range(5):
        stalled.log.write(OUT, b"z" * LOOP_ROOM + b"\n")
    assert stalled.read().endswith(LOOP_CUT)
    assert len(stalled.dropped) == 5
