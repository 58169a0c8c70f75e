"""`cog.wait` of older releases: wait for files that are mounted late, and import slow modules early.

Nothing of ours calls it; the variables are those of Cog: ``COG_WAIT_FILE``, ``COG_WAIT_IMPORTS``,
``COG_EAGER_IMPORTS``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Final

TIMEOUT: Final = 60.0  # seconds
STEP: Final = 0.01  # seconds between two looks


def wait_for_file(timeout: float = TIMEOUT) -> bool:
    """Wait until the file that ``COG_WAIT_FILE`` names exists; False if it does not come."""
    file = os.environ.get("COG_WAIT_FILE")
    return file is None or _wait(lambda: os.path.exists(file), timeout)


def wait_for_imports(timeout: float = TIMEOUT) -> bool:
    """Wait until each module of ``COG_WAIT_IMPORTS`` (separated by commas) can be found."""
    modules = _names("COG_WAIT_IMPORTS")
    return _wait(lambda: all(importlib.util.find_spec(module) is not None for module in modules), timeout)


def eagerly_import_modules() -> int:
    """Import the modules of ``COG_EAGER_IMPORTS`` that exist; says how many were imported."""
    count = 0
    for module in _names("COG_EAGER_IMPORTS"):
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
            count += 1
    return count


def wait_for_env(timeout: float = TIMEOUT, include_imports: bool = True) -> bool:
    """All of it, in order."""
    found = wait_for_file(timeout)
    if include_imports:
        found = wait_for_imports(timeout) and found
        eagerly_import_modules()
    return found


def _names(variable: str) -> list[str]:
    return [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]


def _wait(ready: Callable[[], bool], timeout: float) -> bool:
    end = time.monotonic() + timeout
    while not ready():
        importlib.invalidate_caches()
        if time.monotonic() >= end:
            return False
        time.sleep(STEP)
    return True
