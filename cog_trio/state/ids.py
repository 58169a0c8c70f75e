"""Which ids and addresses are taken from whoever creates a prediction."""

from __future__ import annotations

import unicodedata
from typing import Final
from urllib.parse import urlsplit

MAX_ID: Final = 256  # bytes in UTF-8
BAD_ID: Final = f"must be 1 to {MAX_ID} bytes without control characters"
MAX_URL: Final = 8 * 2**10  # bytes in UTF-8: it is kept as long as the prediction
BAD_WEBHOOK: Final = f"must be an absolute http or https URL of at most {MAX_URL} bytes"


def is_id(text: str) -> bool:
    """Whether it can be an id: any text of 1 to 256 bytes without control characters."""
    if text.isascii():
        return 0 < len(text) <= MAX_ID and text.isprintable()
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return size <= MAX_ID and not any(unicodedata.category(char) == "Cc" for char in text)


def is_url(text: str) -> bool:
    """Whether it is an absolute http or https URL with a host, and not too long."""
    if len(text) > MAX_URL or len(text.encode(errors="replace")) > MAX_URL:
        return False
    if any(char <= " " or char == "\x7f" for char in text):
        return False
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
