"""Requests and replies as they stand on the wire: Structs, the faults of a body, every JSON body that we send.

A body is refused in two ways: as no JSON (400) or as JSON of another shape (422). A small body is decoded whole
for the first question; of a large one only the envelope is, and what can be told without decoding it: its content
is decoded once, by whoever validates it. The shape is decoded straight into ``CreateRequest``; only when that fails are
the fields looked at one by one, to name every fault and its place. The prefixes of the texts are the reference's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, TypeAlias

import msgspec

from cog_trio.bridge.json_value import decode_json
from cog_trio.state.ids import BAD_ID, BAD_WEBHOOK, is_id, is_url
from cog_trio.state.snapshot import ALL_EVENTS, WebhookEvent

Fault: TypeAlias = "Mapping[str, Any]"

log: Final = logging.getLogger(__name__)

MAX_NAMES: Final = 10  # unknown members that a line of the log names
MAX_NAME: Final = 50  # characters of one
SMALL: Final = 64 * 2**10  # bytes; decoding that costs less than a millisecond
MAX_DEPTH: Final = 127  # levels of nesting; one more is refused

NOT_JSON: Final = "Failed to parse the request body as JSON: "
WRONG_SHAPE: Final = "Failed to deserialize the JSON body into the target type: "
TOO_LARGE: Final = "Failed to buffer the request body: length limit exceeded"
WRONG_TYPE: Final = "Expected request with `Content-Type: application/json`"
NOT_UTF8: Final = "Invalid URL: Invalid UTF-8 in `id`"

_NAMES: Final = {dict: "map", list: "sequence", str: "string", int: "integer", float: "floating point"}
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_BACKSLASH: Final = ord("\\")
_EVENTS: Final = {event.value for event in WebhookEvent}

encode: Final = msgspec.json.Encoder().encode


class CreateRequest(msgspec.Struct):
    """The body of a create. Unknown members are ignored."""

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


class _Key:
    """The name of a member, equal to none but itself: so a dict keeps those that are there twice."""

    def __init__(self, text: str) -> None:
        self.text = text


_decode: Final = msgspec.json.Decoder(CreateRequest).decode
_members: Final = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=lambda _, text: _Key(text)).decode


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


def decode_create(body: bytes | bytearray | memoryview) -> CreateRequest:
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
        elif not all(map(bytes.isascii, _pieces(body))):
            str(body, "utf-8")
        create = _decode(body)
        faults = _repeated(body, create) or _check_values(create)
    except msgspec.ValidationError as refusal:
        raise _wrong_shape(body, refusal) from None
    except RecursionError:
        raise not_json("recursion limit exceeded") from None
    except (msgspec.MsgspecError, UnicodeError) as refusal:
        raise not_json(str(refusal)) from None
    if _nests_too_deep(body):
        raise not_json("recursion limit exceeded")
    if faults:
        raise BadBody(422, faults)
    return create


def _repeated(body: bytes | bytearray | memoryview, create: CreateRequest) -> list[Fault]:
    """The members of ours that are there twice; which of the two was meant can't be known."""
    size = len(memoryview(create.input))
    if 2 * size > len(body) > SMALL and not isinstance(body, memoryview):
        start = body.rfind(memoryview(create.input))  # more than half of the body can't be there twice
        body = b"%b0%b" % (bytes(body[:start]), bytes(body[start + size :]))
    names = [key.text for key in _members(body)]
    if "input" not in names:
        _tell_unknown(names)
    if len(names) == len({*names}):
        return []  # nearly all bodies
    twice = [name for name in CreateRequest.__struct_fields__ if names.count(name) > 1]
    return [fault(["body", name], f"{WRONG_SHAPE}duplicate field `{name}`") for name in twice]


def _tell_unknown(names: Iterable[str]) -> None:
    """Log the members of a body without ``input`` that mean nothing: they are most likely its inputs."""
    unknown = [name[:MAX_NAME] for name in names if name not in CreateRequest.__struct_fields__]
    if unknown:
        shown = ", ".join(unknown[:MAX_NAMES]) + (" and more" if len(unknown) > MAX_NAMES else "")
        log.warning('a body without "input" has unknown members: %s; inputs belong into {"input": {...}}', shown)


def _check_values(create: CreateRequest) -> list[Fault]:
    faults = []
    if create.id is not None and not is_id(create.id):
        faults.append(fault(["body", "id"], BAD_ID))
    if create.webhook is not None and not is_url(create.webhook):
        faults.append(fault(["body", "webhook"], BAD_WEBHOOK))
    return faults


def _pieces(body: bytes | bytearray | memoryview) -> Iterator[bytes]:
    """A body, piece by piece; no escape is cut in two. So who looks at a large one in a thread lets others run."""
    view = memoryview(body)
    start, size = 0, len(view)
    while start < size:
        end = min(start + SMALL, size)
        while end < size and view[end - 1] == _BACKSLASH:
            end += 1
        yield bytes(view[start:end])
        start = end


def _nests_too_deep(body: bytes | bytearray | memoryview) -> bool:
    """Whether arrays and objects stand in each other more than ``MAX_DEPTH`` deep; the body is well-formed."""
    depth, in_string = 0, False
    for piece in _pieces(body):
        if len(body) == len(piece) and piece.count(b"[") + piece.count(b"{") <= MAX_DEPTH:
            return False  # nearly all bodies
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        brackets = b"".join(parts[in_string::2]).translate(_ONE_KIND, _NOT_BRACKETS)
        in_string ^= len(parts) % 2 == 0
        opened = brackets.count(b"[")
        if depth + opened > MAX_DEPTH:
            outer = brackets.replace(b"[]", b"")  # one level less, and most of the brackets
            if _highest(outer, depth) >= MAX_DEPTH and _highest(brackets, depth) > MAX_DEPTH:
                return True
        depth += 2 * opened - len(brackets)
    return False


def _highest(brackets: bytes, depth: int) -> int:
    return max(accumulate(map(_STEPS.__getitem__, brackets), initial=depth))


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
