"""Requests and replies as they stand on the wire: Structs, the faults of a body, every JSON body that we send.

A body is refused in two ways: as no JSON (400) or as JSON of another shape (422). A small body is decoded whole
for the first question; of a large one only the envelope is, and what can be told without decoding it: its content
is decoded once, by whoever validates it. The shape is decoded straight into ``Create``; only when that fails are
the fields looked at one by one, to name every fault and its place. The prefixes of the texts are the reference's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from cog_trio.jsonvalue import decode_json
from cog_trio.prediction import ALL_EVENTS, WebhookEvent

Fault: TypeAlias = "Mapping[str, Any]"

SMALL: Final = 64 * 2**10  # bytes; decoding that costs less than a millisecond
MAX_DEPTH: Final = 127  # levels of nesting; one more is refused
MAX_ID: Final = 256  # bytes in UTF-8 (D9)

NOT_JSON: Final = "Failed to parse the request body as JSON: "
WRONG_SHAPE: Final = "Failed to deserialize the JSON body into the target type: "
TOO_LARGE: Final = "Failed to buffer the request body: length limit exceeded"
WRONG_TYPE: Final = "Expected request with `Content-Type: application/json`"
BAD_ID: Final = f"must be 1 to {MAX_ID} bytes without control characters"
BAD_WEBHOOK: Final = "must be an absolute http or https URL"
NOT_UTF8: Final = "Invalid URL: Invalid UTF-8 in `id`"

_NAMES: Final = {dict: "map", list: "sequence", str: "string", int: "integer", float: "floating point"}
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_EVENTS: Final = {event.value for event in WebhookEvent}

encode: Final = msgspec.json.Encoder().encode


class Create(msgspec.Struct):
    """The body of a create. Unknown members are ignored, of a repeated one the last counts."""

    id: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")
    context: dict[str, str] = {}
    webhook: str | None = None
    webhook_events_filter: list[WebhookEvent] | msgspec.UnsetType = msgspec.UNSET

    @property
    def input_json(self) -> bytes | memoryview:
        """The input as it came; null is none. A large one is a view of the body, which is then hardly more than it."""
        view = memoryview(self.input)
        if len(view) > SMALL:
            return view
        raw = bytes(view)
        return b"{}" if raw == b"null" else raw

    @property
    def events(self) -> frozenset[WebhookEvent]:
        chosen = self.webhook_events_filter
        return ALL_EVENTS if chosen is msgspec.UNSET else frozenset(chosen)


class BadBody(Exception):
    """The body is refused with ``status`` and ``faults``."""

    def __init__(self, status: int, faults: list[Fault]) -> None:
        super().__init__(f"{status}: {faults[0]['msg']}")
        self.status = status
        self.faults = faults


_decode: Final = msgspec.json.Decoder(Create).decode


def fault(loc: Iterable[str | int], text: str, kind: str = "value_error") -> Fault:
    return {"loc": [*loc], "msg": text, "type": kind}


def detail(faults: Iterable[Fault]) -> bytes:
    return encode({"detail": list(faults)})


def failed(text: str, id: str | None = None) -> dict[str, Any]:
    """A refusal in the form of a failed prediction; ``id`` when the client gave one."""
    body = {"error": text, "status": "failed"}
    return body if id is None else {**body, "id": id}


def accepted(id: str) -> bytes:
    return encode({"id": id, "status": "starting"})


def not_json(text: str) -> BadBody:
    return BadBody(400, [fault(["body"], NOT_JSON + text, "value_error.jsondecode")])


def decode_create(body: bytes | bytearray | memoryview) -> Create:
    """The body of a create, checked but for its input.

    Raises:
      BadBody: 400 or 422, with all faults.
    """
    if not body:
        raise not_json("EOF while parsing a value at line 1 column 0")
    try:
        if len(body) <= SMALL:
            decode_json(body)
        elif not isinstance(body, memoryview):
            body.isascii() or body.decode()
        elif not all(map(bytes.isascii, _samples(body))):
            str(body, "utf-8")
        create = _decode(body)
    except msgspec.ValidationError as refusal:
        raise _wrong_shape(body, refusal) from None
    except RecursionError:
        raise not_json("recursion limit exceeded") from None
    except (msgspec.MsgspecError, UnicodeError) as refusal:
        raise not_json(str(refusal)) from None
    if _nests_too_deep(body):
        raise not_json("recursion limit exceeded")
    faults = _check_values(create)
    if faults:
        raise BadBody(422, faults)
    return create


def _check_values(create: Create) -> list[Fault]:
    faults = []
    if create.id is not None and not is_id(create.id):
        faults.append(fault(["body", "id"], BAD_ID))
    if create.webhook is not None and not is_url(create.webhook):
        faults.append(fault(["body", "webhook"], BAD_WEBHOOK))
    return faults


def is_id(text: str) -> bool:
    """D9: any text of 1 to 256 bytes without control characters."""
    if text.isascii():
        return 0 < len(text) <= MAX_ID and text.isprintable()
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return size <= MAX_ID and not any(unicodedata.category(char) == "Cc" for char in text)


def is_url(text: str) -> bool:
    """Whether it is an absolute http or https URL with a host."""
    if any(char <= " " or char == "\x7f" for char in text):
        return False
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _samples(body: memoryview) -> Iterator[bytes]:
    """A large body, piece by piece: a view can't be searched."""
    for start in range(0, len(body), SMALL):
        yield bytes(body[start : start + SMALL])


