"""The worker that is spawned before the command line, cog.yaml and the settings are read.

Reading them takes a third of the start, and in most containers they say nothing about the worker's process: a variable
names the model. So the first thing that runs spawns a worker with the defaults. Once all is read, ``take`` compares: a
worker whose folder or variables are not those that were asked for is killed before it has imported a model, and another
one is spawned in the usual way. Standard library only.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from cog_trio.orchestrator.spawn import WorkerProcess, spawn

TYPE_CHECKING = False  # no `import typing` before the worker runs
if TYPE_CHECKING:
    from types import TracebackType

MODEL = ("COG_PREDICT_TYPE_STUB", "COG_TRAIN_TYPE_STUB")  # variables; a container's image sets them
VARIABLES = {"COG_TRIO_DOWNLOAD_TIMEOUT": "600.0"}  # of a worker, when all settings are the defaults
FLAGS = ("-h", "--help", "-v", "--version", "--gpus", "--reload", "--download", "--input-hosts")  # beginnings
NAMES = (
    "COG_TRIO_GPUS",
    "COG_TRIO_RELOAD",
    "COG_TRIO_DOWNLOAD_TIMEOUT",
    "COG_TRIO_DOWNLOAD_LIMIT",
    "COG_TRIO_INPUT_HOSTS",
)
CONFIG = "cog.yaml"


class EarlyWorker:
    """A worker that is there already, if one was likely to be asked for. Leaving the ``with`` block ends it."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._process: WorkerProcess | None = None

    def take(self, folder: str, variables: dict[str, str]) -> WorkerProcess | None:
        """Return the worker, if it was started in this folder with these variables; else end it and return None."""
        if (folder, variables) != (self._folder, VARIABLES):
            self._end()
        return self._process

    def __enter__(self) -> EarlyWorker:
        if likely():
            with suppress(OSError):  # the usual spawn says what is missing
                self._process = spawn(self._folder, VARIABLES)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                pass


def likely() -> bool:
    """Whether a worker with the defaults is most likely what will be asked for."""
    if not any(os.environ.get(name) for name in MODEL) or any(os.environ.get(name) for name in NAMES):
        return False
    if any(argument.startswith(FLAGS) for argument in sys.argv[1:]):
        return False
    try:
        for standard in range(3):
            os.fstat(standard)
    except OSError:
        return False  # it is closed: what is opened next would get its number
    try:
        with open(CONFIG, "rb") as file:
            return b"environment" not in file.read()
    except OSError:
        return True  # there is none; or it is told later what is wrong with it
