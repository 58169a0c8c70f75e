"""`suppress_output`: keeps what a library prints out of the logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def suppress_output() -> Iterator[None]:
    """Redirect descriptors 1 and 2 to the null device: what C code and child processes print is dropped."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with ExitStack() as undo:
        null = os.open(os.devnull, os.O_WRONLY)
        undo.callback(os.close, null)
        for descriptor in (1, 2):
            saved = os.dup(descriptor)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, descriptor)
            os.dup2(null, descriptor)
        yield
