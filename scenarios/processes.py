"""A server's processes, as psutil shows them."""

from __future__ import annotations

import psutil

from cog_trio.testing import Server


def children_of(server: Server) -> list[psutil.Process]:
    """The server's direct children: its workers, while there are any."""
    return [child for child in psutil.Process(server.process.pid).children() if child.status() != psutil.STATUS_ZOMBIE]


def worker_of(server: Server) -> psutil.Process:
    """The one worker process."""
    (process,) = children_of(server)
    return process
