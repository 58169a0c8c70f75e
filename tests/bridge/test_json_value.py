"""JSON of users as values; the longest integers (D15)."""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import msgspec
import pytest

from cog_trio.bridge.json_value import LARGE, MANY, decode_json, decode_json_in_steps

LONGEST = "-" + "9" * 4300


@pytest.mark.covers("D15")
@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1.5",
        "[1,{}]",
        "9" * 4300,
        LONGEST,
        f'{{"a":[{LONGEST},1e300,"\\ud83d\\ude00é"],"b":null}}',
        '{"a":1,"a":2}',
    ],
)
def test_D15_values_are_exact(text: str) -> None:
    for raw in (text.encode(), bytearray(text.encode()), memoryview(text.encode()), msgspec.Raw(text.encode())):
        assert decode_json(raw) == json.loads(text)


@pytest.mark.covers("D15")
@pytest.mark.parametrize(
    "beside",
    [LONGEST + "9", "1e999", "-1e999", "NaN", "Infinity", '"\\ud800"', "1,", "{", "9" * 4301, '"\n"', "01", "\ufeff1"],
)
def test_D15_what_stands_beside_the_longest_integer_is_as_strict(beside: str) -> None:
    for text in (f"[{LONGEST},{beside}]", f"[{beside},{LONGEST}]"):
        with pytest.raises((msgspec.MsgspecError, UnicodeError)):
            decode_json(text.encode())


@pytest.mark.covers("D15")
def test_D15_bad_utf8_and_nesting_are_told_as_without_it() -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeError)):
        decode_json(f'[{LONGEST},"'.encode() + b'\xff"]')
    with pytest.raises(RecursionError):
        decode_json(f"[{LONGEST},{'[' * 100_000}{']' * 100_000}]".encode())


@pytest.mark.covers("D15")
@pytest.mark.parametrize("text", [LONGEST + "9", LONGEST + ".5e3", LONGEST + "e5", f'"{LONGEST}" x'])
def test_D15_longer_ones_are_refused(text: str) -> None:
    value: Any = None
    with pytest.raises(msgspec.MsgspecError):
        value = decode_json(text.encode())
    assert value is None


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("end", [b'"', b""])
def test_the_collector_is_left_as_it_was(size: int, enabled: bool, end: bytes) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        decode_json(b'"' + b"x" * size + end)
    except msgspec.DecodeError:
        assert not end
    finally:
        left = gc.isenabled()
        (gc.enable if before else gc.disable)()
    assert left is enabled


@pytest.mark.parametrize(
    "text",
    [
        "[" + ",".join(f'{{"a":{number}}}' for number in range(2 * MANY)) + "]",
        "[" + ",".join(f'"{number}"' for number in range(2 * MANY)) + f",{'[' * 100}{']' * 100}]",
        "{" + ",".join(f'"{number % MANY}":{number}' for number in range(4 * MANY)) + "}",
        "[" + ",".join(f'"{number}"' for number in range(2 * MANY)) + f",{LONGEST}]",
        "[" + "1," * LARGE + "1]",
    ],
    ids=["objects", "texts", "names that come twice", "the longest integer", "numbers"],
)
def test_a_large_value_that_is_decoded_in_steps_is_the_same(text: str) -> None:
    assert len(text) > LARGE
    for raw in (text.encode(), memoryview(text.encode()), msgspec.Raw(text.encode())):
        assert decode_json_in_steps(raw) == json.loads(text)
    assert gc.isenabled()


@pytest.mark.parametrize("end", ["1e999]", '"\\ud800"]', "]]", "", '{"a":1]', "[" * 100_000 + "]" * 100_001])
def test_a_large_value_that_is_decoded_in_steps_is_refused_with_the_same_text(end: str) -> None:
    raw = b"[" + b'{"a":"text"},' * (2 * MANY) + end.encode()
    errors = []
    for decode in (decode_json, decode_json_in_steps):
        with pytest.raises((msgspec.MsgspecError, UnicodeError, RecursionError)) as caught:
            decode(raw)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_other_threads_run_while_a_large_value_is_decoded_in_steps() -> None:
    """Counted by what the decoder asks Python: each of these calls is a place where another thread can go on."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    raw = b"[" + b'{"a":"text"},' * (2 * MANY) + b"1]"
    sys.setprofile(count)
    try:
        decode_json_in_steps(raw)
    finally:
        sys.setprofile(None)
    assert calls > 2 * MANY