def _nests_too_deep(body: bytes | bytearray | memoryview) -> bool:
    """Whether arrays and objects stand in each other more than ``MAX_DEPTH`` deep; the body is well-formed."""
    half = (MAX_DEPTH + 1) // 2
    if isinstance(body, memoryview):
        arrays = objects = 0
        for sample in _samples(body):
            arrays += sample.count(b"[")
            objects += sample.count(b"{")
        if arrays < half and objects < half:
            return False
    elif not (_has(body, b"[", half) or _has(body, b"{", half)):
        return False
    brackets = _STRINGS.sub(b"", body).translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):  # each pass takes the innermost level away
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _has(body: bytes | bytearray, mark: bytes, count: int) -> bool:
    if len(body) <= SMALL:
        return body.count(mark) >= count
    place = -1
    for _ in range(count):
        place = body.find(mark, place + 1)
        if place < 0:
            return False
    return True


def _wrong_shape(body: bytes | bytearray | memoryview, refusal: msgspec.ValidationError) -> BadBody:
    """All that is wrong with the members, or that the body is no JSON after all (numbers, what comes later)."""
    try:
        value = decode_json(body)
    except RecursionError:
        return not_json("recursion limit exceeded")
    except (msgspec.MsgspecError, UnicodeError) as malformed:
        return not_json(str(malformed))
    faults: list[Fault] = []

    def expect(path: list[str | int], found: Any, expected: str) -> None:
        shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        text = f"invalid type: {_name(found)}, expected {expected}"
        faults.append(fault(["body", *path], f"{WRONG_SHAPE}{shown}: {text}" if shown else WRONG_SHAPE + text))

    if not isinstance(value, dict):
        expect([], value, "an object")
        return BadBody(422, faults)
    for name in ("id", "webhook"):
        if not isinstance(value.get(name), str | None):
            expect([name], value[name], "a string")
    context = value.get("context", {})
    if not isinstance(context, dict):
        expect(["context"], context, "a map")
    else:
        for key, text in context.items():
            if not isinstance(text, str):
                expect(["context", key], text, "a string")
    events = value.get("webhook_events_filter", [])
    if not isinstance(events, list):
        expect(["webhook_events_filter"], events, "a sequence")
    else:
        for index, event in enumerate(events):
            if not isinstance(event, str):
                expect(["webhook_events_filter", index], event, "a string")
            elif event not in _EVENTS:
                place = f"webhook_events_filter[{index}]"
                text = f"unknown variant `{event[:100]}`, expected one of `start`, `output`, `logs`, `completed`"
                faults.append(fault(["body", "webhook_events_filter", index], f"{WRONG_SHAPE}{place}: {text}"))
    return BadBody(422, faults or [fault(["body"], WRONG_SHAPE + str(refusal))])


def _name(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return _NAMES.get(type(value), type(value).__name__)
