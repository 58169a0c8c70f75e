"""What models print becomes entries: lines, and whole tracebacks."""

from __future__ import annotations

import traceback

import pytest

from cog_trio.cli.printed_lines import MAX_LINE, PrintedLines


def _chained() -> str:
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b\nsecond line") from error
    except ValueError:
        return traceback.format_exc()


def _feed(lines: PrintedLines, *pieces: str, id: str | None = "p", source: str = "stderr") -> list[str]:
    return [entry for piece in pieces for entry in lines.feed(id, source, piece)]


@pytest.mark.parametrize(
    ("pieces", "entries"),
    [
        (("one\n", "two\n"), ["one", "two"]),
        (("o", "ne", "\ntwo", "\n"), ["one", "two"]),
        (("one\ntwo\n",), ["one", "two"]),
        (("\n",), [""]),
        (("10%\r", "20%\r", "\n"), ["20%"]),
        (("10%\r20%\rdone\n",), ["done"]),
    ],
)
def test_pieces_become_lines(pieces: tuple[str, ...], entries: list[str]) -> None:
    lines = PrintedLines()
    assert _feed(lines, *pieces) == entries
    assert list(lines.end("p")) == []


def test_an_unfinished_line_comes_at_the_end_and_a_long_one_is_cut() -> None:
    lines = PrintedLines()
    assert _feed(lines, "half") == []
    assert list(lines.end("other")) == []
    assert list(lines.end("p")) == [("stderr", "half")]
    assert _feed(lines, "x" * (MAX_LINE + 1)) == ["x" * (MAX_LINE + 1)]
    for number in range(10_000):
        assert _feed(lines, f"{number}%\r") == []
    assert list(lines.end("p")) == [("stderr", "9999%\r")]


@pytest.mark.parametrize("id", ["p", None])
@pytest.mark.parametrize("cut", ["whole", "lines", "characters"])
def test_a_traceback_is_one_entry_however_it_comes(cut: str, id: str | None) -> None:
    """With those that it is the consequence of; a message of several lines ends it."""
    text = _chained().removesuffix("\nsecond line\n") + "\n"
    pieces = {"whole": (text,), "lines": tuple(text.splitlines(keepends=True)), "characters": tuple(text)}[cut]
    lines = PrintedLines()
    assert _feed(lines, "before\n", *pieces, id=id) == ["before"]
    assert lines.take_trace(id) == text.rstrip("\n")
    assert _feed(lines, *pieces, "after\n", id=id) == [text.rstrip("\n"), "after"]
    assert _feed(lines, *pieces, id=id) == []
    assert list(lines.end(id)) == [("stderr", text.rstrip("\n"))]
    assert lines._streams == {}
    assert lines._traces == {}


def test_streams_and_predictions_are_kept_apart() -> None:
    lines = PrintedLines()
    assert _feed(lines, "a", source="stdout") == []
    assert _feed(lines, "b\n", source="stderr") == ["b"]
    assert _feed(lines, "c\n", id="q", source="stdout") == ["c"]
    assert list(lines.end("p")) == [("stdout", "a")]
