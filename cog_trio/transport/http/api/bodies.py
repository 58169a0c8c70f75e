"""Requests and replies as they stand on the wire: Structs, the faults of a body, every JSON body that we send.

A body is refused in two ways: because it is not JSON (400), or because it is JSON of another shape (422). Only its
envelope is decoded here, straight into ``CreateRequest``; the input is decoded once, by the code that validates it, and
members that are not ours are only skipped. When the envelope can't be decoded, the fields are looked at one by one, to
name every fault and its place, up to a bound. The prefixes of the texts are the reference's.

All of this takes time that grows with the body, but only linearly. A body over ``SMALL`` belongs into a thread.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, TypeAlias

import msgspec

from cog_trio.bridge.json_value import decode_json, decode_json_in_steps
from cog_trio.inputs.validation import MAX_FAULTS, SMALL
from cog_trio.state.ids import BAD_ID, BAD_WEBHOOK, is_id, is_url
from cog_trio.state.snapshot import ALL_EVENTS, WebhookEvent

Fault: TypeAlias = "Mapping[str, Any]"

log: Final = logging.getLogger(__name__)

MAX_NAMES: Final = 10  # unknown members that a line of the log names
MAX_NAME: Final = 50  # characters of one
SHORT: Final = 2**10  # bytes of a body that is looked at in one call; a longer one is searched for each name
MAX_DEPTH: Final = 127  # levels of nesting; one more is refused

NOT_JSON: Final = "Failed to parse the request body as JSON: "
WRONG_SHAPE: Final = "Failed to deserialize the JSON body into the target type: "
TOO_LARGE: Final = "Failed to buffer the request body: length limit exceeded"
WRONG_TYPE: Final = "Expected request with `Content-Type: application/json`"
ENCODED: Final = "This server takes request bodies without a Content-Encoding only"
NOT_UTF8: Final = "Invalid URL: Invalid UTF-8 in `id`"

_NAMES: Final = {dict: "map", list: "sequence", str: "string", int: "integer", float: "floating point"}
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {ord("["): 1, ord("]"): -1}
_BACKSLASH: Final = ord("\\")
_EVENTS: Final = {event.value for event in WebhookEvent}
MAX_SHOWN: Final = 100  # characters of a client's text that a fault repeats

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
    """The body is refused with ``status`` and ``faults``; ``headers`` belong to the reply."""

    def __init__(self, status: int, faults: list[Fault], headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(f"{status}: {faults[0]['msg']}")
        self.status = status
        self.faults = faults
        self.headers = headers


class _Name:
    """The type of a member's name, which makes msgspec ask about each of them."""


class _Element:
    """The type of an element, which makes msgspec ask about each of them."""


_decode: Final = msgspec.json.Decoder(CreateRequest).decode
_QUOTED: Final = tuple(f'"{name}"'.encode() for name in CreateRequest.__struct_fields__)
_ANY_QUOTED: Final = re.compile(b"|".join(_QUOTED))
_OVERLAP: Final = max(map(len, _QUOTED)) - 1  # bytes by which two pieces overlap, so that no name is cut in two


def fault(loc: Iterable[str], text: str, kind: str = "value_error") -> Fault:
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
      BadBody: 400 or 422, with all faults up to ``MAX_FAULTS``.
    """
    if not body:
        raise not_json("EOF while parsing a value at line 1 column 0")
    try:
        if not isinstance(body, memoryview):
            body.isascii() or body.decode()
        elif not all(map(bytes.isascii, _pieces(body))):
            str(body, "utf-8")
        create = _decode(body)
        faults = _repeated(body) or _check_values(create)
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
    _tell_unknown(body)
    return create


def _repeated(body: bytes | bytearray | memoryview) -> list[Fault]:
    """The members of ours that are there twice; which of the two was meant can't be known."""
    if not _may_repeat(body):
        return []  # nearly all bodies
    counts: Counter[str] = Counter()
    key = _Name()  # one for all names, so that the members of a large body are not kept

    def note(_: type, name: str) -> _Name:
        if name in CreateRequest.__struct_fields__:
            counts[name] += 1
        return key

    msgspec.json.decode(body, type=dict[_Name, msgspec.Raw], dec_hook=note)
    twice = [name for name in CreateRequest.__struct_fields__ if counts[name] > 1]
    return [fault(["body", name], f"{WRONG_SHAPE}duplicate field `{name}`") for name in twice]


def _tell_unknown(body: bytes | bytearray | memoryview) -> None:
    """Log the members of a small body without ``input`` that mean nothing: they are most likely its inputs."""
    if len(body) > SMALL or b'"input"' in bytes(body):
        return
    names = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    unknown = [name[:MAX_NAME] for name in names if name not in CreateRequest.__struct_fields__]
    if unknown:
        shown = ", ".join(unknown[:MAX_NAMES]) + (" and more" if len(unknown) > MAX_NAMES else "")
        log.warning('a body without "input" has unknown members: %s; inputs belong into {"input": {...}}', shown)


