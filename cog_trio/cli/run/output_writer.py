"""What becomes of an output: which parts are files and get written, and what is shown of the rest.

By the schema of the output. A value whose schema says that it is a file (``format: uri``), or of which nothing is
known, and that stands for content (a data URL, or a file of our own staging folder) is written to disk and replaced by
its path. A text that the schema calls a string stays a string, whatever it looks like. Nothing here prints: what is
to be said comes back.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

import cog_trio
from cog_trio.cli.run.input_parser import resolved, takes_file
from cog_trio.files.mime import UNKNOWN, guess_extension, guess_mime

OUTPUTS: Final = {"predict": "Output", "train": "TrainingOutput"}
DATA: Final = re.compile(r"data:([^;,]*)((?:;[^,;]*)*),", re.IGNORECASE)
MEDIA: Final = ("image/", "audio/", "video/")  # kinds of which one can't be read as another
STDOUT: Final = "-"
NAME: Final = "output"  # of a file that no name was given for


class BadOutput(Exception):
    """An output can't be written; the text says which and why."""


class OutputForm:
    """What the document says about the output of one callable."""

    def __init__(self, document: Mapping[str, Any], mode: str) -> None:
        schemas = document.get("components", {}).get("schemas", {})
        self.schema: Mapping[str, Any] = resolved(schemas.get(OUTPUTS[mode], {}), schemas)
        items = self.schema.get("items")
        self.items: Mapping[str, Any] = items if isinstance(items, Mapping) else {}
        self.streams = "x-cog-array-type" in self.schema  # items come one by one
        self.glued = self.schema.get("x-cog-array-display") == "concatenate"
        self.files = takes_file(self.schema) or (self.schema.get("type") == "array" and takes_file(self.items))


