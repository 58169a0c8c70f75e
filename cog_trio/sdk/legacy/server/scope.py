"""`cog.server.scope` of older releases: override the ambient scope for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cog_trio.sdk._deprecated import emit_metric
from cog_trio.sdk.scope import Scope, current_scope, enter, leave

__all__ = ["Scope", "current_scope", "emit_metric", "evolve_scope", "scope"]


@contextmanager
def scope(new: Scope) -> Iterator[None]:
    """Make ``new`` the current scope within the block."""
    token = enter(new)
    try:
        yield
    finally:
        leave(token)


@contextmanager
def evolve_scope(**changes: Any) -> Iterator[None]:
    """A scope like the current one, but for ``context`` or ``record_metric``, within the block."""
    with scope(current_scope().evolve(**changes)):
        yield
