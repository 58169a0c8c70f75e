"""`cog.files` of older releases: output files as data URLs or uploads. Our runtime sends outputs by itself."""

from __future__ import annotations

import base64
import io
import mimetypes
import os
from typing import Any
from urllib.parse import urljoin, urlsplit


def upload_file(fh: Any, output_file_prefix: str | None = None) -> str:
    """A file object as a data URL; with a prefix that is a URL, uploaded there, and its URL."""
    if output_file_prefix is not None:
        return put_file_to_signed_endpoint(fh, output_file_prefix)
    content = fh.read()
    data = content.encode() if isinstance(content, str) else bytes(content)
    mime = mimetypes.guess_type(guess_filename(fh))[0] or "application/octet-stream"
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def put_file_to_signed_endpoint(fh: Any, endpoint: str, prediction_id: str | None = None, client: Any = None) -> str:
    """PUT a file below a URL; its URL without the query, which holds signatures.

    Raises:
      httpx.HTTPError: if it can't be sent.
    """
    import httpx

    name = guess_filename(fh)
    mime = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"Content-Type": mime}
    if prediction_id is not None:
        headers["X-Prediction-ID"] = prediction_id
    if fh.seekable():
        fh.seek(0, io.SEEK_SET)
    url = ensure_trailing_slash(endpoint) + name
    put = httpx.put if client is None else client.put
    response = put(url, content=fh.read(), headers=headers)
    response.raise_for_status()
    final = str(response.headers.get("location", url))
    return urljoin(url, urlsplit(final)._replace(query="").geturl())


def guess_filename(obj: Any) -> str:
    """The base name of a file object, ``file`` if it has none."""
    name = getattr(obj, "name", "file")
    return os.path.basename(name) if isinstance(name, str) else "file"


def ensure_trailing_slash(url: str) -> str:
    """A URL as the folder that other URLs are below."""
    return url if url.endswith("/") else url + "/"
