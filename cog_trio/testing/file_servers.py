"""Where inputs are fetched from and outputs are put: a file server and an upload server on 127.0.0.1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from cog_trio.testing.loopback import OK, Loopback, Reply, Request, open_loopback

MISSING: Final = Reply(404)


@dataclass
class FileServer(Loopback):
    """Serves what was added; everything else is answered 404."""

    usual: Reply = MISSING

    def add(self, path: str, content: bytes = b"", reply: Reply = OK) -> str:
        """Serve ``content`` under a path; its URL. ``reply`` says how, for example slowly: ``Reply(delay=2)``."""
        self.replies[path] = replace(reply, content=content)
        return f"{self.url}/{quote(path)}"

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [request.path for request in self.came]


@dataclass
class UploadServer(Loopback):
    """Takes every upload; its ``url`` is what ``--upload-url`` names.

    Refusals are scripted by ``script``, or in ``replies`` by the name of a file.
    """

    @property
    def uploads(self) -> list[Request]:
        """What was put and taken, in the order of the answers."""
        return [request for request in self.answered if request.method == "PUT" and request.reply.status < 300]


@asynccontextmanager
async def open_file_server() -> AsyncIterator[FileServer]:
    """A file server for the length of a block; see ``open_loopback``."""
    async with open_loopback(FileServer()) as server:
        yield server


@asynccontextmanager
async def open_upload_server() -> AsyncIterator[UploadServer]:
    """An upload server for the length of a block; see ``open_loopback``."""
    async with open_loopback(UploadServer()) as server:
        yield server
