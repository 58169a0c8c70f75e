"""What all kinds of executors are to the rest of the worker: the main thread, which runs the model."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cog_trio.worker.cancel.gate import Gate
from cog_trio.worker.runs.slot_reader import SlotReader
from cog_trio.worker.runs.slots import Job, end_forked_child


class Executor(ABC):
    """``readers`` are those of all slots; they are set before ``live`` asks whether all is ready."""

    def __init__(self, gate: Gate) -> None:
        self.readers: list[SlotReader] = []
        self._gate = gate

    # Main thread

    @abstractmethod
    def serve(self, setups: Iterable[Callable[..., Any]], ready: Callable[[], bool]) -> None:
        """Set the model up; then, if ``ready`` says so, read the slots and run what comes, until told to stop.

        Raises:
          BaseException: what a setup raised.
        """

    @abstractmethod
    def start(self, job: Job) -> None:
        """Run a job, or begin it as a task: its inputs are there."""

    # Any thread

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Have a job started."""

    @abstractmethod
    def stop(self) -> None:
        """Have ``live`` return once no run is left."""

    # I/O thread

    @abstractmethod
    async def cancel(self, job: Job) -> None:
        """Interrupt a job; returns when there is nothing left to do about it."""


def set_up(setups: Iterable[Callable[..., Any]], complete: Callable[[Awaitable[Any]], object], gate: Gate) -> None:
    """Call what sets the model up; ``complete`` runs an awaitable to its end."""
    for setup in setups:
        result = setup()
        if inspect.isawaitable(result):
            complete(result)
        if gate.forked:
            end_forked_child(None)
