"""A prediction and its permit, side by side: what the orchestrator takes to run it, and gives back.

``RunRequest`` is what the worker gets to see of it. ``FileTaker`` is who reads the files that the run puts out: the
worker keeps them, and the run's inputs, until it is told that all of them have been read (W67).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from cog_trio.bridge.protocol import FileOutput, OutputChunk
from cog_trio.orchestrator.permits import PermitInUse
from cog_trio.state.prediction import Prediction


@dataclass(frozen=True)
class PredictionSlot:
    """One run to be. ``permit`` is entered and left by the orchestrator's ``run``.

    ``began`` is called when the run is about to be sent.
    """

    prediction: Prediction
    permit: PermitInUse
    began: Callable[[Prediction], None] = lambda prediction: None


@dataclass(frozen=True)
class RunRequest:
    """The fields of a Predict that the service decides; exactly one of ``input`` and ``input_file`` is set."""

    output_dir: str
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    input_file: str | msgspec.UnsetType = msgspec.UNSET
    context: dict[str, str] = field(default_factory=dict)


class FileTaker(Protocol):
    """Takes the files of one run."""

    def announce(self, item: OutputChunk | FileOutput) -> None:
        """A file has come, or a value with files inside, at the prediction's ``next_index``: keep its place.

        A file with a ``place`` is one of those inside the item before it. Reading starts at once.
        """

    async def settled(self) -> None:
        """Wait until all announced files are read or given up; a bad file raises nothing here."""
