"""What a request and a boot cost, counted in calls of Python functions: clocks would tell of the machine.

For scale, on one core of 2024: a request of ten inputs is validated in 4 µs after decoding, a model of 30 inputs is
loaded and described in 3 ms and its checks are compiled in 8 ms (in the parent, beside setup).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from cog_trio.inputs.validation import Validator, decode_input
from cog_trio.worker.model.load import load_model
from tests.sdk.source import PRELUDE, Models

TEN = """\
prompt: str = Input(min_length=1, max_length=2000), negative: str = "", width: int = Input(default=512, ge=64, le=2048),
height: int = Input(default=512, ge=64, le=2048), steps: int = Input(default=20, ge=1), scale: float = 7.5,
style: str = Input(default="photo", choices=["photo", "sketch"]), seed: Optional[int] = None,
image: Optional[Path] = None, tags: list[str] = Input(default=["a"])"""
REQUEST = {
    "prompt": "a boat on the sea",
    "negative": "ugly",
    "width": 768,
    "height": 512,
    "steps": 30,
    "scale": 7.5,
    "style": "sketch",
    "seed": 42,
    "image": "https://h/a.png",
    "tags": ["a", "b"],
}


def calls(function: Callable[[], Any]) -> int:
    """How many Python functions run, the first one included."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def test_a_request_of_ten_inputs_is_a_call_an_input(models: Models) -> None:
    model = models.run(TEN)
    validator = Validator(model.document, model.inputs)
    raw = json.dumps(REQUEST).encode()
    decoded = decode_input(raw)
    assert calls(lambda: validator.check(raw, decoded)) <= 20
    checked = validator.check(raw, decoded)
    assert checked.input is raw  # nothing is encoded again
    assert checked.echo is raw


def test_validation_is_compiled_once(models: Models) -> None:
    model = models.run(TEN)
    validator = Validator(model.document, model.inputs)
    raw = json.dumps(REQUEST).encode()
    first = calls(lambda: validator.check(raw))
    assert [calls(lambda: validator.check(raw)) for _ in range(3)] == [first] * 3


def test_describing_is_linear_and_small(models: Models) -> None:
    """30 inputs cost less than 300 calls each to load, describe and bind; at a tenth of a µs to 1 µs a call that is
    far below the 50 ms that a boot may lose to them."""

    def cost(number: int) -> int:
        names = ", ".join(f"p{i}: Optional[list[float]] = Input(default=None, ge=0, le=100)" for i in range(number))
        source = f"{PRELUDE}\nclass Runner(BaseRunner):\n    def run(self, {names}) -> str: ...\n"
        file = models.write(source)
        return calls(lambda: load_model(file))

    cost(1)
    base, thirty, sixty = cost(1), cost(30), cost(60)
    assert thirty - base <= 29 * 300
    assert sixty - thirty <= 1.2 * 30 / 29 * (thirty - base)
