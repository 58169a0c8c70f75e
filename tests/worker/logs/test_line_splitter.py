"""Cutting user text into pieces."""

from __future__ import annotations

import random

import msgspec
import pytest

from cog_trio.bridge.protocol import MAX_LOG_LINE, MAX_LOG_PIECE, TRUNCATED, LogLine, LogSource
from cog_trio.worker.logs.line_splitter import PIECE, LineSplitter


def feed(*texts: str) -> list[str]:
    lines = LineSplitter()
    return [piece for text in texts for piece in lines.feed(text)]


def test_text_goes_at_each_newline() -> None:
    assert feed("a", "\n", "b\nc", "\n") == ["a\n", "b\n", "c\n"]


def test_many_lines_written_together_are_one_piece() -> None:
    assert feed("a\nb\nc\nrest") == ["a\nb\nc\n"]


@pytest.mark.covers("worker:W41")
def test_W41_carriage_return_sends_what_is_there() -> None:
    assert feed("\r 10%", "\r 20%", "\r\n") == ["\r", " 10%\r", " 20%\r\n"]


def test_flush_sends_the_unfinished_line_once() -> None:
    lines = LineSplitter()
    assert lines.feed("10%") == ()
    assert lines.waiting
    assert lines.flush() == ("10%",)
    assert lines.flush() == ()
    assert list(lines.feed(" done\nnext")) == [" done\n"]
    assert list(lines.finish()) == ["next"]


def test_unfinished_line_goes_at_64_KiB() -> None:
    lines = LineSplitter()
    assert not lines.feed("a" * PIECE)
    assert list(lines.feed("b")) == ["a" * PIECE]
    assert list(lines.finish()) == ["b"]


@pytest.mark.covers("worker:W19")
@pytest.mark.parametrize("unit", ["a", "\x00", "\u20ac", "\U0001f600", "\\", "\n", "a\n", "\r"])
def test_W19_no_piece_is_over_1_MiB_after_encoding(unit: str) -> None:
    text = unit * (3 * 2**20 // len(unit.encode()))
    lines = LineSplitter()
    pieces = [*lines.feed(text), *lines.finish()]
    assert "".join(pieces) == text
    for piece in pieces:
        assert len(msgspec.json.encode(LogLine(LogSource.STDOUT, piece))) <= MAX_LOG_PIECE


@pytest.mark.covers("D25")
@pytest.mark.parametrize("size", [MAX_LOG_LINE - len(TRUNCATED), MAX_LOG_LINE - 1, MAX_LOG_LINE])
@pytest.mark.parametrize("step", [10**7, 50_000])
def test_D25_a_line_of_up_to_4_MiB_is_whole(size: int, step: int) -> None:
    text = "x" * size + "\nnext\n"
    assert "".join(feed(*(text[at : at + step] for at in range(0, len(text), step)))) == text


@pytest.mark.covers("D25")
@pytest.mark.parametrize("size", [MAX_LOG_LINE + 1, MAX_LOG_LINE + 100, 9 * 2**20])
@pytest.mark.parametrize("step", [10**8, 50_000])
def test_D25_a_longer_line_is_cut_and_says_so(size: int, step: int) -> None:
    text = "before\n" + "x" * size + "\nnext\n"
    got = "".join(feed(*(text[at : at + step] for at in range(0, len(text), step))))
    before, cut, after, rest = got.split("\n")
    assert (before, after, rest) == ("before", "next", "")
    assert len(cut) == MAX_LOG_LINE
    assert cut == "x" * (MAX_LOG_LINE - len(TRUNCATED)) + TRUNCATED


@pytest.mark.covers("D25")
def test_D25_the_cut_never_splits_a_character() -> None:
    got = "".join(feed("a" + "\u20ac" * (2 * 2**20) + "\n"))
    assert got.endswith("\u20ac" + TRUNCATED + "\n")
    assert MAX_LOG_LINE - 3 <= len(got.encode()) - 1 <= MAX_LOG_LINE


def test_end_of_a_line_whose_length_was_still_open() -> None:
    lines = LineSplitter()
    text = "x" * (MAX_LOG_LINE - 5)
    pieces = list(lines.feed(text))
    pieces += lines.flush()
    pieces += lines.finish()
    assert "".join(pieces) == text
    assert list(lines.feed("new\n")) == ["new\n"]


def test_finish_forgets_that_a_line_was_cut() -> None:
    lines = LineSplitter()
    lines.feed("x" * (5 * 2**20))
    lines.finish()
    assert lines.clean
    assert list(lines.feed("new\n")) == ["new\n"]


@pytest.mark.covers("worker:W46")
def test_W46_lone_surrogates_are_escaped() -> None:
    assert feed("a\udc80\u20ac\n") == ["a\\udc80\u20ac\n"]


@pytest.mark.covers("worker:W44")
def test_W44_characters_across_reads_are_whole() -> None:
    data = "naïve \u20ac \U0001f600\n".encode()
    for cut in range(len(data) + 1):
        lines = LineSplitter()
        pieces = [*lines.feed_bytes(data[:cut]), *lines.feed_bytes(data[cut:])]
        assert "".join(pieces).encode() == data


def test_bytes_that_are_no_text_are_replaced_and_do_not_reach_the_next_owner() -> None:
    lines = LineSplitter()
    assert list(lines.feed_bytes(b"a\xffb\n\xe2\x82")) == ["a\ufffdb\n"]
    assert list(lines.finish()) == ["\ufffd"]
    assert list(lines.feed_bytes(b"\xac\n")) == ["\ufffd\n"]


@pytest.mark.exhaustive
def test_any_split_gives_the_same_text() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(200):
        lines, written, got = LineSplitter(), "", ""
        for _ in range(rng.randrange(30)):
            text = "".join(rng.choice(["a", "\n", "\r", "\u20ac", "b" * rng.choice([1, 70_000])]) for _ in range(4))
            written += text
            got += "".join(lines.feed(text))
            if rng.random() < 0.3:
                got += "".join(lines.flush())
                assert got == written, f"seed {seed}"
        got += "".join(lines.finish())
        assert got == written, f"seed {seed}"
