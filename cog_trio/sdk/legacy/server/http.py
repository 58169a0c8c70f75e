"""`python -m cog.server.http`: Cog's command line, which starts our server with the same flags."""

from __future__ import annotations

import runpy

from ..mode import Mode

__all__ = ["Mode"]

SERVER = "cog_trio.server.http"

if __name__ == "__main__":
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
