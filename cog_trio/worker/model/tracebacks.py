"""What is told about an exception of user code: one line for the reply, a traceback for the run's log.

Frames of ours are left out of tracebacks: a user looks for the place in the model. ``str()`` of an exception is
user code and may raise anything, ``SystemExit`` too, or take for ever: call these inside ``gate.user_code``. They
raise nothing; a text that can't be had, or that a cancel cut off, leaves the type.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from typing import Final

from cog_trio.bridge.protocol import MAX_ERROR

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS: Final = (
    os.path.join(_PACKAGE, "worker") + os.sep,
    os.path.join(_PACKAGE, "sdk") + os.sep,
    "<frozen importlib.",  # between us and the model's file
)


def last_line(error: BaseException) -> str:
    """``Type: message`` on one line of at most ``MAX_ERROR`` bytes; of a group its leaves too, or the one alone."""
    if not isinstance(error, BaseExceptionGroup):
        return cut(_line(error), MAX_ERROR)
    only = sole(error)
    if only is not error:
        return cut(_line(only), MAX_ERROR)
    return cut(f"{_line(error)}: {'; '.join(map(_line, leaves(error)))}", MAX_ERROR)


def sole(error: BaseException) -> BaseException:
    """The one error that a group was made of, however deep; else the error itself."""
    found = list(leaves(error))
    return found[0] if len(found) == 1 else error


def cut(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8; lone surrogates are spelled out."""
    if len(text) * 4 <= limit and text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace")[:limit].decode("utf-8", "ignore")


def _line(error: BaseException) -> str:
    name = type(error).__name__
    try:
        message = str(error)
        message = " ".join(str.__str__(message)[:MAX_ERROR].splitlines()).strip()
    except BaseException:  # noqa: BLE001  the user's __str__ is broken: what is left is the type
        message = ""
    return f"{name}: {message}" if message else name


def leaves(error: BaseException) -> Iterator[BaseException]:
    """What a group was made of, in order, however deep; else the error itself."""
    left = [error]
    while left:
        error = left.pop()
        if isinstance(error, BaseExceptionGroup):
            left += reversed(error.exceptions)
        else:
            yield error


def trace(error: BaseException) -> str:
    """The traceback as Python prints it, without frames of ours."""
    try:
        whole = traceback.TracebackException.from_exception(error)
        _without_ours(whole, set())
        text = "".join(whole.format())
    except BaseException as fault:  # noqa: BLE001  a traceback that can't be printed must not hide the error
        text = f"{_line(error)}\n(its traceback can't be shown: {_line(fault)})\n"
    return text.encode("utf-8", "backslashreplace").decode()


def _without_ours(part: traceback.TracebackException, seen: set[int]) -> None:
    if id(part) in seen:
        return
    seen.add(id(part))
    if getattr(part, "stack", None):
        kept = [frame for frame in part.stack if not frame.filename.startswith(_OURS)]
        part.stack = traceback.StackSummary.from_list(kept)
    for other in (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())):
        if other is not None:
            _without_ours(other, seen)
