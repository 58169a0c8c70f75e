"""From what user code returned or yielded to what goes on the wire.

One ``OutputEncoder`` serves one run. Each item (the whole result, an element of a returned list, a yielded value)
becomes JSON bytes, encoded once, or a ``FileItem``: a file on disk that the parent takes. Nothing here knows of
sockets, frames or predictions, and nothing is sent before the whole item could be converted.

Most items are plain: text, numbers, lists and dicts of them. For those a scan in C (``set(map(type, ...))``) shows
that the encoder may take them as they are; all else is rebuilt by the table. The encoder alone won't do: it turns
bytes into base64, NaN silently into null, and a dataclass with a secret in it into the secret.

Files inside a larger value are the parent's to take too: the value travels with a null at each of their
places, beside it the places as byte offsets, so that the parent puts its strings in without decoding anything. A
yielded file is copied into the run's folder, because a generator may overwrite it while the parent reads;
returned ones stay where they are.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import io
import math
import os
import re
import secrets
import shutil
import stat
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from cog_trio.sdk.types import MASK, URLPath
from cog_trio.worker.model.run_folder import RunFolder

NOT_FINITE: Final = "Warning: the output contains NaN or infinity, which JSON cannot express; null was sent instead"
MAX_DEPTH: Final = 200  # levels; JSON readers give up between 100 and 1000
COPY: Final = 2**20  # bytes of one step

_encode: Final = msgspec.json.Encoder().encode
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_PLAIN: Final = _LEAVES | {dict, list}
_KEYS: Final = frozenset({str})
_SEQUENCES: Final = (list, tuple, set, frozenset, deque, range)
_INT64: Final = 2**63


class FileItem(NamedTuple):
    """A file that is an output of its own."""

    path: str  # absolute
    mime_type: str | None = None  # None: by the name


class Composed(NamedTuple):
    """JSON with files inside."""

    data: bytes  # a null at each of their places
    files: list[tuple[int, FileItem]]  # by the offset of that null, in rising order


def is_file(value: object) -> bool:
    """Whether an item with this value touches the disk, so that an event loop should leave it to a thread."""
    return type(value) not in _PLAIN and (
        isinstance(value, (os.PathLike, io.IOBase)) or callable(getattr(value, "read", None))
    )


class OutputEncoder:
    """Converts the outputs of one run.

    Args:
      folder: where files are put that the run makes on the way; made at need.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.not_finite = False  # a NaN or infinity became null: ``NOT_FINITE`` belongs into the logs
        self._folder = folder
        self._made = 0
        self._yielded = False
        self._nested: list[FileItem] = []  # files found inside the item so far
        self._mark = ""  # stands in the JSON for a file, with its number; nobody can guess it

    def item(self, value: Any, index: int | None = None, *, yielded: bool = False) -> bytes | FileItem | Composed:
        """One item.

        Args:
          index: its place in the list of items, for error texts; None if it is the whole output.
          yielded: the code that made it goes on, so a file is copied now.

        Raises:
          TypeError, ValueError: it has no JSON form; the text tells type and place.
          OSError: a file can't be read; the text tells its name.
          Exception: whatever user code that is part of the value raises.
        """
        kind = type(value)
        if (kind is int and -_INT64 <= value < _INT64) or (kind is float and math.isfinite(value)):
            return _encode(value)
        if kind is str or kind is bool or value is None:
            try:
                return _encode(value)
            except UnicodeEncodeError:
                raise _no_form(value, _place(index), "it holds a lone surrogate") from None
        if (kind is dict or kind is list) and _is_plain(value):
            try:
                return _encode(value)
            except (OverflowError, ValueError, RecursionError):
                pass  # a number or a text in there needs care; the table finds it, or says where it stands
        self._yielded = yielded
        if kind is not dict and kind is not list and kind not in _LEAVES:
            file = self._file(value)
            if file is not None:
                return file
        self._nested = []
        data = _encode(self._convert(value, _place(index), 0))
        return self._compose(data) if self._nested else data

    def spill(self, data: bytes) -> str:
        """Write an encoded item that is too large for a frame into the run's folder; gives the absolute path."""
        path = self._new_path("json")
        with open(path, "xb") as file:
            file.write(data)
        return path

    # Files

    def _file(self, value: Any) -> FileItem | None:
        if isinstance(value, (URLPath, Enum)):
            return None  # the URL is the output
        if isinstance(value, os.PathLike):
            path = _absolute(value)
            _check_readable(path)
            return FileItem(self._snapshot(path) if self._yielded else path)
        if not _is_stream(value):
            return None
        name = getattr(value, "name", None)
        path = self._new_path(_extension(name))
        with open(path, "xb") as target:
            for piece in _read(value):
                target.write(piece)
        return FileItem(path)

    def _nest(self, value: Any) -> msgspec.Raw:
        """A mark for a file inside the item."""
        file = self._file(value)
        assert file is not None
        self._mark = self._mark or secrets.token_hex(16)
        self._nested.append(file)
        return msgspec.Raw(b'"%s-%d"' % (self._mark.encode(), len(self._nested) - 1))

    def _compose(self, data: bytes) -> Composed:
        """Nulls for marks; a file whose key was overwritten by one that is spelled alike has none and is dropped."""
        parts: list[bytes] = []
        files = []
        start = size = 0
        for mark in re.finditer(rb'"%s-([0-9]+)"' % self._mark.encode(), data):
            parts += data[start : mark.start()], b"null"
            size += mark.start() - start
            files.append((size, self._nested[int(mark[1])]))
            size += len(b"null")
            start = mark.end()
        return Composed(b"".join((*parts, data[start:])), files)

    def _snapshot(self, path: str) -> str:
        folder = self._new_path(None)
        os.mkdir(folder, 0o700)
        copy = os.path.join(folder, os.path.basename(path))
        _copy(path, copy)
        return copy

    def _new_path(self, extension: str | None) -> str:
        name = f"{self._made}" if extension is None else f"{self._made}.{extension}"
        self._made += 1
        return os.path.join(self._folder.make(), name)

    # JSON

    def _convert(self, value: Any, place: str, depth: int) -> Any:
        """A tree of plain values that the encoder takes, by the first row of the table that fits."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the output is nested deeper than {MAX_DEPTH} levels, or contains itself, at {place}")
        if isinstance(value, Enum):
            return self._convert(value.value, place, depth + 1)
        if value is None or isinstance(value, (str, int, float)):
            return self._leaf(value, place)
        if callable(getattr(value, "get_secret_value", None)) and not isinstance(value, type):
            return "" if value.get_secret_value() is None else MASK
        if isinstance(value, dict):
            return self._dict(value, place, depth)
        if isinstance(value, (datetime.date, datetime.time)):  # a datetime is a date
            return value.isoformat()
        if isinstance(value, decimal.Decimal):
            return self._decimal(value)
        if isinstance(value, uuid.UUID):
            return str(value)
        if isinstance(value, URLPath):
            return str(value)
        if isinstance(value, (os.PathLike, io.IOBase)):
            return self._nest(value)
        if isinstance(value, Iterator):
            return self._iterate(value, place, depth)
        if isinstance(value, _SEQUENCES):
            return [self._convert(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
        return self._object(value, place, depth)

    def _iterate(self, items: Iterator[Any], place: str, depth: int) -> list[Any]:
        """What an iterator inside a value makes: it goes on between two items, so files are copied."""
        before, self._yielded = self._yielded, True
        try:
            return [self._convert(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(items)]
        finally:
            self._yielded = before

    def _object(self, value: Any, place: str, depth: int) -> Any:
        if isinstance(value, type):
            raise _no_form(value, place)
        fields = _as_dict(value)
        if fields is not None:
            return self._convert(fields, place, depth + 1)
        numpy: Any = sys.modules.get("numpy")
        if hasattr(numpy, "ndarray"):  # the model imported it; we never do
            if isinstance(value, numpy.generic):
                return self._convert(value.item(), place, depth + 1)
            if isinstance(value, numpy.ndarray):
                items = value.tolist()
                if value.dtype.kind in "biuf" and type(items) is list and _is_plain(items):
                    return items
                return self._convert(items, place, depth + 1)
        if _is_stream(value):
            return self._nest(value)
        raise _no_form(value, place)

    def _leaf(self, value: Any, place: str) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise _no_form(value, place, "it holds a lone surrogate") from None
            return text
        if isinstance(value, int):
            number = int(value)
            if -_INT64 <= number < _INT64:
                return number
            try:
                return msgspec.Raw(str(number).encode())
            except ValueError:
                raise ValueError(f"the output has an integer of more than 4300 digits at {place}") from None
        real = float(value)
        if math.isfinite(real):
            return real
        self.not_finite = True
        return None

    def _decimal(self, value: decimal.Decimal) -> Any:
        if not value.is_finite():
            self.not_finite = True
            return None
        return msgspec.Raw(str(value).encode())

    def _dict(self, value: dict[Any, Any], place: str, depth: int) -> Any:
        names = [(self._key(key, place), item) for key, item in value.items()]
        return {name: self._convert(item, f"{place}.{name}", depth + 1) for name, item in names}

    def _key(self, key: Any, place: str) -> str:
        """A key as the json module spells it."""
        if isinstance(key, str):
            text: str = self._leaf(key, place)
            return text
        if key is None:
            return "null"
        if key is True or key is False:
            return "true" if key else "false"
        if isinstance(key, int):
            return int.__repr__(key)
        if isinstance(key, float):
            return float.__repr__(key)
        raise TypeError(f"a key of type {_type_name(key)} cannot be turned into JSON, at {place}")


def _is_plain(value: dict[Any, Any] | list[Any], depth: int = 0) -> bool:
    """Whether the encoder alone does what the table says."""
    if type(value) is dict:
        if not _KEYS.issuperset(map(type, value)):
            return False
        items: Any = value.values()
    else:
        items = value
    kinds = set(map(type, items))
    if not kinds <= _PLAIN or depth > MAX_DEPTH:
        return False
    if float in kinds:
        try:
            if not math.isfinite(sum(items if kinds <= {float, int} else (x for x in items if type(x) is float))):
                return False  # or finite numbers whose sum is not: the table looks closer
        except OverflowError:
            return False
    if dict in kinds or list in kinds:
        return all(_is_plain(item, depth + 1) for item in items if type(item) is dict or type(item) is list)
    return True


def _as_dict(value: Any) -> dict[Any, Any] | None:
    """What an object says its content is."""
    for name in ("model_dump", "dict"):
        method = getattr(value, name, None)
        if callable(method):
            fields: dict[Any, Any] = method()
            return fields
    if dataclasses.is_dataclass(value):  # not asdict: it takes the secrets inside apart, and copies what it can't
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _place(index: int | None) -> str:
    return "output" if index is None else f"output[{index}]"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _no_form(value: Any, place: str, why: str | None = None) -> TypeError:
    reason = "" if why is None else f": {why}"
    return TypeError(f"a value of type {_type_name(value)} cannot be turned into JSON, at {place}{reason}")


def _is_stream(value: Any) -> bool:
    return isinstance(value, io.IOBase) or (callable(getattr(value, "read", None)) and not isinstance(value, type))


def _absolute(value: os.PathLike[Any]) -> str:
    return os.path.abspath(os.fsdecode(os.fspath(value)))


def _check_readable(path: str) -> None:
    """Raise ``OSError`` unless a path is a regular file that can be read.

    A pipe is found before it is opened, since one without a writer would hold the run. An ``opener`` for ``open``
    could do both at once, but would lose its descriptor if a cancel is raised when ``os.open`` has returned.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with open(path, "rb"):  # raises for a folder
                return
    except OSError as error:
        raise type(error)(f"output: {path!r} can't be read: {error.strerror}") from None
    raise OSError(f"the output {path!r} is not a regular file")


