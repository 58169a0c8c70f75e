"""Finished predictions are kept within three bounds (D6)."""

from __future__ import annotations

import random

import msgspec
import pytest
import trio
import trio.testing

from cog_trio.state.new_prediction import NewPrediction
from cog_trio.state.prediction import Prediction
from cog_trio.state.retention import RetainedPredictions
from cog_trio.state.status import Fact, Outcome

DAY = 86400.0


def finished(id: str, *, output: int = 0, input: int = 0) -> Prediction:
    """One that costs ``output`` bytes of output and ``input`` bytes of input."""
    prediction = Prediction(id, NewPrediction(input=b"x" * input))
    prediction.dispatched()
    if output:
        prediction.add_output(msgspec.Raw(b"1" * output))
    prediction.finish(Outcome(Fact.RETURNED))
    return prediction


def kept(retained: RetainedPredictions, ids: str) -> str:
    return "".join(id for id in ids if retained.get(id) is not None)


@pytest.mark.covers("D6")
async def test_the_last_so_many() -> None:
    retained = RetainedPredictions(count=3, age=DAY, size=1000)
    for id in "abcde":
        retained.add(finished(id))
    assert kept(retained, "abcde") == "cde"


@pytest.mark.covers("D6")
async def test_zero_keeps_none() -> None:
    retained = RetainedPredictions(count=0, age=DAY, size=1000)
    retained.add(finished("a"))
    assert (kept(retained, "a"), len(retained), retained.size) == ("", 0, 0)


@pytest.mark.covers("D6")
async def test_age(autojump_clock: trio.testing.MockClock) -> None:
    retained = RetainedPredictions(count=10, age=60.0, size=1000)
    retained.add(finished("a", output=5))
    await trio.sleep(30)
    retained.add(finished("b", output=5))
    await trio.sleep(29.5)
    assert kept(retained, "ab") == "ab"
    await trio.sleep(0.5)
    assert kept(retained, "ab") == "b"
    assert retained.size == 5
    await trio.sleep(30)
    assert (kept(retained, "ab"), retained.size) == ("", 0)


async def test_one_that_is_over_the_limit_alone_takes_no_place() -> None:
    retained = RetainedPredictions(count=10, age=DAY, size=100)
    for prediction in (finished("a", output=40, input=40), finished("b", output=101, input=5)):
        retained.add(prediction)
    assert (kept(retained, "ab"), retained.size) == ("a", 80)
    retained.add(finished("c", output=50, input=51))
    assert (kept(retained, "abc"), retained.size) == ("ac", 90)
    retained.add(finished("a", output=101))
    assert (kept(retained, "ac"), retained.size) == ("c", 50)


@pytest.mark.covers("D6")
async def test_inputs_go_first_oldest_first() -> None:
    retained = RetainedPredictions(count=10, age=DAY, size=100)
    first, second, third = (finished(id, output=20, input=20) for id in "abc")
    for prediction in (first, second, third):
        retained.add(prediction)
    assert kept(retained, "abc") == "abc"
    assert [prediction.input is None for prediction in (first, second, third)] == [True, False, False]
    assert retained.size == 100


async def test_then_whole_predictions_oldest_first() -> None:
    retained = RetainedPredictions(count=10, age=DAY, size=50)
    predictions = [finished(id, output=20, input=20) for id in "abc"]
    for prediction in predictions:
        retained.add(prediction)
    assert kept(retained, "abc") == "bc"
    assert all(prediction.input is None for prediction in predictions)
    assert retained.size == 40


async def test_one_that_is_too_large_alone_is_not_kept() -> None:
    retained = RetainedPredictions(count=10, age=DAY, size=50)
    retained.add(finished("a", output=10))
    retained.add(finished("b", output=51))
    assert (kept(retained, "ab"), retained.size) == ("a", 10)


async def test_a_later_one_of_the_same_id_takes_its_place() -> None:
    retained = RetainedPredictions(count=2, age=DAY, size=1000)
    retained.add(finished("a", output=10))
    retained.add(finished("b", output=10))
    latest = finished("a", output=30)
    retained.add(latest)
    assert retained.get("a") is latest
    assert (len(retained), retained.size) == (2, 40)
    retained.add(finished("c"))
    assert kept(retained, "abc") == "ac", "it counts as the youngest"


@pytest.mark.covers("http:W24", "D6")
@pytest.mark.parametrize("seed", range(3))
async def test_the_bounds_always_hold(seed: int) -> None:
    source = random.Random(seed)
    retained = RetainedPredictions(count=7, age=DAY, size=300)
    for _ in range(500):
        retained.add(finished(source.choice("abcdefghij"), output=source.randrange(60), input=source.randrange(60)))
        predictions = [found for id in "abcdefghij" if (found := retained.get(id)) is not None]
        assert len(predictions) == len(retained) <= 7
        assert sum(prediction.size for prediction in predictions) == retained.size <= 300
