"""From the JSON of a request to what ``run`` gets, by the model's parameters.

Two steps, because files come between them: ``sources`` lists the URLs that must be local files before the call,
in the I/O thread; ``coerce`` makes the values, on the thread that calls the model, from the JSON and the files.
Which inputs are files is told by the parameter alone, never by the look of a text. The parent has checked the
values; what only fails here (bad base64, an integer beyond all floats) is an ``InputError`` that names the input.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from cog_trio.bridge.protocol import Json
from cog_trio.net.urls import shown_url
from cog_trio.sdk._parameters import MISSING, Parameter
from cog_trio.sdk._urls import decode_data_url, url_scheme
from cog_trio.sdk.types import Path, Secret, URLFile

URL_SCHEMES: Final = ("data", "http", "https")


@dataclass(frozen=True)
class FileSource:
    """One URL that must be a local file before the call."""

    field: str
    index: int | None  # in a list of files
    url: str


Files: TypeAlias = "Mapping[tuple[str, int | None], str]"
"""Local paths of sources, by field and index: the same URL given twice is two files."""


class InputError(Exception):
    """An input can't be used; the prediction fails with this text, ``run`` is not called."""

    def __init__(self, field: str, why: str, *, index: int | None = None, url: str | None = None) -> None:
        place = field if index is None else f"{field}[{index}]"
        shown = "" if url is None else f" ({shown_url(url)})"
        super().__init__(f"Input validation error: {place}: {why}{shown}")


def sources(parameters: Iterable[Parameter], given: Mapping[str, Json]) -> list[FileSource]:
    """The files to get for one run: URLs among the given values, and among the defaults of those left out."""
    found = []
    for parameter in parameters:
        if parameter.kind == "path":
            value = given.get(parameter.name, parameter.default)
            items = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
            found += [FileSource(parameter.name, index, item) for index, item in items if _is_url(item)]
    return found


def coerce(parameters: Iterable[Parameter], given: Mapping[str, Json], files: Files) -> dict[str, Any]:
    """What ``run`` gets for the given inputs, and for left-out ones whose default had to be downloaded.

    Other defaults are the caller's to fill in. Names that are not parameters pass as they are (``**kwargs``).

    Raises:
      InputError: if a value has no form that the parameter takes.
    """
    values = dict(given)
    for parameter in parameters:
        name = parameter.name
        if name in given:
            values[name] = coerce_value(parameter, given[name], files)
        elif parameter.kind == "path" and parameter.default is not MISSING and _has_file(name, files):
            values[name] = coerce_value(parameter, parameter.default, files)
    return values


def coerce_value(parameter: Parameter, value: Any, files: Files) -> Any:
    """One parameter's value, made from JSON or from a default as its author wrote it."""
    if value is None or (parameter.kind in _AS_IS and parameter.enum is None):
        return value
    if parameter.many and isinstance(value, (list, tuple)):
        return [_element(parameter, item, files, index) for index, item in enumerate(value)]
    return _element(parameter, value, files, None)


_AS_IS: Final = frozenset({"str", "bool", "dict", "any", "union"})


def _element(parameter: Parameter, value: Any, files: Files, index: int | None) -> Any:
    kind = parameter.kind
    if isinstance(value, str):
        if kind == "path":
            local = files.get((parameter.name, index))
            return Path(value if local is None else local)
        if kind == "file":
            return _open(parameter.name, value, index)
        if kind == "secret":
            return Secret(value)
    elif kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)
    elif kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise InputError(parameter.name, "the number is beyond the range of float", index=index) from None
    if parameter.enum is not None and not isinstance(value, parameter.enum):
        try:
            return parameter.enum(value)
        except ValueError:
            text = f"not one of the values of {parameter.enum.__name__}"
            raise InputError(parameter.name, text, index=index) from None
    return value


def _open(field: str, url: str, index: int | None) -> io.IOBase:
    scheme = url_scheme(url)
    if scheme not in URL_SCHEMES:
        raise InputError(field, "not a URL with the scheme http, https or data", index=index, url=url)
    if scheme != "data":
        return URLFile(url)
    try:
        return io.BytesIO(decode_data_url(url))
    except ValueError as error:
        raise InputError(field, str(error), index=index, url=url) from None


def _is_url(value: object) -> bool:
    return isinstance(value, str) and url_scheme(value) in URL_SCHEMES


def _has_file(name: str, files: Files) -> bool:
    return any(field == name for field, _ in files)
