"""Random signatures: the document is valid OpenAPI 3.0, and edge, conversion and binding agree with what it says.

A `Slot` is one parameter as its author could have written it, made together with what must follow from it: values
that its schema admits, each with what ``run`` must see, and values that it forbids. The verdicts are also compared
with those of openapi-schema-validator on the same document, which knows nothing of ours. All is derandomized: a
failure shows on every machine, or nowhere.
"""

from __future__ import annotations

import json
import keyword
import math
import string
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS30Validator
from openapi_spec_validator import OpenAPIV30SpecValidator

import cog_trio.sdk as cog
from cog_trio.inputs.validation import InvalidInput, MalformedInput, Validator, decode_input
from cog_trio.worker.model.input_values import InputError, coerce
from cog_trio.worker.model.load import LoadedModel
from tests.sdk.source import Models, opened_models

pytestmark = pytest.mark.exhaustive

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
BEFORE = """\
class Color(str, enum.Enum):
    RED = 'red'
    BLUE = 'blue'
class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2
class Payload(TypedDict):
    a: int
"""
Pair: TypeAlias = "tuple[Any, Any]"  # a JSON value, and what run sees of it
Constraint: TypeAlias = "tuple[str, st.SearchStrategy[Any], st.SearchStrategy[Any]]"  # as written; inside; outside


@dataclass(frozen=True)
class Kind:
    """A type of an input: how it is written, what it takes, what it refuses."""

    annotation: str
    type: type | None  # of what run sees; None: that of the JSON value
    good: st.SearchStrategy[Any]
    bad: st.SearchStrategy[Any]
    seen: Callable[[Any], Any] = lambda value: value
    constraints: st.SearchStrategy[Constraint] | None = None
    nullable: bool = False
    in_lists: bool = True
    takes_urls: bool = False


text = st.text(st.characters(codec="utf-8"), max_size=12)
whole = st.integers() | st.integers(-(10**60), 10**60) | st.integers(-9, 9).map(float)
real = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**40), 10**40)
fraction = st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: not value.is_integer())
objects = st.dictionaries(text, st.none() | st.booleans() | text, max_size=3)
lists = st.lists(st.none() | st.booleans() | st.integers(-9, 9), max_size=3)
anything = st.none() | st.booleans() | whole | real | text | objects | lists
urls = st.sampled_from(["data:,a", "http://h/a.png", "HTTPS://h/a", "data:text/plain;base64,aGk="])
no_urls = st.sampled_from(["", "name", "file:///etc/passwd", "ftp://h/a", " http://h/"])


@st.composite
def bounds(draw: st.DrawFn, real_numbers: bool) -> Constraint:
    low = draw(st.integers(-1000, 1000))
    high = low + draw(st.integers(0, 1000))
    inside: st.SearchStrategy[Any] = st.integers(low, high)
    outside: st.SearchStrategy[Any] = st.integers(max_value=low - 1) | st.integers(min_value=high + 1)
    if real_numbers:
        inside |= st.floats(low, high)
        outside |= st.floats(max_value=low, exclude_max=True, allow_nan=False, allow_infinity=False)
    return f"ge={low}, le={high}", inside, outside


@st.composite
def lengths(draw: st.DrawFn) -> Constraint:
    low = draw(st.integers(1, 4))
    high = low + draw(st.integers(0, 4))
    letters = st.characters(codec="utf-8")
    inside = st.text(letters, min_size=low, max_size=high)
    outside = st.text(letters, max_size=low - 1) | st.text(letters, min_size=high + 1, max_size=high + 5)
    return f"min_length={low}, max_length={high}", inside, outside


def patterns() -> st.SearchStrategy[Constraint]:
    letters = st.text(string.ascii_lowercase, min_size=1, max_size=8)
    return st.just((r"regex='^[a-z]+$'", letters, letters.map(lambda word: word + "\n") | letters.map(str.upper)))


