"""Warnings to the author of a model, for all that reads signatures and finds models."""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress
from typing import Any

old_names: list[str] = []  # deprecated names of Cog that the model uses, as far as it is loaded


def notice_old_names() -> None:
    """Tell of all deprecated names in one line."""
    if old_names:
        names = ", ".join(dict.fromkeys(old_names))
        text = f"old names of Cog are used ({names}); cog-trio doctor tells where and what to write"
        notice(text, DeprecationWarning)
        old_names.clear()


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
