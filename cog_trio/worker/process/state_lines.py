"""Where the threads of the worker, and the tasks of an asyncio model, are just now: for a run that hangs.

Read by the I/O thread while the others go on, so a line is right for a moment only. Nothing is stopped.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

MAX_FRAMES: Final = 8  # places of a thread or task, the innermost first
MAX_LINES: Final = 100  # of tasks


def state_lines(executor: object) -> Iterator[str]:
    """A line for each thread but this one, then for each task of the executor's loop, if it has one of asyncio."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"state: thread {names.get(ident, ident)} is at {_places(_outwards(frame))}"
    loop = getattr(executor, "loop", None)
    asyncio = sys.modules.get("asyncio")  # a model that does without it is not made to import it
    if asyncio is None or not isinstance(loop, asyncio.AbstractEventLoop):
        return
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in tasks[:MAX_LINES]:
        yield f"state: task {task.get_name()} waits at {_places(task.get_stack(limit=MAX_FRAMES)[::-1])}"
    if len(tasks) > MAX_LINES:
        yield f"state: and {len(tasks) - MAX_LINES} more tasks"


def _outwards(frame: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _places(frames: list[FrameType]) -> str:
    places = (f"{os.path.basename(one.f_code.co_filename)}:{one.f_lineno} {one.f_code.co_name}" for one in frames)
    return " < ".join(places) or "its start"