def choices_of(*values: Any) -> st.SearchStrategy[Constraint]:
    others = st.text(string.ascii_uppercase, max_size=5) if isinstance(values[0], str) else st.integers(100, 10**30)
    return st.just((f"choices={list(values)!r}", st.sampled_from(values), others))


no_text = st.none() | st.booleans() | whole | objects | lists
no_number = st.none() | st.booleans() | text | objects | lists
TEXT = Kind("str", str, text, no_text, constraints=lengths() | patterns() | choices_of("a", "b", "é\n'"))
INT = Kind("int", int, whole, no_number | fraction, int, bounds(False) | choices_of(1, 2, 10**20))
FLOAT = Kind("float", float, real, no_number, float, bounds(True))
BOOL = Kind("bool", bool, st.booleans(), st.none() | whole | real | text | objects | lists)
DICT = Kind("dict", dict, objects, st.none() | st.booleans() | whole | text | lists)
PAYLOAD = Kind("Payload", dict, objects, DICT.bad)
OPAQUE = Kind("Annotated['NowhereToBeFound', Opaque]", dict, objects, DICT.bad)
ANY = Kind("Any", None, anything, st.nothing(), nullable=True)
PATH = Kind("Path", cog.Path, urls, no_text | no_urls, takes_urls=True)
SECRET = Kind("Secret", cog.Secret, text, no_text, cog.Secret)
LITERAL = Kind("Literal['a', 'b']", str, st.sampled_from(["a", "b"]), no_text | st.just("c"))
COLOR = Kind("Color", Enum, st.sampled_from(["red", "blue"]), no_text | st.just("c"))
SIZE = Kind("Size", Enum, st.sampled_from([1, 2, 1.0]), no_number | fraction | st.integers(3), int)
BARE = Kind("list", list, lists, st.none() | st.booleans() | whole | text | objects, in_lists=False)
KINDS = [TEXT, INT, FLOAT, BOOL, DICT, PAYLOAD, OPAQUE, ANY, PATH, SECRET, LITERAL, COLOR, SIZE, BARE]


@dataclass(frozen=True)
class Slot:
    """One parameter, and what must follow."""

    annotation: str
    default: str | None
    type: type | None
    many: bool
    required: bool
    good: st.SearchStrategy[Pair]
    bad: st.SearchStrategy[Any]
    urls: bool = False

    def written(self, name: str) -> str:
        return f"{name}: {self.annotation}" + ("" if self.default is None else f" = {self.default}")


@st.composite
def slots(draw: st.DrawFn) -> Slot:
    if draw(st.integers(0, 7)) == 0:
        return draw(unions())
    kind = draw(st.sampled_from(KINDS))
    good, bad = kind.good, kind.bad
    annotation = kind.annotation
    arguments: list[str] = []
    if kind.constraints is not None and draw(st.booleans()):
        argument, good, outside = draw(kind.constraints)
        arguments.append(argument)
        bad |= outside
    if draw(st.booleans()):
        arguments.append(f"description={draw(text)!r}")
    if draw(st.booleans()):
        arguments.append("deprecated=True")
    pairs: st.SearchStrategy[Pair] = good.map(lambda value: (value, kind.seen(value)))
    many = kind.in_lists and draw(st.integers(0, 2)) == 0
    if many:
        annotation = f"list[{annotation}]"
        pairs = st.lists(pairs, max_size=4).map(lambda found: ([a for a, _ in found], [b for _, b in found]))
        one_bad = st.tuples(st.lists(good, max_size=2), bad, st.lists(good, max_size=2))
        bad = st.none() | st.booleans() | text | objects | one_bad.map(lambda found: [*found[0], found[1], *found[2]])
        bad = bad if kind is not ANY else st.none() | st.booleans() | text | objects
    nullable = (kind.nullable and not many) or draw(st.booleans())
    if nullable:
        annotation = annotation if kind.nullable and not many else f"Optional[{annotation}]"
        pairs |= st.just((None, None))
        bad = bad.filter(lambda value: value is not None)
    required = True
    form = draw(st.sampled_from(["none", "none", "value", "null"]))
    if form == "value" and (kind in (TEXT, INT, FLOAT, BOOL, DICT, BARE, LITERAL) and not arguments):
        arguments.insert(0, f"default={draw(pairs)[0]!r}")
        required = False
    elif form == "null":
        arguments.insert(0, "default=None")
        required = False
        pairs |= st.just((None, None))
        bad = bad.filter(lambda value: value is not None)
    elif nullable and (many or not kind.nullable):
        required = False
    written = len(arguments) > 0 or draw(st.booleans())
    default = f"Input({', '.join(arguments)})" if written else None
    return Slot(annotation, default, kind.type, many, required, pairs, bad, kind.takes_urls)


