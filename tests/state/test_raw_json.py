"""Many small values in one piece of memory."""

from __future__ import annotations

import sys

import msgspec
import pytest

from cog_trio.state.raw_json import MANY, SMALL, Packed, pack

VALUES = [msgspec.Raw(f'"{number}"'.encode()) for number in range(100)]


def size(values: list[msgspec.Raw]) -> int:
    return sum(len(memoryview(value)) for value in values)


def test_packed_values_are_what_they_were() -> None:
    packed = Packed(VALUES)
    assert len(packed) == 100
    assert [bytes(value) for value in packed] == [bytes(value) for value in VALUES]
    assert bytes(packed[99]) == bytes(packed[-1]) == b'"99"'
    assert bytes(packed[0]) == bytes(packed[-100]) == b'"0"'
    assert [bytes(value) for value in packed[3:5]] == [b'"3"', b'"4"']
    assert bytes(packed.array) == msgspec.json.encode(VALUES)


@pytest.mark.parametrize("index", [100, -101])
def test_there_are_no_others(index: int) -> None:
    with pytest.raises(IndexError):
        Packed(VALUES)[index]


def test_few_or_large_ones_stay_as_they_are() -> None:
    assert pack(VALUES[: MANY - 1], size(VALUES[: MANY - 1])) is None
    assert pack([], 0) is None
    large = [msgspec.Raw(b'"%b"' % (b"x" * SMALL))] * MANY
    assert pack(large, size(large)) is None
    assert pack(VALUES, size(VALUES)) is not None


def test_what_is_packed_takes_little_more_than_its_text() -> None:
    packed = pack(VALUES, size(VALUES))
    assert packed is not None
    assert sys.getsizeof(packed._ends) + sys.getsizeof(bytes(packed.array)) < size(VALUES) + 9 * 100 + 300
