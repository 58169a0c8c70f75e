"""Stop texts, against every way of cutting a text into pieces."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cog_trio.transport.http.openai.stop_text import StopText


def shown(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopText(stops)
    text = "".join(matcher.feed(piece) for piece in pieces)
    return text + matcher.finish(), matcher.found


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop text that is complete first; of several, up to the one that began first."""
    ends = [(start + len(stop), start) for stop in stops if stop and (start := text.find(stop)) >= 0]
    return (text[: min(ends)[1]], True) if ends else (text, False)


def cuts(text: str) -> list[list[str]]:
    """All ways of cutting it."""
    places = range(1, len(text))
    return [
        [text[start:end] for start, end in zip((0, *chosen), (*chosen, len(text)), strict=True)]
        for size in range(len(text))
        for chosen in combinations(places, size)
    ]


RANDOM = random.Random(7)
STOPS = [
    ["".join(RANDOM.choices("ab", k=RANDOM.randint(1, 4))) for _ in range(RANDOM.randint(1, 3))] for _ in range(46)
] + [["ab", "b"], ["aab", "ab"], ["aaa"], ["", "ba"]]


@pytest.mark.parametrize("text", ["aababbab", "aaaabaab", "bbbbaaaa"])
def test_fifty_stop_texts_in_every_way_of_cutting(text: str) -> None:
    assert len(STOPS) == 50
    for stops in STOPS:
        for pieces in cuts(text):
            assert shown(pieces, stops) == expected(text, stops), (pieces, stops)


@given(st.lists(st.text("ab\n", max_size=5), max_size=8), st.lists(st.text("ab\n", max_size=4), max_size=4))
def test_pieces_and_stops_at_random(pieces: list[str], stops: list[str]) -> None:
    assert shown(pieces, stops) == expected("".join(pieces), stops)


def test_nothing_is_held_that_can_not_become_a_stop_text() -> None:
    matcher = StopText(["</end>"])
    assert matcher.feed("a < b") == "a < b"
    assert matcher.feed("a </en") == "a "
    assert matcher.feed("try") == "</entry"
    assert matcher.feed(" </end> more") == " "
    assert (matcher.feed("more"), matcher.finish(), matcher.found) == ("", "", True)


def test_without_stops_all_is_shown_at_once() -> None:
    matcher = StopText([])
    assert matcher.feed("text") == "text"
    assert (matcher.finish(), matcher.found) == ("", False)
