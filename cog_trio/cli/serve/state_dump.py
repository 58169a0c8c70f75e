"""What the server is doing, written to its log on SIGUSR1: for a server or a prediction that hangs.

Nothing is stopped or changed, and all of it is bounded. The lines pass at every level but ``error``, since somebody has
asked for them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    import cog_trio

log: Final = logging.getLogger("cog_trio.cli")
MAX_PREDICTIONS: Final = 100  # lines about predictions
MAX_TASKS: Final = 300  # lines about tasks; all of them are counted by their names
MAX_FRAMES: Final = 3  # places of a task or thread, the innermost ones


def dump_state(service: cog_trio.PredictionService) -> None:
    """Write it, a line for each thing; the workers add theirs."""
    for line in _lines(service):
        log.warning("state: %s", line)
    service.dump_workers()


def _lines(service: cog_trio.PredictionService) -> Iterator[str]:
    now, health = service.statistics(), service.health()
    yield (
        f"health {health.status}{', draining' if health.draining else ''}; workers ready: {now.workers}, "
        f"slots: {now.slots}, idle: {now.idle}; predictions running: {now.running}, queued: {now.queued}; "
        f"webhooks pending: {now.webhooks}"
    )
    predictions = service.in_flight()
    for prediction in predictions[:MAX_PREDICTIONS]:
        yield _of_prediction(prediction)
    if len(predictions) > MAX_PREDICTIONS:
        yield f"and {len(predictions) - MAX_PREDICTIONS} more predictions"
    root = trio.lowlevel.current_root_task()
    tasks = [] if root is None else list(_tree(root, 0))
    for name, count in Counter(_name(task) for task, _ in tasks).most_common():
        yield f"tasks of {name}: {count}"
    for task, depth in tasks[:MAX_TASKS]:
        yield f"task {'  ' * depth}{_name(task)} waits at {_places(_frames(task))}"
    if len(tasks) > MAX_TASKS:
        yield f"and {len(tasks) - MAX_TASKS} more tasks"
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, ident)} is at {_places(_outwards(frame))}"


def _of_prediction(prediction: cog_trio.Prediction) -> str:
    now = trio.current_time()
    stage = "queued" if prediction.queued else prediction.status.value
    if prediction.cancel_requested:
        stage += ", cancel requested"
    ran = "" if prediction.started is None else f", sent to the worker {now - prediction.started:.1f} s ago"
    return f"{prediction.mode.value} {prediction.id}: {stage}, created {now - prediction.created:.1f} s ago{ran}"


def _tree(task: trio.lowlevel.Task, depth: int) -> Iterator[tuple[trio.lowlevel.Task, int]]:
    yield task, depth
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _tree(child, depth + 1)


def _name(task: trio.lowlevel.Task) -> str:
    return task.name.rpartition("functools.partial")[0] or task.name


def _frames(task: trio.lowlevel.Task) -> list[tuple[FrameType, int]]:
    """The frames of a task, the innermost first."""
    return list(task.iter_await_frames())[::-1]


def _outwards(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    frames = []
    while frame is not None:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return frames


def _places(frames: list[tuple[FrameType, int]]) -> str:
    """The innermost places that are not trio's own."""
    own = [(frame, line) for frame, line in frames if f"{os.sep}trio{os.sep}_" not in frame.f_code.co_filename]
    places = [
        f"{os.path.basename(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
        for frame, line in (own or frames)[:MAX_FRAMES]
    ]
    return " < ".join(places) or "its start"
