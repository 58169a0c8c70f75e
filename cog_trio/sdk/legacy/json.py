"""`cog.json` of older releases: model outputs as JSON data. Our runtime turns outputs into JSON by itself."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Mapping
from datetime import date, datetime
from enum import Enum
from types import GeneratorType
from typing import Any

from cog_trio.sdk.types import Secret


def make_encodeable(obj: Any) -> Any:
    """The JSON data of an output; files stay what they are, for `upload_files`."""
    if isinstance(obj, Enum):
        return obj.value
    if isinstance(obj, Secret):
        return str(obj)
    dump = getattr(obj, "model_dump", None) or (None if isinstance(obj, Mapping) else getattr(obj, "dict", None))
    if callable(dump) and not isinstance(obj, type):
        return make_encodeable(dump())
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: make_encodeable(getattr(obj, field.name)) for field in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return {key: make_encodeable(value) for key, value in obj.items()}
    if isinstance(obj, (list, set, frozenset, tuple, GeneratorType)):
        return [make_encodeable(value) for value in obj]
    if isinstance(obj, (date, datetime)):
        return obj.isoformat()
    if hasattr(obj, "tolist") and hasattr(obj, "dtype"):  # numpy, which need not be installed
        return obj.tolist()
    return obj


def upload_files(obj: Any, upload_file: Callable[[io.IOBase], str]) -> Any:
    """The same data with each file replaced by what ``upload_file`` makes of it."""
    if isinstance(obj, Mapping):
        return {key: upload_files(value, upload_file) for key, value in obj.items()}
    if isinstance(obj, list):
        return [upload_files(value, upload_file) for value in obj]
    if isinstance(obj, os.PathLike):
        with open(obj, "rb") as file:
            return upload_file(file)
    if isinstance(obj, io.IOBase):
        return upload_file(obj)
    return obj
