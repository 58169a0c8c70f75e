"""Which frames of ours must be left alone: asked by signal handlers, about the frame that they interrupt."""

from __future__ import annotations

from collections.abc import Container
from types import CodeType, FrameType
from typing import Final

KEEPERS: Final[set[str]] = set()
"""Files whose frames keep the state of the gate, or of runs: a signal handler of the user's never raises in one."""

HANDLERS: Final[set[CodeType]] = set()
"""Signal handlers of ours."""


def lies_below(frame: FrameType | None, codes: Container[CodeType]) -> bool:
    """Whether the frame, or one that has called it, runs one of these."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None
