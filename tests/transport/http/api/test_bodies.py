"""Bodies of creates: how deep they nest, told piece by piece, and names that are none."""

from __future__ import annotations

import json
import random
import re
import time
import tracemalloc
from collections.abc import Callable

import pytest

from cog_trio.inputs.validation import MAX_FAULTS, SMALL
from cog_trio.transport.http.api.bodies import MAX_DEPTH, BadBody, decode_create


@pytest.mark.parametrize("size", [1, SMALL])
def test_a_member_that_is_no_unicode_is_no_json(size: int) -> None:
    with pytest.raises(BadBody) as refused:
        decode_create(b'{"\\ud800":1,"input":{"a":"%b"}}' % (b"x" * size))
    assert refused.value.status == 400


def depth_of(body: bytes) -> int:
    """Bracket by bracket, the slow way."""
    depth = highest = 0
    for mark in re.sub(rb'"(?:[^"\\]|\\.)*"', b"", body, flags=re.DOTALL):
        depth += (mark in b"[{") - (mark in b"]}")
        highest = max(highest, depth)
    return highest


def is_too_deep(body: bytes) -> bool:
    told = set()
    for kind in (bytes, bytearray, memoryview):
        try:
            decode_create(kind(body))
        except BadBody as refusal:
            told.add((refusal.status, refusal.faults[0]["msg"]))
        else:
            told.add((0, ""))
    ((status, text),) = told
    if status:
        assert (status, text) == (400, "Failed to parse the request body as JSON: recursion limit exceeded")
    return bool(status)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("before", [0, 1, SMALL - 40, SMALL - 20, SMALL - 19, 3 * SMALL])
@pytest.mark.parametrize("filling", [b"x", b"\\\\", b'\\"', b"[", b"{"])
def test_nesting_of_127_passes_and_of_128_does_not_wherever_it_stands(before: int, filling: bytes) -> None:
    text = b'"' + filling * (before // len(filling)) + b'"'
    for deeper in (0, 1):
        body = b'{"x":%b,"input":[%b,%b]}' % (text, text, nested(MAX_DEPTH - 2 + deeper))
        assert is_too_deep(body) is bool(deeper)


@pytest.mark.parametrize("count", [1, 2000])
def test_much_that_is_not_deep_passes(count: int) -> None:
    blocks = b",".join([nested(100)] * count)
    assert not is_too_deep(b'{"input":[%b]}' % blocks)
    assert not is_too_deep(b'{"input":%b%b%b}' % (b"[" * 26, blocks, b"]" * 26))
    assert is_too_deep(b'{"input":%b%b%b}' % (b"[" * 27, blocks, b"]" * 27))


def test_random_bodies_are_told_as_bracket_by_bracket() -> None:
    rng = random.Random(20261129)

    def value(depth: int) -> object:
        if depth <= 0 or rng.random() < 0.2:
            return rng.choice([1, "a[", '\\"]', "\\", "{" * rng.randint(1, 200), "é" * 50, None])
        if rng.random() < 0.5:
            return [value(depth - 1) for _ in range(rng.choice([1, 1, 1, 2]))]
        return {rng.choice(["a", '"', "\\"]): value(depth - rng.choice([1, 30]))}

    seen = set()
    for _ in range(300):
        content: object = [value(rng.randint(0, 60)) for _ in range(rng.randint(1, 40))]
        for _ in range(rng.randint(0, 130)):
            content = [content]
        body = json.dumps({"input": content}, ensure_ascii=rng.random() < 0.5).encode()
        expected = depth_of(body) > MAX_DEPTH
        assert is_too_deep(body) is expected, body[:1000]
        seen.add(expected)
    assert seen == {True, False}


def test_a_body_without_input_but_with_unknown_members_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The classic first error: the inputs stand where ``input`` should."""
    assert decode_create(b'{"prompt": "a", "id": "b"}').id == "b"
    assert caplog.messages == [
        'a body without "input" has unknown members: prompt; inputs belong into {"input": {...}}'
    ]
    caplog.clear()
    decode_create(b'{"input": {}, "version": "x"}')
    decode_create(b'{"id": "b"}')
    assert caplog.messages == []


def faults_of(body: bytes) -> list[dict[str, object]]:
    with pytest.raises(BadBody) as refused:
        decode_create(body)
    assert refused.value.status == 422
    return [dict(fault) for fault in refused.value.faults]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("padding", [0, SMALL - 30, SMALL - 20, SMALL - 10, 2 * SMALL])
@pytest.mark.parametrize("second", [b'"input"', b'"\\u0069nput"', b'"inpu\\u0074"'])
def test_a_member_that_is_there_twice_is_refused_wherever_it_stands(
    kind: Callable[[bytes], bytes], padding: int, second: bytes
) -> None:
    body = b'{"x":"%b","input":{},"y":"%b",%b:{}}' % (b"x" * padding, b"y" * padding, second)
    with pytest.raises(BadBody, match="duplicate field `input`"):
        decode_create(kind(body))


def test_our_names_inside_of_the_input_are_no_repetition() -> None:
    body = b'{"input":{"id":"a","input":[{"input":1},{"webhook":"\\u0069d"}]},"id":"b","other":{"id":1}}'
    assert decode_create(body).id == "b"


def test_looking_for_repeated_members_takes_linear_time() -> None:
    """A search for the input in the body was quadratic: 2.8 s for 240 KB, with the interpreter's lock held."""
    body = b'{"input":"%b","x":"%b"}' % (b"1" * 20_000_000, b"1" * 19_000_000)
    began = time.process_time()
    decode_create(body)
    assert time.process_time() - began < 20  # it would be hours


def test_the_names_of_many_members_are_not_kept() -> None:
    members = b",".join(b'"%d":1' % number for number in range(200_000))
    tracemalloc.start()
    try:
        decode_create(b'{"\\u0061":1,%b}' % members)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(members)


@pytest.mark.parametrize("size", [1, SMALL, 2**20])
def test_a_number_beyond_all_range_in_a_member_that_is_ignored_is_ignored_at_any_size(size: int) -> None:
    assert decode_create(b'{"zz":1e999,"x":"%b","id":"a"}' % (b"x" * size)).id == "a"


@pytest.mark.parametrize(
    "body",
    [
        b'{"webhook_events_filter":[%b]}' % b",".join([b'"nonsense"'] * 20_000),
        b'{"webhook_events_filter":[%b]}' % b",".join([b"1"] * 100_000),
        b'{"context":{%b}}' % b",".join(b'"%d":1' % number for number in range(20_000)),
        b'{"context":{"%b":1}}' % (b"k" * 200_000),
        b'{"webhook_events_filter":["%b"]}' % (b"k" * 200_000),
    ],
    ids=["events", "numbers", "context", "long key", "long event"],
)
def test_a_refusal_is_bounded(body: bytes) -> None:
    faults = faults_of(body)
    assert len(faults) <= MAX_FAULTS + 1
    assert len(json.dumps(faults)) < 400_000


def test_a_webhook_may_have_8_KiB() -> None:
    url = b"http://h/"
    assert decode_create(b'{"webhook":"%b"}' % url.ljust(8192, b"x")).webhook is not None
    (fault,) = faults_of(b'{"webhook":"%b"}' % url.ljust(8193, b"x"))
    assert fault["loc"] == ["body", "webhook"]
    assert fault["msg"] == "must be an absolute http or https URL of at most 8192 bytes"
    assert faults_of(b'{"webhook":"http://h/%b"}' % ("é" * 4092).encode())
