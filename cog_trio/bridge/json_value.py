"""JSON that a user wrote, as values: integers are exact to 4,300 digits, whatever their sign.

msgspec decodes it. A sign counts as a digit to it, so that one integer in all is refused too early: a negative one of
exactly 4,300 digits. Where one stands in the text, the standard library decodes it once more, as strictly.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import msgspec

_decode: Final = msgspec.json.Decoder().decode
LARGE: Final = 2**20  # bytes
MANY: Final = 2**16  # objects and texts that one call may make
_PIECE: Final = 2**16  # bytes
_MADE: Final = (b"{", b"[", b'"')  # what begins one that takes long to make
_LONGEST: Final = re.compile(rb"-[0-9]{4300}(?![0-9.eE])")


def decode_json(raw: bytes | bytearray | memoryview | msgspec.Raw) -> Any:
    """The value of a JSON text.

    Raises:
      msgspec.MsgspecError, UnicodeError: it is not JSON that we take: syntax, numbers out of range, lone surrogates.
      RecursionError: it is nested too deep.
    """
    try:
        if len(memoryview(raw)) <= LARGE:
            return _decode(raw)
        with no_collector():
            return _decode(raw)
    except msgspec.ValidationError:
        text = memoryview(raw)
        if _LONGEST.search(text) is None:
            raise
        try:
            return _decode_again(str(text, "utf-8"))
        except ValueError:
            pass
        raise  # the first error is the one with our words


class _Name:
    """The type of a member's name, which makes msgspec call Python with each of them."""


class _Element:
    """The type of an element, likewise."""


def decode_json_in_steps(raw: bytes | bytearray | memoryview | msgspec.Raw) -> Any:
    """As ``decode_json``. A large array or object of many small ones is decoded element by element.

    One call that makes two million objects keeps the interpreter's lock for half a second. A call of Python with each
    element lets other threads run, and takes a third longer.

    Raises:
      As ``decode_json``.
    """
    view = memoryview(raw)
    first = bytes(view[:1])
    if len(view) <= LARGE or first not in b"[{" or not _makes_many(view):
        return decode_json(raw)
    items: list[Any] = []
    members: dict[str, Any] = {}
    name: Any = None
    same_name, same_element = _Name(), _Element()

    def collect_item(_: type, value: Any) -> _Element:
        items.append(value)
        return same_element

    def collect_member(kind: type, value: Any) -> _Name | _Element:
        nonlocal name
        if kind is _Name:
            name = value
            return same_name
        members[name] = value
        return same_element

    try:
        with no_collector():
            if first == b"[":
                msgspec.json.decode(view, type=list[_Element], dec_hook=collect_item)
                return items
            msgspec.json.decode(view, type=dict[_Name, _Element], dec_hook=collect_member)
            return members
    except msgspec.MsgspecError:
        return decode_json(raw)  # its error names the place in the text; and it knows the longest integers


def _makes_many(view: memoryview) -> bool:
    made = 0
    for start in range(0, len(view), _PIECE):
        piece = bytes(view[start : start + _PIECE])
        made += sum(map(piece.count, _MADE))
        if made > MANY:
            return True
    return False


@contextmanager
def no_collector() -> Iterator[None]:
    """The collector rests, which would go through all that is decoded again and again: 4 s for 30 MiB of small objects,
    against 0.5 s. Drop them before the end of the block."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _decode_again(text: str) -> Any:
    value = json.loads(text, parse_float=_finite, parse_constant=_refuse)
    json.dumps(value, ensure_ascii=False).encode()  # lone surrogates
    return value


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("out of range")
    return number


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)
