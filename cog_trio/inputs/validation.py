"""Checks the inputs of a request against the model's document, once compiled, before anything of the model runs.

In: the bytes of a request's ``input`` and, once a model, its OpenAPI document and field table (plain data: this
module knows no message and no route). Out: the bytes for the worker, the bytes to echo, the names that were
dropped; or every fault of every input, in the order of the signature.

Nothing is ever written into what is checked, and no default is filled in. When nothing was dropped, the very
bytes that came go on: numbers of any length stay as they were. What a check is made of is in compiled_schema.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypedDict

import msgspec

from cog_trio.bridge.json_value import LARGE, decode_json_in_steps, no_collector
from cog_trio.bridge.protocol import Json
from cog_trio.inputs.compiled_schema import MASK, REFUSALS, Loc, Schemas, UnusableSchema, mapping, show_value

TOLD: Final = 5  # faults that the text of the error names
MAX_FAULTS: Final = 1000  # of one request: a long list of wrong elements is not answered by a longer one

_MISSING: Final = object()
_EMPTY: Final = b"{}"
_ROOT: Final[Loc] = ("body", "input")
SMALL: Final = 64 * 2**10  # bytes of JSON; to decode and check as much takes about a millisecond, more needs a thread
LONG: Final = 2**16  # bytes of a text that is left as it is
SAMPLE: Final = 2**16  # bytes of it that are looked at together
BEGINNING: Final = 256  # characters that stand for it
_ANY_TEXT: Final = {"type": "string"}

_URL: Final = re.compile(r"(?:https?|data):", re.IGNORECASE)


class Fault(TypedDict):
    """One entry of a 422's ``detail``."""

    loc: list[str]
    msg: str
    type: str


class InvalidInput(Exception):
    """The input is refused: 422 with ``faults`` as its detail."""

    def __init__(self, faults: list[Fault]) -> None:
        texts = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in faults[:TOLD]]
        more = [f"{len(faults) - TOLD} more faults"] if len(faults) > TOLD else []
        super().__init__("; ".join([*texts, *more]))
        self.faults = faults


def _place(loc: list[str]) -> str:
    """Where a fault is: ``numbers/2`` for the third of the input ``numbers``."""
    return ".".join(loc[2:]).replace("__root__", "input") or "input"


class MalformedInput(Exception):
    """The input is not JSON that we take (syntax, number out of range, nesting): 400, the text says why."""


class Checked(NamedTuple):
    """An input that was checked."""

    input: bytes | memoryview  # for the worker
    echo: bytes | memoryview  # for clients: secrets masked, absent nullable inputs shown as null
    dropped: list[str]  # names in the request that are not inputs


