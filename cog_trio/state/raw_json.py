"""JSON around large values, without a copy of them: the pieces of a whole that is never put together.

And the other way round: many small values in one piece of memory, where each alone costs ten times its text.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, TypeAlias, overload

import msgspec

Pieces: TypeAlias = "tuple[bytes | memoryview, ...]"

LARGE: Final = 2**20  # bytes of a value that is worth it
PART: Final = 2**18  # bytes that are handed on at a time: a copy of so little stays near the CPU
SMALL: Final = 512  # bytes of a value, on the average, below which many are kept better in one piece
MANY: Final = 16
_MARK: Final = f'"{secrets.token_hex(16)}"'.encode()
MARK: Final = msgspec.Raw(_MARK)
"""Stands where the value belongs; nobody outside this process knows it."""


def splice(encoded: bytes, value: msgspec.Raw | Sequence[msgspec.Raw]) -> Pieces:
    """The JSON in which ``MARK`` stands, with the value, or the array of values, in its place."""
    before, after = encoded.split(_MARK)
    if isinstance(value, msgspec.Raw):
        return before, memoryview(value), after
    items: list[bytes | memoryview] = [before + b"["]
    for index, item in enumerate(value):
        if index:
            items.append(b",")
        items.append(memoryview(item))
    return (*items, b"]" + after)


def parts(pieces: Pieces) -> Iterator[bytes]:
    """The same bytes in parts of a handy size."""
    small: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        for start in range(0, len(piece), PART):
            part = piece[start : start + PART]
            if size + len(part) > PART:
                yield b"".join(small)
                small, size = [], 0
            small.append(part)
            size += len(part)
    yield b"".join(small)


class Packed(Sequence[msgspec.Raw]):
    """Values that change no more, kept as the JSON array of them; each is made again when it is asked for."""

    __slots__ = ("_ends", "array")

    def __init__(self, values: Sequence[msgspec.Raw]) -> None:
        self._ends = array("Q", accumulate([1 + len(memoryview(value)) for value in values]))  # in the array
        self.array = msgspec.Raw(b"[%b]" % b",".join(values))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> msgspec.Raw: ...
    @overload
    def __getitem__(self, index: slice) -> list[msgspec.Raw]: ...
    def __getitem__(self, index: int | slice) -> msgspec.Raw | list[msgspec.Raw]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        end = self._ends[index]
        start = self._ends[index - 1] + 1 if index % len(self) else 1
        return msgspec.Raw(bytes(memoryview(self.array)[start:end]))


def pack(values: Sequence[msgspec.Raw | None], size: int) -> Packed | None:
    """The values in one piece, if they are many and small; ``size``: bytes of all of them. None is not among them."""
    if len(values) < MANY or size > SMALL * len(values):
        return None
    return Packed([value for value in values if value is not None])
