"""Warnings to the author of a model, for all that reads signatures and finds models."""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress
from typing import Any


def notice(text: str, category: type[Warning] = UserWarning, about: Any = None) -> None:
    """Warn the author of a model; shown whatever filters are set, since nobody reruns a container to see it.

    ``about`` is the function or class whose place is told. Without one, no line is: ours would tell the author nothing.
    """
    file, line = "<model>", 0
    with suppress(OSError, TypeError, ValueError, AttributeError):  # code that was not read from a file
        if about is not None:
            found = inspect.unwrap(about)
            file, line = inspect.getfile(found), inspect.findsource(found)[1] + 1
    with warnings.catch_warnings():
        warnings.simplefilter("always", category)
        warnings.warn_explicit(text, category, file, line)
