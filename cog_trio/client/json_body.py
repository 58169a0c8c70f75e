"""The body of a request whose inputs hold files: sent piece by piece, so that no file is ever in memory whole.

The inputs are JSON in which each file is a data URL. A mark stands in place of each file while the JSON is made; once
it is encoded, the marks are where the files belong. The size is known beforehand.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cog_trio.files.mime import UNKNOWN, guess_mime

PIECE: Final = 3 * 2**16  # bytes of a file that are read at a time: a multiple of 3


class InputFile(NamedTuple):
    """A file of the disk that is sent as a data URL."""

    path: Path
    head: bytes  # of the data URL
    size: int  # bytes of the file

    @classmethod
    def at(cls, path: Path) -> InputFile:
        """Raises:
        OSError: it can't be read.
        """
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
        return cls(path, f"data:{guess_mime(path.name)};base64,".encode(), size)

    @property
    def encoded_size(self) -> int:
        return len(self.head) + 4 * ((self.size + 2) // 3)

    def pieces(self) -> Iterator[bytes]:
        """The data URL, piece by piece (blocking)."""
        yield self.head
        with self.path.open("rb") as file:
            while content := file.read(PIECE):
                yield base64.b64encode(content)


class JsonBody:
    """One body; may be sent again.

    ``input`` is of JSON, and may hold paths, files that are open for reading bytes, and bytes.

    Raises:
      TypeError: something of it has no JSON form.
      OSError: a file can't be read.
    """

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._files: dict[str, InputFile] = {}
        encoded = json.dumps(self._plain(members), separators=(",", ":"), allow_nan=False).encode()
        marks = {mark.encode(): file for mark, file in self._files.items()}
        pieces = re.split(b"(%b)" % b"|".join(marks), encoded) if marks else [encoded]
        self._parts: list[bytes | InputFile] = [marks.get(piece, piece) for piece in pieces]
        self.size = sum(len(part) if isinstance(part, bytes) else part.encoded_size for part in self._parts)

    @property
    def whole(self) -> bytes | None:
        """All of it, if it holds no file of the disk."""
        return None if self._files else b"".join(part for part in self._parts if isinstance(part, bytes))

    def pieces(self) -> Iterator[bytes]:
        """All of it (blocking where there are files)."""
        for part in self._parts:
            if isinstance(part, bytes):
                yield part
            else:
                yield from part.pieces()

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): self._plain(member) for name, member in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item) for item in value]
        if isinstance(value, os.PathLike):
            mark = secrets.token_hex(16)
            self._files[mark] = InputFile.at(Path(value))
            return mark
        if isinstance(value, (bytes, bytearray, memoryview)):
            return data_url(bytes(value), UNKNOWN)
        if callable(getattr(value, "read", None)):
            content = value.read()
            if not isinstance(content, bytes):
                raise TypeError("a file of the input must be open for reading bytes: open(..., 'rb')")
            return data_url(content, guess_mime(str(getattr(value, "name", ""))))
        return value


def data_url(content: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"
