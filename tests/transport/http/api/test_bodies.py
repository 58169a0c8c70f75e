"""Bodies of creates: how deep they nest, told piece by piece, and names that are none."""

from __future__ import annotations

import json
import random
import re

import pytest

from cog_trio.transport.http.api.bodies import MAX_DEPTH, SMALL, BadBody, decode_create


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
