"""The files of an output: where the model's document says that there are some, and what becomes of their URLs."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from cog_trio.files.mime import guess_extension

URL: Final = re.compile(r"(?:https?|data):", re.IGNORECASE)
UNFIT: Final = re.compile(r'[\0-\x1f/\\:*?"<>|]')  # what some system takes in no file name
LONGEST: Final = 100  # characters of a file name


def file_places(document: Mapping[str, Any], component: str, output: Any) -> Iterator[str]:
    """The URLs in an output that stand where the document says that there is a file."""
    try:
        form = document["components"]["schemas"][component]
    except (LookupError, TypeError):
        return iter(())
    return _urls(form, output)


def _urls(form: Any, value: Any) -> Iterator[str]:
    if not isinstance(form, dict):
        return
    if isinstance(value, str):
        if form.get("format") == "uri" and URL.match(value):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _urls(form.get("items"), item)
    elif isinstance(value, dict):
        properties = form.get("properties", {})
        for name, member in value.items():
            yield from _urls(properties.get(name, form.get("additionalProperties")), member)


def replace_files(output: Any, saved: Mapping[str, Path]) -> Any:
    """An output with paths in place of the URLs that were saved."""
    if isinstance(output, str):
        return saved.get(output, output)
    if isinstance(output, list):
        return [replace_files(item, saved) for item in output]
    if isinstance(output, dict):
        return {name: replace_files(member, saved) for name, member in output.items()}
    return output


def file_name(url: str, number: int) -> str:
    """A name for the file at a URL: its own, or one by its type; with its number, so that no two are the same."""
    if url[:5].lower() == "data:":
        name = f"output{guess_extension(url[5:].partition(',')[0].partition(';')[0] or 'text/plain')}"
    else:
        name = UNFIT.sub("_", unquote(os.path.basename(urlsplit(url).path)))[-LONGEST:].lstrip(".") or "output"
    stem, suffix = os.path.splitext(name)
    return f"{stem}-{number}{suffix}" if number else name


def decode_data_url(url: str) -> bytes:
    """Raises:
    ValueError: it is not one.
    """
    head, comma, content = url[5:].partition(",")
    if not comma:
        raise ValueError("a data URL has a comma")
    if head.lower().endswith(";base64"):
        return base64.b64decode(content)
    return unquote_to_bytes(content)
