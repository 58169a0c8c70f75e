"""JSON around large values, without a copy of them: the pieces of a whole that is never put together."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

Pieces: TypeAlias = "tuple[bytes | memoryview, ...]"

LARGE: Final = 2**20  # bytes of a value that is worth it
PART: Final = 2**18  # bytes that are handed on at a time: a copy of so little stays near the CPU
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
