"""JSON that a user wrote, as values: integers are exact to 4,300 digits, whatever their sign (D15).

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
_LONGEST: Final = re.compile(rb"-[0-9]{4300}(?![0-9.eE])")


def decode_json(raw: bytes | bytearray | memoryview | msgspec.Raw) -> Any:
    """The value of a JSON text.

    Raises:
      msgspec.MsgspecError, UnicodeError: it is no JSON that we take: syntax, numbers out of range, lone surrogates.
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