@st.composite
def unions(draw: st.DrawFn) -> Slot:
    members = draw(st.lists(st.sampled_from([TEXT, INT, FLOAT, BOOL, DICT]), min_size=2, max_size=4, unique=True))
    names = {member.annotation for member in members}
    good = st.one_of([member.good for member in members])
    rest: list[st.SearchStrategy[Any]] = [lists]
    if "str" not in names:
        rest.append(text)
    if "bool" not in names:
        rest.append(st.booleans())
    if "dict" not in names:
        rest.append(objects)
    if "float" not in names:
        rest.append(fraction)
        if "int" not in names:
            rest.append(whole)
    nullable = draw(st.booleans())
    annotation = " | ".join([member.annotation for member in members] + ["None"] * nullable)
    if nullable:
        good |= st.none()
    else:
        rest.append(st.none())
    return Slot(annotation, None, None, False, True, good.map(lambda value: (value, value)), st.one_of(rest))


@st.composite
def signatures(draw: st.DrawFn) -> dict[str, Slot]:
    names = st.text(string.ascii_letters + "_", min_size=1, max_size=6).filter(
        lambda name: name.isidentifier() and name not in _TAKEN
    )
    chosen = draw(st.lists(names | st.sampled_from(["Input", "Output", "Status"]), max_size=5, unique=True))
    return {name: draw(slots()) for name in chosen}


_TAKEN = {"self", *keyword.kwlist}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with pytest.MonkeyPatch.context() as patch:
        yield from opened_models(tmp_path_factory.mktemp("models"), patch)


def loaded(shared: Models, slots: dict[str, Slot]) -> LoadedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are never chosen, and the like
        parameters = ", ".join(["", *(slot.written(name) for name, slot in slots.items())]).removeprefix(", ")
        return shared.run(f"*, {parameters}" if parameters else "", BEFORE)


def same(expected: Any, found: Any) -> bool:
    """Equal, and of one type all the way down: 1 is not 1.0, True is not 1."""
    if isinstance(expected, list):
        return isinstance(found, list) and len(expected) == len(found) and all(map(same, expected, found))
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and expected.keys() == found.keys()
            and all(same(value, found[key]) for key, value in expected.items())
        )
    if isinstance(found, Enum):
        found = found.value
    if isinstance(expected, float) and isinstance(found, float):
        return expected == found or (math.isnan(expected) and math.isnan(found))
    return type(expected) is type(found) and bool(expected == found)


