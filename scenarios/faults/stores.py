"""Servers around a server, which serve, fail, hang, cut and talk nonsense, as the plan of each run has it.

Files of runs come from them and go to them, and some webhooks do.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from cog_trio.testing.file_servers import FileServer, UploadServer, open_file_server, open_upload_server
from cog_trio.testing.helper_tasks import open_helpers
from cog_trio.testing.loopback import Loopback, Reply
from scenarios.faults.plans import Plan, placed

_CLOSES: Final = (("connection", "close"),)  # a pool of idle connections is not a leak
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
NONSENSE: Final = (  # what receivers of webhooks may answer; all but the first few are not HTTP
    b"HTTP/1.1 429 Later\r\nretry-after: 99999999999999999999\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 503 Later\r\nretry-after: " + b"9" * 5_000 + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 503 Later\r\nretry-after: -1e999\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 429 Later\r\nretry-after: Fri, 99 Dec 99999 99:99:99\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 429 Later\r\nretry-after: \xff\xfe\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 307 Round\r\nlocation: /round\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 308 Away\r\nlocation: http://[::1:%/\xff\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nshort",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\xff\xff",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 999 What\r\n\r\n",
    b"HTTP/9.9 banana\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000,
    b"SSH-2.0-OpenSSH_9.9\r\n",
    bytes(range(256)) * 100,
    b"",  # the connection ends
)
ACCEPTED: Final = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@dataclass
class Nonsense:
    """A receiver of webhooks that answers nonsense, also nothing at all, until it relents: then it takes everything."""

    url: str = ""
    _answers: int = 0
    _wait: set[trio.CancelScope] = field(default_factory=set)  # connections without an answer, or with half of one
    _relents: bool = False

    def begins(self) -> None:
        self._relents = False

    def relents(self) -> None:
        self._relents = True
        for scope in self._wait:
            scope.cancel()

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection and one answer, each of a different kind than the one before."""
        with suppress(trio.BrokenResourceError):
            async with stream:
                await stream.receive_some()
                if self._relents:
                    await stream.send_all(ACCEPTED)
                    return
                self._answers += 1
                kind = self._answers % (len(NONSENSE) + 1)
                with trio.CancelScope() as scope:  # one who still sends its own body takes no long answer
                    self._wait.add(scope)
                    try:
                        if kind < len(NONSENSE):
                            await stream.send_all(NONSENSE[kind])
                        else:
                            await trio.sleep_forever()
                    finally:
                        self._wait.remove(scope)


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
    """All servers; ``takes``: files go to the second."""

    files: FileServer
    uploads: UploadServer
    nonsense: Nonsense
    takes: bool

    def place(self, plan: Plan) -> Plan:
        """Have the servers behave as the plan has it; the plan with the URLs."""
        plan = placed(plan, f"{self.files.url}/{plan.name[1:-1]}", self.uploads.url if self.takes else "")
        if plan.fetch and plan.file is not None:
            usual = FETCH["served" if plan.fetch == "busy" else plan.fetch]
            self.files.add(plan.name[1:-1], plan.file, usual)
            if plan.fetch == "busy":
                _once(self.files, plan.name[1:-1], FETCH["busy"])
        if plan.upload == "refuses":  # each time: a refusal that breaks with its connection is asked for again
            assert isinstance(self.uploads.replies, Replies)
            self.uploads.replies[plan.file_name] = UPLOAD["refuses"]
        elif plan.upload in UPLOAD:
            _once(self.uploads, plan.file_name, UPLOAD[plan.upload])
        return plan


def _once(server: Loopback, name: str, reply: Reply) -> None:
    assert isinstance(server.replies, Replies)
    server.replies.first[name] = reply


@asynccontextmanager
async def open_stores(*, takes: bool) -> AsyncIterator[Stores]:
    """All servers for the length of a block."""
    async with open_file_server() as files, open_upload_server() as uploads, open_helpers() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nonsense = Nonsense(f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        nursery.start_soon(trio.serve_listeners, nonsense.serve, [listener])
        files.replies, uploads.replies = Replies(), Replies()
        uploads.usual = Reply(headers=_CLOSES)
        yield Stores(files, uploads, nonsense, takes)
