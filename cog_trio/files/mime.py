"""From the extension of a file's name to its media type and back, by the name alone: the same on every system."""

from __future__ import annotations

import mimetypes
import os
from typing import Final

UNKNOWN: Final = "application/octet-stream"
ENCODINGS: Final = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
TYPES: Final = {
    ".avif": "image/avif",
    ".flac": "audio/flac",
    ".gguf": "application/x-gguf",
    ".glb": "model/gltf-binary",
    ".jpg": "image/jpeg",
    ".jsonl": "application/jsonl",
    ".m4a": "audio/mp4",
    ".md": "text/markdown",
    ".mkv": "video/x-matroska",
    ".ogg": "audio/ogg",
    ".opus": "audio/opus",
    ".parquet": "application/vnd.apache.parquet",
    ".safetensors": "application/x-safetensors",
    ".webm": "video/webm",
    ".webp": "image/webp",
}


ALSO: Final = {  # other names of media types
    "audio/wav": ".wav",
    "audio/wave": ".wav",
    "application/x-zip-compressed": ".zip",
    "text/xml": ".xml",
    "text/yaml": ".yaml",
    "application/yaml": ".yaml",
}


def guess_mime(path: str) -> str:
    """The media type that a file's name says; ``application/octet-stream`` when it says nothing."""
    extension = os.path.splitext(path)[1].lower()
    if (known := TYPES.get(extension)) is not None:
        return known
    guessed, encoding = mimetypes.guess_type(f"x{extension}", strict=False)  # a whole name could look like a URL
    if encoding is not None:
        return ENCODINGS.get(encoding, UNKNOWN)
    return guessed or UNKNOWN


def guess_extension(mime: str) -> str:
    """The extension of files of a media type, with its dot; nothing when none is known."""
    mime = mime.lower().strip()
    if mime == UNKNOWN:
        return ""
    known = {**ALSO, **{kind: extension for extension, kind in TYPES.items()}}.get(mime)
    return known or mimetypes.guess_extension(mime, strict=False) or ""