def whole_as_int(value: Any) -> Any:
    """OpenAPI 3.0 builds on a draft of JSON Schema that leaves it open whether 1.0 is an integer; for us it is."""
    if isinstance(value, list):
        return [whole_as_int(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def has_type(slot: Slot, value: Any) -> bool:
    if value is None or slot.type is None:
        return True
    if slot.many:
        return isinstance(value, list) and all(item is None or isinstance(item, slot.type) for item in value)
    return isinstance(value, slot.type)


@SETTINGS
@given(signatures(), st.data())
def test_what_the_document_admits_reaches_run_in_its_type(
    shared: Models, slots: dict[str, Slot], data: st.DataObject
) -> None:
    model = loaded(shared, slots)
    OpenAPIV30SpecValidator(json.loads(msgspec.json.encode(model.document))).validate()
    request, expected = {}, {}
    for name, slot in slots.items():
        if slot.required or data.draw(st.booleans()):
            request[name], expected[name] = data.draw(slot.good)
    raw = json.dumps(request).encode()
    checked = Validator(model.document, model.inputs).check(raw)
    assert checked.dropped == []
    assert checked.input == raw
    values = coerce(model.parameters, decode_input(checked.input), {})
    args, kwargs = model.bind(values)
    assert args == []
    assert kwargs.keys() == slots.keys()
    for name, slot in slots.items():
        assert has_type(slot, kwargs[name]), (slot, kwargs[name])
        if name in expected and not slot.urls:
            assert same(expected[name], kwargs[name]), (slot, kwargs[name])


@SETTINGS
@given(signatures().filter(bool), st.data())
def test_what_the_document_forbids_gets_every_fault(
    shared: Models, slots: dict[str, Slot], data: st.DataObject
) -> None:
    model = loaded(shared, slots)
    request: dict[str, Any] = {}
    wrong: list[str] = []
    for name, slot in slots.items():
        how = data.draw(st.sampled_from(["good", "bad", "missing"]))
        if how == "good" or (how == "bad" and slot.bad.is_empty):
            request[name] = data.draw(slot.good)[0]
        elif how == "bad":
            request[name] = data.draw(slot.bad)
            wrong.append(name)
        elif slot.required:
            wrong.append(name)
    raw = json.dumps(request).encode()
    validator = Validator(model.document, model.inputs)
    if not wrong:
        validator.check(raw)
        return
    with pytest.raises(InvalidInput) as caught:
        validator.check(raw)
    faults = caught.value.faults
    named = [fault["loc"][2].partition("/")[0] for fault in faults]
    assert list(dict.fromkeys(named)) == wrong  # each of them, in the order of x-order
    for name, fault in zip(named, faults, strict=True):
        assert fault["loc"][:2] == ["body", "input"]
        assert len(fault["loc"]) == 3
        assert len(fault["msg"]) < 400
        slot = slots[name]
        if slot.type is cog.Secret and isinstance(value := request.get(name), str) and len(value) > 3:
            assert value not in fault["msg"]


@SETTINGS
@given(signatures().filter(bool), st.data())
def test_the_verdict_is_that_of_another_validator(shared: Models, slots: dict[str, Slot], data: st.DataObject) -> None:
    """Where the document alone decides: no files, no default that makes a listed input optional (W11)."""
    model = loaded(shared, slots)
    schemas = model.document["components"]["schemas"]
    request = {name: data.draw(anything | slot.good.map(lambda pair: pair[0])) for name, slot in slots.items()}
    raw = json.dumps(request).encode()
    try:
        Validator(model.document, model.inputs).check(raw)
    except InvalidInput as error:
        refused = {fault["loc"][2].partition("/")[0] for fault in error.faults}
    else:
        refused = set()
    for parameter in model.parameters:
        schema = {**schemas["Input"]["properties"][parameter.name], "components": {"schemas": schemas}}
        value = request[parameter.name]
        if parameter.kind in ("path", "file") or value is None or "\n" in str(value):
            continue  # files must be URLs (W5); null: W9, W11; a line break at the end: Python's $
        admitted = OAS30Validator(schema).is_valid(whole_as_int(value))
        assert (parameter.name in refused) == (not admitted), (schema, value)


@SETTINGS
@given(signatures(), st.recursive(anything, lambda inner: st.lists(inner) | st.dictionaries(text, inner)) | st.binary())
def test_nothing_raises_a_foreign_error(shared: Models, slots: dict[str, Slot], value: Any) -> None:
    model = loaded(shared, slots)
    raw = value if isinstance(value, bytes) else json.dumps(dict.fromkeys(slots, value) or value).encode()
    validator = Validator(model.document, model.inputs)
    try:
        checked = validator.check(raw)
        coerce(model.parameters, decode_input(checked.input), {})
    except (InvalidInput, MalformedInput, InputError):
        pass
