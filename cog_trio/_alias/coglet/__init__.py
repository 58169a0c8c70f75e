"""The import name `coglet`: the runtime of Cog, of which models see its version and the cancellation exception."""

from __future__ import annotations

from typing import Final, NamedTuple

from cog_trio.sdk import CancelationException, __version__

from . import _sdk as _sdk  # Cog has it under this name, for those who look for it
from . import server

__all__ = ["CancelationException", "__build__", "__version__", "server"]


class BuildInfo(NamedTuple):
    """How this runtime was built: not at all, it is Python."""

    version: str
    git_sha: str = ""
    dirty: bool = False
    build_time: str = ""
    rustc_version: str = ""


__build__: Final = BuildInfo(__version__)