def _may_repeat(body: bytes | bytearray | memoryview) -> bool:
    """Whether one of our names could be there twice: its text is, at whatever depth, or names could be escaped."""
    if len(body) <= SHORT:
        names = _ANY_QUOTED.findall(body)
        return len(set(names)) != len(names) or b"\\u" in bytes(body)
    counts = [0] * len(_QUOTED)
    view = memoryview(body)
    for start in range(0, len(view), SMALL):
        piece = bytes(body if len(view) <= SMALL else view[max(start - _OVERLAP, 0) : start + SMALL])
        if b"\\" in piece and b"\\u" in piece:  # one byte is found ten times as fast as two
            return True
        if b'"' not in piece:
            continue  # within one long string
        for number, quoted in enumerate(_QUOTED):
            counts[number] += piece.count(quoted)
            if counts[number] > 1:
                return True
    return False


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
    if len(body) <= SHORT and (flat := bytes(body)).count(b"[") + flat.count(b"{") <= MAX_DEPTH:
        return False  # nearly all bodies
    depth, in_string = 0, False
    for piece in _pieces(body):
        if len(body) == len(piece) and piece.count(b"[") + piece.count(b"{") <= MAX_DEPTH:
            return False
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
    """What is wrong with the members, or that the body is not JSON after all (numbers, what comes later)."""
    try:
        faults = _shape_faults(body)
    except RecursionError:
        return not_json("recursion limit exceeded")
    except (msgspec.MsgspecError, UnicodeError) as malformed:
        return not_json(str(malformed))
    if len(faults) > MAX_FAULTS:
        faults[MAX_FAULTS:] = [fault(["body"], f"{WRONG_SHAPE}there are more faults than these")]
    return BadBody(422, faults or [fault(["body"], WRONG_SHAPE + str(refusal))])


def _shape_faults(body: bytes | bytearray | memoryview) -> list[Fault]:
    """Each member that is not of its type, with its place, up to one more than ``MAX_FAULTS``."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return [_wrong_type([], decode_json_in_steps(body), "an object")]
    faults: list[Fault] = []
    for name, member in members.items():
        if name not in _CONTAINERS:
            value = decode_json_in_steps(member)
            if name in _TEXTS and not isinstance(value, str | None):
                faults.append(_wrong_type([name], value, "a string"))
    for name, (kind, expected, find_fault) in _CONTAINERS.items():
        if name in members:
            faults += _element_faults(name, members[name], kind, expected, find_fault)
    return faults[: MAX_FAULTS + 1]


def _element_faults(
    name: str, member: msgspec.Raw, kind: Any, expected: str, find_fault: Callable[[str | int, Any], Fault | None]
) -> list[Fault]:
    """The faults of the elements of a member. None of the elements is kept, however many there are."""
    faults: list[Fault] = []
    place: str | int = -1
    same_name, same_element = _Name(), _Element()  # one key and one value for all, so that a dict does not grow

    def look(type: Any, value: Any) -> Any:
        nonlocal place
        if type is _Name:
            place = value
            return same_name
        if isinstance(place, int):
            place += 1
        if len(faults) <= MAX_FAULTS and (found := find_fault(place, value)) is not None:
            faults.append(found)
        return same_element

    try:
        msgspec.json.decode(member, type=kind, dec_hook=look)
    except msgspec.ValidationError:
        value = decode_json(member)  # raises, if a number of it is out of range
        return [_wrong_type([name], value, expected)]
    return faults


def _context_fault(key: str | int, text: Any) -> Fault | None:
    return None if isinstance(text, str) else _wrong_type(["context", _cut(str(key))], text, "a string")


def _event_fault(index: str | int, event: Any) -> Fault | None:
    if not isinstance(event, str):
        return _wrong_type([f"webhook_events_filter/{index}"], event, "a string")
    if event in _EVENTS:
        return None
    text = f"unknown variant `{event[:MAX_SHOWN]}`, expected one of `start`, `output`, `logs`, `completed`"
    return fault(["body", f"webhook_events_filter/{index}"], f"{WRONG_SHAPE}webhook_events_filter[{index}]: {text}")


_TEXTS: Final = ("id", "webhook")
_CONTAINERS: Final[Mapping[str, tuple[Any, str, Callable[[str | int, Any], Fault | None]]]] = {
    "context": (dict[_Name, _Element], "a map", _context_fault),
    "webhook_events_filter": (list[_Element], "a sequence", _event_fault),
}


def _wrong_type(path: list[str], found: Any, expected: str) -> Fault:
    shown = ".".join(path)
    text = f"invalid type: {_name(found)}, expected {expected}"
    return fault(["body", *path], f"{WRONG_SHAPE}{shown}: {text}" if shown else WRONG_SHAPE + text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _name(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return _NAMES.get(type(value), type(value).__name__)
