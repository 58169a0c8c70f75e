"""MIME types of models' files that Python's own table lacks on some version or system.

Registered when `cog.types` is imported, so that a ``data:`` URL of such a type gets its file name extension and an
output file its type. Older releases of Cog offered the function to models.
"""

from __future__ import annotations

import mimetypes
from typing import Final, Protocol

ALIASES: Final = {  # names of types that clients write and no table has
    "image/jpg": ".jpg",
    "image/pjpeg": ".jpg",
    "image/x-png": ".png",
    "image/x-ms-bmp": ".bmp",
    "image/x-tiff": ".tiff",
    "audio/mp3": ".mp3",
    "audio/x-mp3": ".mp3",
    "audio/wave": ".wav",
    "audio/vnd.wave": ".wav",
    "audio/m4a": ".m4a",
    "audio/x-flac": ".flac",
    "audio/x-aiff": ".aiff",
    "video/x-mp4": ".mp4",
    "video/mov": ".mov",
    "video/avi": ".avi",
    "application/x-zip-compressed": ".zip",
    "application/x-zip": ".zip",
    "application/gzip": ".gz",
    "application/x-pdf": ".pdf",
    "application/yaml": ".yaml",
    "application/x-yaml": ".yaml",
    "text/yaml": ".yaml",
    "text/x-python": ".py",
    "text/json": ".json",
    "text/xml": ".xml",
    "text/markdown": ".md",
}
EXTENSIONS: Final = (
    ("image/webp", ".webp"),
    ("audio/x-wav", ".wav"),
    ("audio/wav", ".wav"),
    ("audio/flac", ".flac"),
    ("audio/x-m4a", ".m4a"),
    ("audio/mp4", ".m4a"),
    ("audio/ogg", ".ogg"),
    ("audio/opus", ".opus"),
    ("video/webm", ".webm"),
    ("video/x-matroska", ".mkv"),
    ("model/gltf-binary", ".glb"),
    ("application/x-safetensors", ".safetensors"),
    ("application/x-gguf", ".gguf"),
    ("application/vnd.apache.parquet", ".parquet"),
    ("application/jsonl", ".jsonl"),
)


class Registry(Protocol):
    def add_type(self, type: str, ext: str, strict: bool = True) -> None: ...


def install_mime_extensions(registry: Registry = mimetypes) -> None:
    """Add the types to ``registry``: the `mimetypes` module or a `mimetypes.MimeTypes`."""
    for mime_type, extension in EXTENSIONS:
        registry.add_type(mime_type, extension)
