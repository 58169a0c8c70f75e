"""Names that still work but say, once a process, that they should not be used.

They are made on first access through the module ``__getattr__`` of `cog_trio.sdk`, so that a model that does not use
them sees no line. The line goes to stderr: at that time it is part of the setup log.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from .scope import current_scope

TEXTS: Final = {
    "emit_metric": "cog.emit_metric is deprecated; use self.record_metric(name, value) or "
    "current_scope().record_metric(name, value)",
    "ExperimentalFeatureWarning": "cog.ExperimentalFeatureWarning is deprecated: nothing raises it any more; "
    "remove the filter that names it",
}

_told: set[str] = set()


class ExperimentalFeatureWarning(FutureWarning):
    """Kept so that ``warnings.filterwarnings(..., category=ExperimentalFeatureWarning)`` keeps working."""


def emit_metric(name: str, value: Any) -> None:
    """Record a metric of the current prediction, replacing its value."""
    current_scope().record_metric(name, value, mode="replace")


def deprecated(name: str) -> Any:
    """The object of that name, one of `TEXTS`; tells about it the first time."""
    if name not in _told:
        _told.add(name)
        print(TEXTS[name], file=sys.stderr)
    return globals()[name]


for _public in (ExperimentalFeatureWarning, emit_metric):
    _public.__module__ = "cog"
