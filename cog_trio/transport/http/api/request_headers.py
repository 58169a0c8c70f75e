"""What the request headers ask for: Prefer (RFC 7240), Accept (RFC 9110), Content-Type, trace context (W3C).

Pure functions over header values; lines of one name come joined by commas. Clients repeat themselves, so the
answers for short values are remembered. Long values are not, since anybody can send them and they would be kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache, wraps
from typing import Final, NamedTuple, TypeVar

_SPLIT: Final = {mark: re.compile(rf'((?:[^{mark}"]|"(?:[^"\\]|\\.)*"?)*){mark}?') for mark in ",;"}
_TOKEN: Final = r"[!#$%&'*+.^`|~\w-]+"
_JSON: Final = re.compile(
    rf'application/(?:json|{_TOKEN}\+json)[ \t]*(?:;[ \t]*(?:{_TOKEN}=(?:{_TOKEN}|"(?:[^"\\]|\\.)*")[ \t]*)?)*',
    re.IGNORECASE | re.ASCII,
)
_TRACE: Final = (b"traceparent", b"tracestate")
_VISIBLE: Final = re.compile(rb"[!-~](?:[\t -~]*[!-~])?")
MAX_REMEMBERED: Final = 256  # bytes of a value whose answer is remembered; values that are in use are shorter
_MAX_WAIT: Final = 10**6  # seconds; a larger wish is the same as this one


T = TypeVar("T")


def remembered(function: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Decorate a pure function of a header value: its last 256 answers for short values are kept."""
    cached = lru_cache(256)(function)

    @wraps(function)
    def answer(value: bytes) -> T:
        return cached(value) if len(value) <= MAX_REMEMBERED else function(value)

    return answer


class Preference(NamedTuple):
    """What ``Prefer`` says to us."""

    respond_async: bool = False
    wait: int | None = None  # seconds


class _ListItem(NamedTuple):
    name: str
    parameters: dict[str, str]  # by lower-case name, the first of each


def _split(text: str, mark: str) -> list[str]:
    if '"' not in text:
        return text.split(mark)
    return _SPLIT[mark].findall(text)


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def _items(value: bytes) -> list[_ListItem]:
    items = []
    for element in _split(value.decode("latin-1"), ","):
        name, *rest = _split(element, ";")
        parameters: dict[str, str] = {}
        for parameter in rest:
            key, _, text = parameter.partition("=")
            parameters.setdefault(key.strip().lower(), _unquote(text.strip()))
        if name.strip():
            items.append(_ListItem(name.strip(), parameters))
    return items


@remembered
def preference(value: bytes) -> Preference:
    """The first of each preference counts (RFC 7240 section 2)."""
    seen: dict[str, str] = {}
    for item in _items(value):
        name, _, text = item.name.partition("=")
        seen.setdefault(name.strip().lower(), _unquote(text.strip()))
    wait = seen.get("wait", "")
    seconds = min(int(wait[:20]), _MAX_WAIT) if wait.isascii() and wait.isdigit() else None
    return Preference("respond-async" in seen, seconds)


def wants_page(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks, which wants to show a page: its ``Accept`` names HTML."""
    return b"text/html" in headers.get(b"accept", b"").lower()


@remembered
def wants_stream(value: bytes) -> bool:
    """Whether an event stream is named, and nothing that we have is liked better. Wildcards name none."""
    stream, json = 0.0, [0.0, 0.0, 0.0]  # of application/json: by its name, by application/*, by */*
    for item in _items(value):
        name = item.name.lower()
        quality = _quality(item.parameters.get("q", "1"))
        if name == "text/event-stream":
            stream = max(stream, quality)
        elif name in ("application/json", "application/*", "*/*"):
            place = ("application/json", "application/*", "*/*").index(name)
            json[place] = max(json[place], quality)
    return stream > 0 and stream >= next(filter(None, json), 0.0)


def _quality(text: str) -> float:
    return min(float(text), 1.0) if re.fullmatch(r"[0-9]{0,3}\.?[0-9]{0,9}", text) and text.strip(".") else 1.0


@remembered
def is_json(value: bytes) -> bool:
    """Whether a Content-Type is JSON: ``application/json`` or ``application/*+json``, whatever its parameters."""
    return _JSON.fullmatch(value.decode("latin-1").strip()) is not None


def trace(headers: Mapping[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of the trace that a request belongs to, as they came; what no header of ours could carry is left."""
    found = ((name, headers.get(name, b"")) for name in _TRACE)
    return tuple((name, value) for name, value in found if _VISIBLE.fullmatch(value))


class RequestHeaders(dict[bytes, bytes]):
    """Headers by name, lines of one name joined, and what they ask for; each answer is found once. It is not changed.

    Args:
      lines: names in lower case.
    """

    def __init__(self, lines: Iterable[tuple[bytes, bytes]] = ()) -> None:
        for name, value in lines:
            self[name] = value if name not in self else self[name] + b", " + value

    @cached_property
    def wants_stream(self) -> bool:
        return wants_stream(self.get(b"accept", b""))

    @cached_property
    def preference(self) -> Preference:
        return preference(self.get(b"prefer", b""))

    @cached_property
    def is_encoded(self) -> bool:
        """The body is compressed, or the like."""
        return self.get(b"content-encoding", b"identity").lower() != b"identity"

    @cached_property
    def is_other_type(self) -> bool:
        """The body is said to be something else than JSON."""
        kind = self.get(b"content-type")
        return kind is not None and not is_json(kind)

    @cached_property
    def trace(self) -> tuple[tuple[bytes, bytes], ...]:
        return trace(self)
