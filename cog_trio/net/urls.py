"""URLs as they may be shown, and as they are published: without what only its owner should see."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit, urlunsplit

MAX_SHOWN: Final = 200  # characters


def shown_url(url: str) -> str:
    """For errors and logs: without user, password and query (signatures stand there), without data, not too long."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme.lower() == "data":
        shown = f"{scheme.lower()}:{rest.partition(',')[0]},..."
    else:
        try:
            parts = urlsplit(url)
        except ValueError:  # e.g. a bracket left open
            return f"{scheme.lower() if colon else ''}:..."
        host = parts.netloc.rpartition("@")[2]
        shown = f"{parts.scheme}://{host}{parts.path}" + ("?..." if parts.query else "")
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."


def public_url(url: str) -> str:
    """Without user, password and query.

    Raises:
      ValueError: if it can't be taken apart.
    """
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
