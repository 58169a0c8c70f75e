"""The container's entry: ``python -m cog_trio.server.http`` (and ``python -m cog.server.http``).

The worker is spawned before anything else is imported, so that both processes start side by side. What the command line
and cog.yaml say comes after: see early_worker.py for what happens when they say something else.
"""

from __future__ import annotations

from cog_trio.server.early_worker import EarlyWorker
from cog_trio.server.pid1 import run_below_init


def main() -> None:
    """Serve until told to stop."""
    run_below_init()
    with EarlyWorker() as early:
        from cog_trio.cli import options
        from cog_trio.server.entry import NAME, entry

        code = options.run_command(entry, NAME, early)
    options.exit_with(code)


if __name__ == "__main__":
    main()