def _read(stream: Any) -> Iterator[bytes]:
    """The content of a stream from its start, text as UTF-8."""
    seekable = getattr(stream, "seekable", None)
    if not callable(seekable):  # an object that can be read, of a kind that we don't know: all at once
        yield _as_bytes(stream.read())
        return
    if seekable():
        stream.seek(0)
    while piece := stream.read(COPY):
        yield _as_bytes(piece)


def _as_bytes(piece: Any) -> bytes:
    return piece.encode() if isinstance(piece, str) else memoryview(piece).tobytes()


def _extension(name: object) -> str:
    extension = os.path.splitext(name)[1][1:] if isinstance(name, str) else ""
    return extension if extension.isalnum() and len(extension) <= 20 else "bin"


def _copy(path: str, target: str) -> None:
    """Copy a file, in the kernel where that works."""
    with open(path, "rb", buffering=0) as source, open(target, "xb", buffering=0) as copy:
        if _copied_in_kernel(source.fileno(), copy.fileno()):
            return
    shutil.copyfile(path, target)


def _copied_in_kernel(source: int, target: int) -> bool:
    if not hasattr(os, "copy_file_range"):
        return False
    copied = False
    try:
        while os.copy_file_range(source, target, 2**30):
            copied = True
    except OSError:  # other file systems on an older kernel, or one that can't
        return False
    return copied  # nothing: an empty file, or one of a file system that only tells its content to readers