class OutputNames:
    """Writes the files of one output.

    Args:
      destination: ``-o``: a file, a folder (one that exists, or a name that ends in a slash), ``-`` for stdout.
      staging: prefix of the ``file:`` URLs that stand for files of our own, if there are any.
      beside: what ``-o`` names is for JSON; files get names of their own beside it.
    """

    def __init__(self, destination: str | None, staging: str | None = None, *, beside: bool = False) -> None:
        self.written: list[Path] = []
        self.warnings: list[str] = []  # for people, to be said once
        self._staging = staging
        self._base, self._folder = _split(destination)
        self._beside = beside

    def concern(self, value: Any) -> bool:
        """Whether any text of a value may be a file's: a look that spares most values the rest."""
        if isinstance(value, str):
            return self._stands_for_content(value)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return any(map(self.concern, inner))

    def content(self, value: Any, schema: Mapping[str, Any]) -> bytes | Path | None:
        """Return the content if the value is a file; of one in our staging folder, its path (blocking).

        Raises:
          BadOutput: its data URL is broken.
        """
        if not isinstance(value, str) or not _may_be_file(schema) or not self._stands_for_content(value):
            return None
        return cog_trio.local_path(value) if self._is_ours(value) else decode_data_url(value)

    def replace(self, value: Any, schema: Mapping[str, Any], place: Sequence[str] = ()) -> Any:
        """The value, its files written and replaced by their paths (blocking).

        Raises:
          BadOutput: a file can't be written, or its data URL is broken.
        """
        if isinstance(value, str):
            if not _may_be_file(schema) or not self._stands_for_content(value):
                return value
            return str(self._write(value, place))
        if isinstance(value, list):
            items = schema.get("items", {})
            return [self.replace(item, items, (*place, str(index))) for index, item in enumerate(value)]
        if isinstance(value, dict):
            fields = schema.get("properties", {})
            rest = schema.get("additionalProperties")
            other = rest if isinstance(rest, Mapping) else {}
            return {name: self.replace(item, fields.get(name, other), (*place, name)) for name, item in value.items()}
        return value

    def _stands_for_content(self, value: str) -> bool:
        return self._is_ours(value) or DATA.match(value) is not None

    def _is_ours(self, value: str) -> bool:
        return self._staging is not None and value.startswith(self._staging)

    def _write(self, value: str, place: Sequence[str]) -> Path:
        """One file: ``output.png``, ``output.0.png``, ``output.weights.bin``."""
        source = cog_trio.local_path(value) if self._is_ours(value) else None
        suffix = _suffix(value) if source is None else _tame(source.suffix)
        target = self._path(place, suffix)
        held, named = guess_mime(f"x{suffix}"), guess_mime(f"x{target.suffix}")
        if held.startswith(MEDIA) and named not in (held, UNKNOWN):
            self.warnings.append(f"{target} is named {target.suffix}, but holds {held}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if source is None:
                target.write_bytes(decode_data_url(value))
            elif _is_plain(target):
                shutil.move(source, target)
            else:
                with source.open("rb") as content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
        except OSError as error:
            raise BadOutput(f"{target} can't be written: {error.strerror or error}") from error
        self.written.append(target)
        return target

    def _path(self, place: Sequence[str], suffix: str) -> Path:
        """Where a file goes; ``-o`` may have said the suffix. No file of an output takes the place of another."""
        if not place and not self._beside and not _is_plain(self._base):
            return self._base
        own = self._base.suffix
        stem = self._base.name.removesuffix(own)
        middle = "".join(f".{_safe(part)}" for part in place)
        end = suffix if self._beside else own or suffix
        taken = {*self.written, self._base} if self._beside else {*self.written}
        numbers = ("", *(f".{number}" for number in range(2, len(taken) + 3)))
        paths = (self._base.with_name(f"{stem}{middle}{number}{end}") for number in numbers)
        return next(path for path in paths if path not in taken)

    def write(self, data: bytes, suffix: str) -> Path:
        """What is not a file: a text or JSON, where ``-o`` says.

        Raises:
          BadOutput: it can't be written.
        """
        target = self._base.with_name(self._base.name + suffix) if self._folder else self._base
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise BadOutput(f"{target} can't be written: {error.strerror or error}") from error
        self.written.append(target)
        return target


def check_destination(destination: str | None) -> str | None:
    """Why nothing can be written there, in one line; found out before the model runs. None: it can."""
    if destination == STDOUT:
        return None
    base, _ = _split(destination)
    if base.is_dir():
        return f"{base} is a folder, where the output would be written: name another place by -o"
    parent = base.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        return f"{parent} is not a folder"
    if not os.access(parent, os.W_OK) or (base.exists() and not os.access(base, os.W_OK)):
        return f"{base} can't be written: no permission"
    return None


def decode_data_url(url: str) -> bytes:
    """The content of a data URL.

    Raises:
      BadOutput: it is broken.
    """
    match = DATA.match(url)
    assert match is not None
    payload = url[match.end() :]
    try:
        if "base64" in match[2].lower().split(";"):
            return base64.b64decode(unquote(payload) if "%" in payload else payload, validate=True)
        return unquote_to_bytes(payload)
    except (binascii.Error, ValueError) as error:
        raise BadOutput(f"an output file came as a broken data URL: {error}") from None


def pretty(value: Any, *, indent: bool) -> str:
    """JSON as people read it, or on one line."""
    return json.dumps(value, indent=2 if indent else None, ensure_ascii=False)


def _split(destination: str | None) -> tuple[Path, bool]:
    """The path that names are made from, and whether the user named a folder only."""
    if destination is None or destination == STDOUT:
        return Path(NAME), False
    path = Path(destination).expanduser()
    if destination.endswith(os.sep) or path.is_dir():
        return path / NAME, True
    return path, False


def _may_be_file(schema: Mapping[str, Any]) -> bool:
    return takes_file(schema) or ("type" not in schema and "anyOf" not in schema)


def _suffix(url: str) -> str:
    match = DATA.match(url)
    return guess_extension(match[1] or "text/plain") if match else ""


def _tame(suffix: str) -> str:
    """The suffix that a model has chosen, as one word of moderate length."""
    return re.sub(r"[^\w.+-]", "_", suffix)[:32]


def _is_plain(target: Path) -> bool:
    """Whether a file may be put in a place as a whole; a device, a pipe or a link there is written to and stays."""
    return not target.is_symlink() and (target.is_file() or not target.exists())


def _safe(part: str) -> str:
    """A member's name inside a file's name."""
    return re.sub(r"[^\w\- ]", "_", part)[:100] or "_"
