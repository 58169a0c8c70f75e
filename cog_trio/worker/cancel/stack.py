"""Which frames of ours must be left alone: asked by signal handlers, about the frame that they interrupt."""

from __future__ import annotations

import sys
from collections.abc import Container
from types import CodeType, FrameType
from typing import Final

STATEFUL_FILES: Final[set[str]] = set()
"""Files whose frames keep the state of the gate, or of runs: a signal handler of the user's never raises in one."""

STATELESS: Final[set[CodeType]] = set()
"""Code in such files that user code calls and that keeps none: what a handler raises in there is user code's to get."""

HANDLERS: Final[set[CodeType]] = set()
"""Signal handlers of ours."""


_START_OF_PROCESS: Final = "_execute_child"  # of subprocess.Popen


def lies_below(frame: FrameType | None, codes: Container[CodeType]) -> bool:
    """Whether the frame, or one that has called it, runs one of these."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def is_unbreakable(frame: FrameType | None) -> bool:
    """Whether the frame, or one that has called it, is code that an exception from outside would leave half done.

    That is the import system, whose module would stay broken, and the start of a process by ``subprocess``, whose pipe
    would stay open.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == _START_OF_PROCESS:
            return True
        frame = frame.f_back
    return False


def top_is_of(packages: Container[str]) -> bool:
    """Whether the frame that calls ours is of one of these packages, which user code has called: their records may be
    half done."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package, _, _ = str(frame.f_globals.get("__name__", "cog_trio")).partition(".")  # generated code has no name
        if package != "cog_trio":
            return package in packages
        frame = frame.f_back
    return False
