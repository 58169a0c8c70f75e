"""The edge's checks: each kind of input, each kind of refusal with its words and its place, and what is passed on."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

from cog_trio.bridge.protocol import Input, Inputs
from cog_trio.inputs import compiled_schema
from cog_trio.inputs.compiled_schema import MAX_WALKED, UnusableSchema
from cog_trio.inputs.validation import MAX_FAULTS, Checked, InvalidInput, MalformedInput, Validator, decode_input

Fragment = dict[str, Any]


def make(
    properties: dict[str, Fragment],
    *fields: Input,
    extra: bool = False,
    required: list[str] | None = None,
    components: dict[str, Any] | None = None,
) -> Validator:
    """A validator of a document with these properties; x-order is their order unless they say it."""
    shaped = {name: {"x-order": order, **fragment} for order, (name, fragment) in enumerate(properties.items())}
    component = {"title": "Input", "type": "object", "properties": shaped, "required": required or []}
    document = {"components": {"schemas": {"Input": component, **(components or {})}}}
    return Validator(document, Inputs("Input", fields, extra))


def one(fragment: Fragment, kind: str = "str", **flags: Any) -> Validator:
    return make({"x": fragment}, Input("x", kind, **flags))


def send(validator: Validator, value: Any) -> Checked:
    return validator.check(json.dumps(value).encode())


def faults(validator: Validator, value: Any) -> list[tuple[list[str], str, str]]:
    with pytest.raises(InvalidInput) as caught:
        send(validator, value)
    return [(fault["loc"], fault["msg"], fault["type"]) for fault in caught.value.faults]


def refused(fragment: Fragment, value: Any, kind: str = "str", **flags: Any) -> list[tuple[str, str]]:
    """Place below the input, and text, of each fault of one input."""
    found = faults(one(fragment, kind, **flags), {"x": value})
    assert all(loc[:2] == ["body", "input"] and len(loc) == 3 and kind == "value_error" for loc, _, kind in found)
    assert all(loc[2].partition("/")[0] == "x" for loc, _, _ in found)
    return [(loc[2][1:], text) for loc, text, _ in found]


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
OBJECT = {"type": "object"}
URI = {"type": "string", "format": "uri"}
PASSWORD = {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}


@pytest.mark.parametrize(
    ("fragment", "value"),
    [
        (STRING, "a"),
        (STRING, ""),
        (STRING, "https://h/a.png"),
        (INTEGER, 1),
        (INTEGER, 1.0),
        (INTEGER, 10**20),
        (INTEGER, -(10**4000)),
        (NUMBER, 1.5),
        (NUMBER, 1),
        (NUMBER, 10**400),
        (BOOLEAN, True),
        (OBJECT, {"a": {"b": [None]}}),
        ({"minimum": 1, "maximum": 10, **INTEGER}, 1),
        ({"minimum": 1, "maximum": 10, **INTEGER}, 10),
        ({"minimum": 0.5, **NUMBER}, 0.5),
        ({"minLength": 2, "maxLength": 4, **STRING}, "éé"),
        ({"pattern": "^[a-z]+$", **STRING}, "abc"),
        ({"pattern": "[a-z]+", **STRING}, "123abc"),
        ({"type": "array", "items": INTEGER}, [1, 2.0]),
        ({"type": "array", "items": INTEGER}, []),
        ({"type": "array", "items": {}}, [1, "a", None]),
        ({"anyOf": [STRING, NUMBER]}, 1),
        ({"anyOf": [STRING, NUMBER]}, "1"),
        ({}, None),
        ({}, [{"a": 1}]),
    ],
)
def test_accepted(fragment: Fragment, value: Any) -> None:
    raw = msgspec.json.encode({"x": value})
    assert one(fragment).check(raw) == Checked(raw, raw, [])


@pytest.mark.covers("lesson:61")
@pytest.mark.parametrize(
    ("fragment", "value", "text"),
    [
        (INTEGER, "5", '"5" is not of type "integer"'),
        (INTEGER, 1.5, '1.5 is not of type "integer"'),
        (INTEGER, True, 'true is not of type "integer"'),
        (NUMBER, False, 'false is not of type "number"'),
        (BOOLEAN, 1, '1 is not of type "boolean"'),
        (BOOLEAN, "true", '"true" is not of type "boolean"'),
        (STRING, 1, '1 is not of type "string"'),
        (STRING, ["a"], '["a"] is not of type "string"'),
        (STRING, None, 'null is not of type "string"'),
        (OBJECT, [], '[] is not of type "object"'),
        ({"type": "array", "items": {}}, 1, '1 is not of type "array"'),
        ({"minimum": 0, **INTEGER}, -1, "-1 is less than the minimum of 0"),
        ({"minimum": 1.0, **NUMBER}, 0.0, "0.0 is less than the minimum of 1.0"),
        ({"maximum": 5, **INTEGER}, 9, "9 is greater than the maximum of 5"),
        ({"maximum": 20, **NUMBER}, 10**400, f"1{'0' * 96}... is greater than the maximum of 20"),
        ({"minLength": 2, **STRING}, "a", '"a" is shorter than 2 characters'),
        ({"minLength": 1, **STRING}, "", '"" is shorter than 1 character'),
        ({"maxLength": 4, **STRING}, "abcde", '"abcde" is longer than 4 characters'),
        ({"pattern": "^[a-z]+$", **STRING}, "AB", '"AB" does not match "^[a-z]+$"'),
        ({"minItems": 1, "type": "array"}, [], "[] has less than 1 item"),
        ({"maxItems": 1, "type": "array"}, ["a", "b"], '["a","b"] has more than 1 item'),
        ({"enum": ["red", "blue"], **STRING}, "green", '"green" is not one of ["red","blue"]'),
        (
            {"anyOf": [STRING, NUMBER]},
            {},
            "{} is not valid under any of the schemas listed in the 'anyOf' keyword",
        ),
        ({"exclusiveMinimum": 0, **NUMBER}, 0, "0 is less than or equal to the minimum of 0"),
        ({"maximum": 1, "exclusiveMaximum": True, **NUMBER}, 1, "1 is greater than or equal to the maximum of 1"),
        ({"multipleOf": 3, **INTEGER}, 4, "4 is not valid"),  # no keyword of Cog's, yet enforced
    ],
)
def test_words_of_a_refusal(fragment: Fragment, value: Any, text: str) -> None:
    assert refused(fragment, value) == [("", text)]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^[a-z]+$", "abc", "abc\n"),
        ("a$|b$", "xb", "b\n"),
        (r"^\$$", "$", "$\n"),
        (r"^[$]$", "$", "a"),
        (r"^[]$]+$", "]$", "]\n"),
        (r"^[^]$]+$", "ab", "$"),
        (r"^[\]$]+$", "$]", "b"),
    ],
)
def test_a_dollar_matches_only_the_very_end(pattern: str, yes: str, no: str) -> None:
    validator = one({"pattern": pattern, **STRING})
    send(validator, {"x": yes})
    assert len(faults(validator, {"x": no})) == 1


@pytest.mark.covers("lesson:62")
def test_every_fault_in_the_order_of_the_signature() -> None:
    validator = make(
        {
            "zeta": {**INTEGER, "minimum": 0},
            "missing": STRING,
            "alpha": {"type": "array", "items": INTEGER},
            "mid": {"allOf": [{"$ref": "#/components/schemas/mid"}]},
        },
        Input("zeta", "int"),
        Input("missing", "str", required=True),
        Input("alpha", "int", many=True),
        Input("mid", "str"),
        components={"mid": {"enum": ["a", "b"], "type": "string"}},
    )
    assert faults(validator, {"mid": 1, "alpha": [1, "2", 3, 4.5], "zeta": -1}) == [
        (["body", "input", "zeta"], "-1 is less than the minimum of 0", "value_error"),
        (["body", "input", "missing"], "Field required", "value_error.missing"),
        (["body", "input", "alpha/1"], '"2" is not of type "integer"', "value_error"),
        (["body", "input", "alpha/3"], '4.5 is not of type "integer"', "value_error"),
        (["body", "input", "mid"], '1 is not of type "string"', "value_error"),
        (["body", "input", "mid"], '1 is not one of ["a","b"]', "value_error"),
    ]


def test_order_is_that_of_x_order_not_of_the_document() -> None:
    validator = make({"b": {"x-order": 1, **STRING}, "c": {"x-order": 2, **STRING}, "a": {"x-order": 0, **STRING}})
    assert [loc[-1] for loc, _, _ in faults(validator, {"b": 1, "c": 1, "a": 1})] == ["a", "b", "c"]


@pytest.mark.covers("lesson:60")
@pytest.mark.parametrize("raw", [None, b"null", b" null ", b"{}"])
def test_no_input_at_all(raw: bytes | None) -> None:
    assert one(STRING).check(raw) == Checked(b"{}", b"{}", [])
    with pytest.raises(InvalidInput) as caught:
        one(STRING, required=True).check(raw)
    assert caught.value.faults == [
        {"loc": ["body", "input", "x"], "msg": "Field required", "type": "value_error.missing"}
    ]


def test_input_of_another_shape() -> None:
    assert faults(one(STRING), [1, "a"]) == [
        (["body", "input", "__root__"], '[1,"a"] is not of type "object"', "value_error")
    ]


@pytest.mark.covers("http:W43", "D1", "lesson:60")
def test_W43_null_passes_only_where_the_table_says_so() -> None:
    nullable = one({"nullable": True, **INTEGER}, "int", nullable=True)
    raw = b'{"x":null}'
    assert nullable.check(raw) == Checked(raw, raw, [])
    assert refused({"nullable": True, **INTEGER}, "3", "int", nullable=True) == [("", '"3" is not of type "integer"')]
    # W11: a default of None accepts null, though the document says required and not nullable
    assert make({"x": INTEGER}, Input("x", "int", nullable=True), required=["x"]).check(raw).input == raw
    assert refused({"nullable": True, **INTEGER}, None, "int") == [("", 'null is not of type "integer"')]


def test_nullable_members_of_a_union() -> None:
    members = [{"nullable": True, **STRING}, {"nullable": True, "type": "array", "items": INTEGER}]
    validator = one({"anyOf": members}, "union")
    send(validator, {"x": None})
    send(validator, {"x": [1]})
    assert len(faults(validator, {"x": [1.5]})) == 1


@pytest.mark.covers("sdk:W5", "lesson:30")
@pytest.mark.parametrize("kind", ["path", "file"])
def test_W5_a_file_is_a_url(kind: str) -> None:
    validator = one(URI, kind)
    for url in ("http://h/a", "HTTPS://h/a", "Data:text/plain,a"):
        send(validator, {"x": url})
    for text in ("plain/name", "", "file:///etc/passwd", " http://h", "ftp://h/a"):
        shown = json.dumps(text)
        assert refused(URI, text, kind) == [("", f"{shown} is not a URL with the scheme http, https or data")]
    assert refused(URI, 5, kind) == [("", '5 is not of type "string"')]


@pytest.mark.covers("sdk:W6", "lesson:30")
def test_W6_files_in_a_list_one_by_one() -> None:
    fragment = {"type": "array", "items": URI}
    found = refused(fragment, ["http://h/a", "b", "data:,c", "d"], "path", many=True)
    assert [place for place, _ in found] == ["/1", "/3"]


@pytest.mark.covers("lesson:29")
def test_a_string_that_is_no_file_may_be_anything() -> None:
    raw = b'{"x":"plain/name"}'
    assert one(URI, "str").check(raw) == Checked(raw, raw, [])


def test_unknown_names_are_dropped_and_the_rest_is_not_touched() -> None:
    raw = b'{ "zz":1, "x": 1e2 ,"big":1.0000000000000000000001}'
    checked = make({"x": NUMBER, "big": NUMBER}).check(raw)
    assert checked.dropped == ["zz"]
    assert checked.input == checked.echo == b'{"x":1e2,"big":1.0000000000000000000001}'


@pytest.mark.covers("sdk:W26", "D8")
def test_W26_unknown_names_pass_for_a_callable_that_takes_them() -> None:
    raw = b'{"a":1}'
    assert make({}, extra=True).check(raw) == Checked(raw, raw, [])


def test_nothing_is_filled_in_or_changed() -> None:
    validator = one({"type": "object", "properties": {"k": {"default": 5}}, "default": {"k": 1}}, "dict")
    value = {"x": {"deep": [1.0, None]}}
    before = copy.deepcopy(value)
    raw = json.dumps(value).encode()
    assert validator.check(raw, value).input is raw
    assert value == before
    assert validator.check(b"{}").input == b"{}"


def test_null_is_shown_for_absent_inputs_in_the_echo_alone() -> None:
    validator = one(STRING, nullable=True, inject_null=True)
    assert validator.check(b"{}") == Checked(b"{}", b'{"x":null}', [])
    assert validator.check(b'{"x":"a"}').echo == b'{"x":"a"}'


@pytest.mark.covers("D42")
def test_D42_secrets_are_masked_in_the_echo() -> None:
    validator = make(
        {"key": PASSWORD, "keys": {"type": "array", "items": PASSWORD}, "none": {"nullable": True, **PASSWORD}},
        Input("key", "secret"),
        Input("keys", "secret", many=True),
        Input("none", "secret", nullable=True),
    )
    raw = b'{"key":"hunter2","keys":["a","b"],"none":null}'
    checked = validator.check(raw)
    assert checked.input is raw
    mask = "*" * 10
    assert json.loads(bytes(checked.echo)) == {"key": mask, "keys": [mask, mask], "none": None}


@pytest.mark.covers("http:W45", "lesson:62")
@pytest.mark.parametrize(
    ("fragment", "value"),
    [
        (PASSWORD, 12345),
        ({"minLength": 20, **PASSWORD}, "12345"),
        ({"pattern": "^a$", **PASSWORD}, "12345"),
        ({"type": "array", "items": PASSWORD}, ["ok", 12345]),
        ({"type": "array", "items": PASSWORD, "maxItems": 0}, ["12345"]),
        (PASSWORD, {"inner": "12345"}),
    ],
)
def test_W45_a_secret_is_never_shown(fragment: Fragment, value: Any) -> None:
    for kind in ("secret", "str"):  # told by the table or by the document
        text = repr(refused(fragment, value, kind))
        assert "12345" not in text
        assert "*" * 10 in text


@pytest.mark.covers("http:W45")
def test_W45_values_are_cut_to_100_characters() -> None:
    for value in ("a" * 10**6, ["b" * 10**6], 10**4000):
        ((_, text),) = refused(BOOLEAN, value)
        shown = text.removesuffix(' is not of type "boolean"')
        assert len(shown) == 100
        assert shown.endswith("...")


@pytest.mark.covers("http:W45")
def test_W45_choices_are_cut_to_1000_characters() -> None:
    choices = {"enum": [f"choice {n}" for n in range(5000)], **STRING}
    ((place, text),) = refused({"type": "array", "items": choices}, ["no"])
    assert place == "/0"
    assert text.startswith('"no" is not one of ["choice 0","choice 1",')
    assert text.endswith("...")
    assert len(text) < 1100


def test_a_flood_of_faults_is_bounded() -> None:
    found = faults(one({"type": "array", "items": INTEGER}), {"x": ["a"] * 5000})
    assert len(found) == MAX_FAULTS + 1
    assert found[-1][1] == "there are more faults than these"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"{}x", b"[1,]", b'{"x":NaN}', b'{"x":1e400}', b'{"x":"\\ud800"}', b"\xff", b'{"x":"\xff"}'],
)
def test_what_is_no_json(raw: bytes) -> None:
    with pytest.raises(MalformedInput):
        decode_input(raw)
    with pytest.raises(MalformedInput):
        one(STRING).check(raw)


@pytest.mark.covers("D15")
def test_D15_numbers_too_long_and_nesting_too_deep() -> None:
    for raw in (b'{"x":1' + b"0" * 5000 + b"}", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        with pytest.raises(MalformedInput):
            one(INTEGER).check(raw)
    raw = b'{"x":1' + b"0" * 4299 + b"}"
    assert one(INTEGER).check(raw).input is raw


def test_a_value_nested_as_deep_as_can_be_is_refused_in_words() -> None:
    for depth in (*range(700, 1100), *range(1100, 12_000, 100)):  # the limit differs between versions of Python
        raw = b'{"x":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises((InvalidInput, MalformedInput)):
            one(INTEGER).check(raw)


def test_a_step_that_overflows_is_no_foreign_error() -> None:
    validator = one({"multipleOf": 0.5, **NUMBER})
    try:
        send(validator, {"x": 10**400})  # how it is taken differs between versions of the library
    except InvalidInput as refusal:
        assert [fault["msg"][-13:] for fault in refusal.faults] == [" is not valid"]  # noqa: PT017


def test_inputs_that_only_the_document_knows() -> None:
    validator = make({"a": {"nullable": True, **STRING}, "b": STRING, "c": PASSWORD}, required=["b"])
    assert [loc[-1] for loc, _, _ in faults(validator, {"a": None})] == ["b"]
    assert json.loads(bytes(validator.check(b'{"b":"x","c":"y"}').echo)) == {"b": "x", "c": "*" * 10, "a": None}


def test_a_schema_that_contains_itself() -> None:
    tree = {
        "type": "object",
        "properties": {"l": {"$ref": "#/components/schemas/T"}, "r": {"$ref": "#/components/schemas/T"}},
    }
    validator = make({"x": {"$ref": "#/components/schemas/T"}}, components={"T": tree})
    send(validator, {"x": {"l": {"l": 5}}})
    assert len(faults(validator, {"x": 5})) == 1


@pytest.mark.parametrize(
    "fragment",
    [
        {"pattern": "(", **STRING},
        {"$ref": "#/components/schemas/none"},
        {"type": "no such type"},
        {"minimum": "a", **INTEGER},
    ],
)
def test_a_schema_that_cannot_be_compiled_names_the_input(fragment: Fragment) -> None:
    with pytest.raises(UnusableSchema, match="'x'"):
        one(fragment)


def test_a_document_without_the_component() -> None:
    with pytest.raises(UnusableSchema, match="TrainingInput"):
        Validator({}, Inputs("TrainingInput"))


def test_names_that_are_no_identifiers() -> None:
    names = {"a b": INTEGER, 'q"': INTEGER, "{x}": INTEGER, "__proto__": INTEGER, "": INTEGER}
    validator = make(names)
    raw = json.dumps(dict.fromkeys(names, 1)).encode()
    assert validator.check(raw).input is raw
    assert [loc[-1] for loc, _, _ in faults(validator, dict.fromkeys(names, "1"))] == list(names)


def test_loc_holds_strings_only_and_is_a_json_pointer_below_the_input() -> None:
    nested = {"type": "object", "properties": {"a/b~": {"type": "array", "items": INTEGER}}, "required": ["c"]}
    found = faults(make({"x": {"type": "array", "items": nested}}), {"x": [{"a/b~": [1, "2"]}]})
    assert sorted(loc for loc, _, _ in found) == [["body", "input", "x/0/a~1b~0/1"], ["body", "input", "x/0/c"]]


def test_the_walk_that_explains_a_refusal_ends_at_its_bound() -> None:
    validator = one({"type": "array", "items": INTEGER}, "list")
    early = [1] * 10 + ["a"] + [1] * MAX_WALKED
    assert faults(validator, {"x": early}) == [
        (["body", "input", "x/10"], '"a" is not of type "integer"', "value_error")
    ]
    late = [1] * (2 * MAX_WALKED) + ["a"]
    ((loc, text, _),) = faults(validator, {"x": late})
    assert loc == ["body", "input", "x"]
    assert text.endswith("... is not valid")


@pytest.mark.parametrize("value", [["x" * 10**6] * 100, {"k" * 10**6: 1}, [[[1] * 1000] * 1000] * 10, "x" * 10**7])
def test_only_the_beginning_of_a_refused_value_is_encoded(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = 0
    encode = compiled_schema._json

    def counted(value: Any) -> str:
        nonlocal encoded
        text = encode(value)
        encoded += len(text)
        return text

    monkeypatch.setattr(compiled_schema, "_json", counted)
    ((_, text),) = refused(INTEGER, value, "int")
    assert text.endswith('... is not of type "integer"')
    assert encoded < 20_000
