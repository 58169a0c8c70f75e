"""The body of a request whose inputs hold local files: sent piece by piece, so that no file is ever in memory whole.

The inputs are JSON in which each file is a data URL. ``UploadBody`` reads them for ``InputParser`` and leaves a mark in
place of each file; once the JSON is encoded, the marks are where the files belong. The size is known beforehand.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import trio

from cog_trio.cli.run.input_parser import STDIN, Read, data_url
from cog_trio.cli.run.session import encode
from cog_trio.client.json_body import InputFile


class UploadBody:
    """One body. Used as what reads files for ``InputParser``, then ``set``, then iterated over once."""

    def __init__(self, read: Read) -> None:
        self.sent = 0  # bytes so far
        self.size = 0  # bytes in all
        self._read = read
        self._files: dict[str, InputFile] = {}
        self._parts: list[bytes | InputFile] = []

    def __call__(self, source: str) -> bytes:
        """The content of a file whose text is the input.

        Raises:
          OSError: it can't be read.
        """
        return self._read(source)

    def file_input(self, source: str) -> str:
        """What stands for a file; its content is read while it is sent.

        Raises:
          OSError: it can't be read.
        """
        path = Path(source).expanduser()
        if source == STDIN or not path.is_file():  # what is not a regular file has no size
            return data_url(source, self._read(source))
        mark = secrets.token_hex(16)
        self._files[mark] = InputFile.at(path)
        return mark

    def set(self, body: Mapping[str, Any]) -> None:
        """Encode the body (blocking), with the files in their places."""
        encoded = encode(body)
        marks = {mark.encode(): file for mark, file in self._files.items()}
        pieces = re.split(b"(%b)" % b"|".join(marks), encoded) if marks else [encoded]
        self._parts = [marks.get(piece, piece) for piece in pieces]
        self.size = sum(len(part) if isinstance(part, bytes) else part.encoded_size for part in self._parts)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            if isinstance(part, bytes):
                self.sent += len(part)
                yield part
                continue
            pieces = part.pieces()
            while piece := await trio.to_thread.run_sync(next, pieces, b""):
                self.sent += len(piece)
                yield piece

    def progress(self) -> tuple[int, int | None] | None:
        """Bytes that were sent, and of how many; None without files, and once all are sent."""
        return None if not self._files or self.sent == self.size else (self.sent, self.size)
