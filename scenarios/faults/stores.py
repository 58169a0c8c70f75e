"""Where the files of runs come from and go to: servers that serve, fail, hang and cut, as each run's plan has it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from cog_trio.testing.file_servers import FileServer, UploadServer, open_file_server, open_upload_server
from cog_trio.testing.loopback import Loopback, Reply
from scenarios.faults.plans import Plan, placed

_CLOSES: Final = (("connection", "close"),)  # a pool of idle connections is no leak
FETCH: Final = {
    "served": Reply(headers=_CLOSES),
    "slow": Reply(delay=0.2, headers=_CLOSES),
    "busy": Reply(503, headers=_CLOSES),
    "gone": Reply(404, headers=_CLOSES),
    "cut": Reply(closes=True),
}
UPLOAD: Final = {
    "busy": Reply(503, headers=_CLOSES),
    "hangs": Reply(delay=math.inf),
    "cut": Reply(closes=True),
    "refuses": Reply(403, headers=_CLOSES),
}


class Replies(dict[str, Reply]):
    """By name; those in ``first`` are given once, before."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Reply] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.first or super().__contains__(name)

    def __getitem__(self, name: str) -> Reply:
        return self.first.pop(name) if name in self.first else super().__getitem__(name)


@dataclass
class Stores:
    """Both servers; ``takes``: files go to the second."""

    files: FileServer
    uploads: UploadServer
    takes: bool

    def place(self, plan: Plan) -> Plan:
        """Have the servers behave as the plan has it; the plan with the URLs."""
        plan = placed(plan, f"{self.files.url}/{plan.name[1:-1]}", self.uploads.url if self.takes else "")
        if plan.fetch and plan.file is not None:
            usual = FETCH["served" if plan.fetch == "busy" else plan.fetch]
            self.files.add(plan.name[1:-1], plan.file, usual)
            if plan.fetch == "busy":
                _once(self.files, plan.name[1:-1], FETCH["busy"])
        if plan.upload in UPLOAD:
            _once(self.uploads, plan.file_name, UPLOAD[plan.upload])
        return plan


def _once(server: Loopback, name: str, reply: Reply) -> None:
    assert isinstance(server.replies, Replies)
    server.replies.first[name] = reply


@asynccontextmanager
async def open_stores(*, takes: bool) -> AsyncIterator[Stores]:
    """Both servers for the length of a block."""
    async with open_file_server() as files, open_upload_server() as uploads:
        files.replies, uploads.replies = Replies(), Replies()
        uploads.usual = Reply(headers=_CLOSES)
        yield Stores(files, uploads, takes)
