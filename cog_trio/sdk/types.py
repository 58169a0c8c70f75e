"""The types that model signatures name: files, secrets, and the iterators that say "put the pieces together".

A `Path` input has been downloaded when `run` gets it; a `URLPath` is the same input before that, and a `File` or
`URLFile` is one that the model reads itself. The classes answer to the module name `cog.types`, under which models
and their pickles know them. Pydantic is optional: its hooks import it only when pydantic calls them.
"""

from __future__ import annotations

import io
import pathlib
import sys
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, AsyncIterator, Iterator, TypeVar, Union, cast  # noqa: UP035 - models see typing's

from cog_trio.net.urls import shown_url

from ._legacy_types import LEGACY, legacy
from ._urls import (
    FILENAME_ILLEGAL_CHARS,
    FILENAME_MAX_LENGTH,
    URLFile,
    decode_data_url,
    get_filename,
    url_scheme,
)

__all__ = [
    "FILENAME_ILLEGAL_CHARS",
    "FILENAME_MAX_LENGTH",
    "AsyncConcatenateIterator",
    "ConcatenateIterator",
    "File",
    "Item",
    "Path",
    "Secret",
    "URLFile",
    "URLPath",
    "Weights",
    "get_filename",
]

Item = TypeVar("Item")
MASK = "**********"


class File(io.IOBase):
    """Deprecated in favour of `Path`: a readable file object. ``File(obj)`` gives ``obj`` back if it can be read."""

    def __new__(cls, obj: Any = None) -> Any:
        if obj is None or isinstance(obj, cls):
            return obj if obj is not None else super().__new__(cls)
        if hasattr(obj, "read"):
            return obj
        raise TypeError(f"File(...) takes an object with a read method, got {type(obj).__name__}")

    def __init__(self, obj: Any = None) -> None:
        super().__init__()

    @classmethod
    def validate(cls, value: Any) -> io.IOBase:
        """A file object for an open file or a ``data:``, ``http:`` or ``https:`` URL.

        Raises:
          ValueError: for any other value.
        """
        if isinstance(value, io.IOBase):
            return value
        if isinstance(value, str):
            scheme = url_scheme(value)
            if scheme == "data":
                return io.BytesIO(decode_data_url(value))
            if scheme in ("http", "https"):
                return URLFile(value)
            raise ValueError(f"File must be a data:, http: or https: URL, got scheme {scheme[:50]!r}")
        raise ValueError(f"File must be a URL or a file object, got {type(value).__name__}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _pydantic_schema(cls.validate, as_text=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "format": "uri"}


class Path(pathlib.PosixPath):
    """A path to a local file. As an input it has been fetched already; as an output its content is sent."""

    @classmethod
    def validate(cls, value: Any) -> pathlib.Path:
        """A path object as it is, a URL as `URLPath`, any other string as a `Path`.

        Raises:
          ValueError: for any other type.
        """
        if isinstance(value, pathlib.Path):
            return value
        if isinstance(value, str):
            if url_scheme(value) in ("data", "http", "https"):
                return URLPath(source=value, filename=get_filename(value), fileobj=File.validate(value))
            return cls(value)
        raise ValueError(f"Path must be a string or a path, got {type(value).__name__}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _pydantic_schema(cls.validate, as_text=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "format": "uri"}


class URLPath(Path):
    """A path input that is still a URL; `convert` makes it a local file."""

    source: str
    filename: str
    fileobj: Any
    _path: Path | None

    def __new__(cls, *, source: str, filename: str, fileobj: Any) -> URLPath:
        if sys.version_info >= (3, 12):
            return super().__new__(cls)
        return super().__new__(cls, filename)

    def __init__(self, *, source: str, filename: str, fileobj: Any) -> None:
        if sys.version_info >= (3, 12):
            super().__init__(filename)
        self.source = source
        self.filename = filename
        self.fileobj = fileobj
        self._path = None

    def convert(self) -> Path:
        """Copy the file object into a temporary file, once; its name ends with `filename`."""
        if self._path is None:
            import shutil
            import tempfile

            with tempfile.NamedTemporaryFile(suffix=self.filename, delete=False) as target:
                path = Path(target.name)
                try:
                    shutil.copyfileobj(self.fileobj, target)
                except BaseException:
                    path.unlink()
                    raise
            self._path = path
        return self._path

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file that `convert` made, if it has.

        Raises:
          FileNotFoundError: if it is gone already, unless ``missing_ok``.
        """
        if self._path is not None:
            self._path.unlink(missing_ok=missing_ok)

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"URLPath({shown_url(self.source)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_url_path, (self.source, self.filename, self.fileobj))

    # What is derived from it (a parent, a sibling) is not a URL any more.
    if sys.version_info >= (3, 12):

        def with_segments(self, *segments: Any) -> Path:  # type: ignore[override]
            return Path(*segments)

    else:

        @classmethod
        def _from_parsed_parts(cls, drv: str, root: str, parts: list[str]) -> Path:
            return cast("Any", Path)._from_parsed_parts(drv, root, parts)  # type: ignore[no-any-return]


def _url_path(source: str, filename: str, fileobj: Any) -> URLPath:
    return URLPath(source=source, filename=filename, fileobj=fileobj)


@dataclass(frozen=True, repr=False)
class Secret:
    """A value that is never shown: every way to print it gives asterisks."""

    secret_value: str | None = None

    def get_secret_value(self) -> str | None:
        return self.secret_value

    def __str__(self) -> str:
        return "" if self.secret_value is None else MASK

    def __repr__(self) -> str:
        return f"Secret({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __len__(self) -> int:
        return len(self.secret_value or "")

    def __bool__(self) -> bool:
        return True  # as in Cog, where a Secret has no length; without this, len() would make "" false

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        def validate(value: Any) -> Secret:
            if isinstance(value, cls):
                return value
            if value is None or isinstance(value, str):
                return cls(value)
            raise ValueError("Secret must be a string")

        return _pydantic_schema(validate, as_text=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}


def _pydantic_schema(validate: Any, *, as_text: bool) -> Any:
    """The hook of a type: values pass as they are, also out of ``model_dump()``; in JSON they are ``str(value)``.

    Without a serializer, and with most of those there are, pydantic would show a `Secret` as any other dataclass.
    """
    from pydantic_core import core_schema

    serialization = core_schema.to_string_ser_schema(when_used="json") if as_text else None
    return core_schema.no_info_plain_validator_function(validate, serialization=serialization)


class ConcatenateIterator(Iterator[Item]):
    """Annotation of a ``run`` whose pieces are one text when put together."""

    @abstractmethod
    def __next__(self) -> Item: ...


class AsyncConcatenateIterator(AsyncIterator[Item]):
    """The same for an ``async def run``."""

    @abstractmethod
    async def __anext__(self) -> Item: ...


Weights = Union[File, Path, str]  # noqa: UP007 - older models take it apart as a typing.Union

for _public in (File, Path, URLPath, URLFile, Secret, ConcatenateIterator, AsyncConcatenateIterator):
    _public.__module__ = "cog.types"


def __getattr__(name: str) -> Any:
    if name in LEGACY:
        return legacy(name)
    raise AttributeError(f"module 'cog.types' has no attribute {name!r}")