class _Field(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def required(self) -> bool: ...
    @property
    def nullable(self) -> bool: ...
    @property
    def inject_null(self) -> bool: ...


class InputTable(Protocol):
    """What the worker tells of a callable's inputs beside the document (``bridge.protocol.Inputs``)."""

    @property
    def component(self) -> str: ...
    @property
    def fields(self) -> Sequence[_Field]: ...
    @property
    def extra(self) -> bool: ...


class _Rule(NamedTuple):
    name: str
    required: bool
    nullable: bool
    check: Callable[[Json], object] | None  # raises on refusal
    is_file: bool
    schema: Json
    secret: bool


def decode_input(raw: bytes | memoryview | msgspec.Raw | None) -> Json:
    """The value in a request's ``input``; absent is null.

    Raises:
      MalformedInput: if it is not JSON, has a number beyond all range or lone surrogates, or is nested too deep.
    """
    if raw is None:
        return None
    try:
        return decode_json_in_steps(raw)
    except RecursionError:
        raise MalformedInput("nested too deep") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise MalformedInput(str(error)) from None


def check_input(input: bytes | memoryview, validator: Validator | None) -> Checked:
    """Check an input, or only decode it where there is no validator.

    Raises:
      InvalidInput, MalformedInput: as ``Validator.check`` and ``decode_input``.
    """
    if validator is not None:
        return validator.check(input)
    decode_input(input)
    return Checked(input, input, [])


class Validator:
    """The checks of one callable's inputs, compiled when made.

    Args:
      document: the OpenAPI document.
      inputs: the field table. An input that stands in the document alone goes by the document's own marks.

    Raises:
      UnusableSchema: if the component is missing or a property doesn't compile.
    """

    def __init__(self, document: Mapping[str, Json], inputs: InputTable) -> None:
        components = mapping(mapping(document.get("components")).get("schemas"))
        component = components.get(inputs.component)
        if not isinstance(component, Mapping):
            raise UnusableSchema(f"the document has no component {inputs.component!r}")
        self._schemas = Schemas(components)
        fields = {field.name: field for field in inputs.fields}
        required = component.get("required")
        required = required if isinstance(required, list) else ()
        rules: list[tuple[float, _Rule]] = []
        inject: list[str] = []
        for name, fragment in mapping(component.get("properties")).items():
            fragment = mapping(fragment)
            field = fields.get(name)
            schema = self._schemas.rewrite(name, fragment, nullable=False)
            needed = name in required if field is None else field.required
            nullable = bool(fragment.get("nullable")) if field is None else field.nullable
            rule = _Rule(
                name=name,
                required=needed,
                nullable=nullable,
                check=self._schemas.compile(name, schema),
                is_file=field is not None and field.kind in ("path", "file"),
                schema=schema,
                secret=(field is not None and field.kind == "secret") or _is_secret(fragment),
            )
            order = fragment.get("x-order")
            rules.append((order if isinstance(order, (int, float)) else float("inf"), rule))
            if field.inject_null if field is not None else nullable and not needed and "default" not in fragment:
                inject.append(name)
        rules.sort(key=lambda pair: pair[0])
        self._rules: Final = tuple(rule for _, rule in rules)
        self._texts: Final = frozenset(rule.name for rule in self._rules if rule.schema == _ANY_TEXT)
        self._names: Final = frozenset(rule.name for rule in self._rules)
        self._secrets: Final = tuple(rule.name for rule in self._rules if rule.secret)
        self._inject: Final = tuple(inject)
        self._extra: Final = inputs.extra

    @property
    def required(self) -> frozenset[str]:
        """The inputs that can't be left out. The document may list more: those with a default of None."""
        return frozenset(rule.name for rule in self._rules if rule.required)

    def check(self, raw: bytes | memoryview | None, decoded: Json = _MISSING) -> Checked:
        """Check one request's ``input``; absent and null count as no inputs at all.

        Args:
          raw: its bytes.
          decoded: what ``decode_input`` made of them, if that was asked before. It is not changed.

        Raises:
          InvalidInput: with every fault there is.
          MalformedInput: as ``decode_input``.
        """
        if raw is None or len(raw) <= LARGE:
            return self._check(raw, decoded)
        with no_collector():
            return self._check(raw, decoded)

    def _check(self, raw: bytes | memoryview | None, decoded: Json) -> Checked:
        value = self._decode(raw) if decoded is _MISSING else decoded
        if raw is None or value is None:
            raw, value = _EMPTY, {}
        if not isinstance(value, dict):
            text = f'{show_value(value)} is not of type "object"'
            raise InvalidInput([Fault(loc=["body", "input", "__root__"], msg=text, type="value_error")])
        get = value.get
        seen = 0
        sound = True
        for name, required, nullable, check_input, is_file, _, _ in self._rules:
            item = get(name, _MISSING)
            if item is _MISSING:
                sound = sound and not required
                continue
            seen += 1
            if check_input is None or (nullable and item is None):
                continue
            try:
                check_input(item)
            except REFUSALS:
                sound = False
            else:
                if is_file and not _are_urls(item):
                    sound = False
        if not sound:
            raise InvalidInput(self._explain(value))
        dropped = []
        if seen != len(value) and not self._extra:
            dropped = [name for name in value if name not in self._names]
        return self._answer(raw, value, dropped)

    def _decode(self, raw: bytes | memoryview | None) -> Json:
        """As ``decode_input``, member by member, with the beginnings of long texts in their place."""
        if raw is None or len(raw) <= LONG or (not self._texts and len(raw) <= LARGE):
            return decode_input(raw)
        try:
            members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return decode_input(raw)  # which says what it is, if no object
        return {
            name: _beginning(member)
            if name in self._texts and _is_long_text(memoryview(member))
            else decode_input(member)
            for name, member in members.items()
        }

    def _answer(self, raw: bytes | memoryview, value: dict[str, Json], dropped: list[str]) -> Checked:
        shown: dict[str, Json] = {name: None for name in self._inject if name not in value}
        for name in self._secrets:
            if value.get(name) is not None:
                shown[name] = _masked(value[name])
        if not shown and not dropped:
            return Checked(raw, raw, dropped)
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])  # values untouched, whatever they are
        for name in dropped:
            del members[name]
        kept = msgspec.json.encode(members) if dropped else raw
        return Checked(kept, msgspec.json.encode({**members, **shown}) if shown else kept, dropped)

    def _explain(self, value: dict[str, Json]) -> list[Fault]:
        faults: list[Fault] = []
        for rule in self._rules:
            item = value.get(rule.name, _MISSING)
            loc = (*_ROOT, rule.name)
            if item is _MISSING:
                if rule.required:
                    faults.append(Fault(loc=_pointed(loc), msg="Field required", type="value_error.missing"))
                continue
            if rule.check is None or (rule.nullable and item is None):
                continue
            try:
                rule.check(item)
                texts = _not_urls(item, loc) if rule.is_file else iter(())
            except REFUSALS:
                texts = self._schemas.explain(rule.schema, item, loc, rule.secret)
            for place, text in texts:
                faults.append(Fault(loc=_pointed(place), msg=text, type="value_error"))
                if len(faults) == MAX_FAULTS:
                    faults.append(
                        Fault(loc=["body", "input"], msg="there are more faults than these", type="value_error")
                    )
                    return faults
        return faults


