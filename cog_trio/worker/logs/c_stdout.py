"""The C library's own ``stdout``: on a pipe it would keep text for 4 KiB, past the end of the run that made it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

_LINE_BUFFERED: Final = 1  # _IOLBF of glibc, musl and macOS
_NAMES: Final = ("stdout", "__stdoutp")  # Linux; macOS


def open_stdout() -> Callable[[], None]:
    """Make it line buffered; gives what flushes it. (C's ``stderr`` is unbuffered.)"""
    libc = ctypes.CDLL(None)
    for name in _NAMES:
        try:
            stdout = ctypes.c_void_p.in_dll(libc, name)
        except ValueError:
            continue  # the other system's name
        libc.setvbuf(stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
        return _flusher(libc.fflush, stdout)
    return _nothing


def _flusher(fflush: Any, stdout: ctypes.c_void_p) -> Callable[[], None]:
    def flush() -> None:
        fflush(stdout)

    return flush


def _nothing() -> None:
    """A C library that hides its streams: its text comes when it likes."""
