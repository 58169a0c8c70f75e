"""The rules of webhooks, as functions of what is known: no I/O, no clock of their own, no chance.

``Progress`` decides when a receiver hears of what a prediction puts out and prints: the first output at once, from
then on at most one update an interval, whatever there is by then. Serialising comes after that decision, so the
traffic of one prediction grows with its time and its size, never with the number of its chunks.

The rest is what one request needs: its headers and its signature (Standard Webhooks), where a redirect leads and
whether the token may go along, which answers are worth another try, and how long to wait before it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final, TypeAlias
from urllib.parse import urljoin, urlsplit

from cog_trio.state.snapshot import WebhookEvent

Headers: TypeAlias = "tuple[tuple[bytes, bytes], ...]"

RETRIES: Final = 12
FIRST_BACKOFF: Final = 0.2  # seconds, doubled each time
LARGEST_BACKOFF: Final = 102.4  # seconds
JITTER: Final = 0.2  # of a wait, on top of it
RETRIED: Final = frozenset({429, 500, 502, 503, 504})
OBEYED: Final = frozenset({429, 503})  # statuses whose Retry-After counts
FOLLOWED: Final = frozenset({307, 308})  # redirects that keep method and body
MAX_REDIRECTS: Final = 10
PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
SECRET_PREFIX: Final = "whsec_"


class Progress:
    """When the next update of one prediction is due. Times are seconds on the clock of the caller."""

    def __init__(self, events: frozenset[WebhookEvent], interval: float) -> None:
        self._output = WebhookEvent.OUTPUT in events
        self._logs = WebhookEvent.LOGS in events
        self._interval = interval
        self.news = False  # there is something to tell
        self._first = False  # an output is among the news, and none was ever told
        self._told_output = False
        self._last = -math.inf  # the start of the last update

    def note(self, *, output: bool = False, logs: bool = False) -> None:
        """Something has come; what the receiver did not ask for is nothing new."""
        if output and self._output:
            self.news = True
            self._first = not self._told_output
        if logs and self._logs:
            self.news = True

    @property
    def due(self) -> float:
        """From when on an update is to be sent; infinity: there is nothing to tell."""
        if not self.news:
            return math.inf
        return -math.inf if self._first else self._last + self._interval

    @property
    def fixed(self) -> bool:
        """No output and no log text can make the next update due any sooner."""
        return self.news and (self._first or self._told_output or not self._output)

    def told(self, now: float) -> None:
        """An update with all there is begins now."""
        self._told_output = self._told_output or self._first
        self.news = self._first = False
        self._last = now


def backoff(retry: int, chance: float) -> float:
    """Seconds to wait before a retry, counted from 1. ``chance`` is from 0 to 1."""
    return min(FIRST_BACKOFF * 2.0 ** (retry - 1), LARGEST_BACKOFF) * (1 + JITTER * chance)


def retry_after(text: str | None, now: datetime) -> float:
    """Seconds that a Retry-After asks for: at most the largest back-off, 0 if it says nothing that can be read."""
    if text is None:
        return 0.0
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LARGEST_BACKOFF)
    from email.utils import parsedate_to_datetime  # costs time at start

    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        seconds = (date - now).total_seconds()
    except (ValueError, OverflowError):  # a receiver may write any number into any field
        return 0.0
    return min(max(seconds, 0.0), LARGEST_BACKOFF)


def wait_before(retry: int, status: int | None, asked: str | None, *, chance: float, now: datetime) -> float:
    """Seconds until a retry, counted from 1, after an answer; ``status`` None: there was none."""
    wait = backoff(retry, chance)
    return max(wait, retry_after(asked, now)) if status in OBEYED else wait


def is_retried(status: int | None) -> bool:
    """Whether the last webhook is tried again after this status; None: a transport error."""
    return status is None or status in RETRIED


def redirect(url: str, location: str | None) -> str | None:
    """Where a redirect leads; None if that is not a place for a webhook."""
    if location is None:
        return None
    try:
        target = urljoin(url, location.strip())
        parts = urlsplit(target)
        usable = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return target if usable else None


def may_have_token(url: str, origin: str) -> bool:
    """Whether a token meant for ``origin`` may go to ``url``: the same host and port, and never from https to http."""
    if _place(url) == _place(origin):
        return True
    upgraded = ("http", 80), ("https", 443)
    (scheme, host, port), (to_scheme, to_host, to_port) = _place(origin), _place(url)
    return host == to_host and ((scheme, port), (to_scheme, to_port)) == upgraded


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)


def place(url: str) -> str:
    """A URL as logs may show it: no path, query or password, where secrets are kept."""
    scheme, host, port = _place(url)
    shown = f"[{host}]" if host and ":" in host else host
    return f"{scheme}://{shown}" + ("" if port == PORTS.get(scheme) else f":{port}")


def signing_key(secret: str) -> bytes:
    """The key in a secret, which is base64 with or without ``whsec_`` in front.

    Raises:
      ValueError: if it is not.
    """
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    if not key:
        raise ValueError("the signing secret is empty")
    return key


def sign(key: bytes, id: str, timestamp: int, body: bytes) -> Headers:
    """The three headers of Standard Webhooks."""
    import hashlib  # these two load OpenSSL
    import hmac

    digest = hmac.new(key, f"{id}.{timestamp}.".encode(), hashlib.sha256)
    digest.update(body)
    return (
        (b"webhook-id", id.encode()),
        (b"webhook-timestamp", b"%d" % timestamp),
        (b"webhook-signature", b"v1," + base64.b64encode(digest.digest())),
    )


def bearer(token: str | None) -> Headers:
    """The authorization header; an empty token is sent as Cog does, without the blank that no header may end in."""
    return () if token is None else ((b"authorization", f"Bearer {token}".strip().encode("ascii")),)