def _pointed(place: Loc) -> list[str]:
    """A place as clients get it: the input and what is inside of it are one text, like ``numbers/2``.

    It is a JSON Pointer without its first slash. The command line of Cog decodes nothing but strings.
    """
    inside = (str(part).replace("~", "~0").replace("/", "~1") for part in place[len(_ROOT) :])
    return ["body", "input", "/".join(inside)]


def _is_long_text(json: memoryview) -> bool:
    """Whether well-formed JSON is a long text that stands there as it is: ASCII without escapes."""
    if len(json) <= LONG or json[0] != ord('"'):
        return False
    for start in range(0, len(json), SAMPLE):
        sample = bytes(json[start : start + SAMPLE])
        if not sample.isascii() or b"\\" in sample:
            return False
    return True


def _beginning(text: msgspec.Raw) -> str:
    return str(memoryview(text)[1:BEGINNING], "ascii")


def _is_secret(fragment: Mapping[str, Json]) -> bool:
    parts: Iterable[Json] = (fragment, fragment.get("items"))
    return any(
        part.get("format") == "password" or bool(part.get("writeOnly")) for part in parts if isinstance(part, Mapping)
    )


def _masked(value: Json) -> Json:
    return [None if item is None else MASK for item in value] if isinstance(value, list) else MASK


def _are_urls(value: Json) -> bool:
    if isinstance(value, str):
        return _URL.match(value) is not None
    return not isinstance(value, list) or all(map(_are_urls, value))


def _not_urls(value: Json, loc: Loc) -> Iterator[tuple[Loc, str]]:
    """The strings for file inputs that are not URLs."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_urls(item, (*loc, index))
    elif not _are_urls(value):
        yield loc, f"{show_value(value)} is not a URL with the scheme http, https or data"
