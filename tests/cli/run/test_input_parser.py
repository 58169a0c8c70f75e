"""Texts of the command line become inputs by the type of each input, and every fault is told by its name."""

from __future__ import annotations

from typing import Any

import pytest

from cog_trio.cli.run.input_parser import PIECE, BadInputs, InputParser, json_object, pair
from cog_trio.cli.run.output_writer import decode_data_url

SCHEMA: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "scale": {"type": "number"},
    "flag": {"type": "boolean"},
    "maybe": {"type": "integer", "nullable": True},
    "maybe_text": {"type": "string", "nullable": True},
    "color": {"allOf": [{"$ref": "#/components/schemas/color"}], "default": "red"},
    "size": {"allOf": [{"$ref": "#/components/schemas/size"}]},
    "image": {"type": "string", "format": "uri"},
    "images": {"type": "array", "items": {"type": "string", "format": "uri"}},
    "words": {"type": "array", "items": {"type": "string"}},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "sizes": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/size"}]}},
    "options": {"type": "object"},
    "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
    "any": {},
    "key": {"type": "string", "format": "password", "x-cog-secret": True},
}
DOCUMENT: dict[str, Any] = {
    "components": {
        "schemas": {
            "Input": {"properties": SCHEMA},
            "color": {"type": "string", "enum": ["red", "blue"]},
            "size": {"type": "integer", "enum": [1, 2]},
        }
    }
}
FILES = {
    "cat.png": b"\x89PNG",
    "poem.txt": b"the sea\n",
    "key.txt": b"s3cret\n",
    "options.json": b'{"a": 1}\n',
    "raw.bin": b"\xff\xfe",
    "-": b"from stdin",
}


def _read(source: str) -> bytes:
    try:
        return FILES[source]
    except KeyError:
        raise FileNotFoundError(2, "No such file or directory") from None


def _build(*texts: str, given: dict[str, Any] | None = None, document: dict[str, Any] = DOCUMENT) -> dict[str, Any]:
    return InputParser.of(document, "predict").build([pair(text) for text in texts], given or {}, _read)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("text=5", "5"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ("text=null", "null"),
        ("text=[1]", "[1]"),
        ("text=@poem.txt", "the sea\n"),
        ("text=@-", "from stdin"),
        ("text=@@alice hello", "@alice hello"),
        ("count=5", 5),
        ("count=-7", -7),
        ("count=1e3", 1000),
        (f"count={10**40}", 10**40),
        ("scale=5", 5),
        ("scale=0.5", 0.5),
        ("flag=true", True),
        ("flag=No", False),
        ("flag=1", True),
        ("maybe=null", None),
        ("maybe=3", 3),
        ("maybe_text=null", "null"),
        ("color=blue", "blue"),
        ("size=2", 2),
        ("image=@cat.png", "data:image/png;base64,iVBORw=="),
        ("image=https://host/a.png", "https://host/a.png"),
        ("image=DATA:,x", "DATA:,x"),
        ("image=@-", "data:application/octet-stream;base64,ZnJvbSBzdGRpbg=="),
        ("images=@cat.png", ["data:image/png;base64,iVBORw=="]),
        ('images=["@cat.png", "https://h/b"]', ["data:image/png;base64,iVBORw==", "https://h/b"]),
        ("words=one", ["one"]),
        ("words=[not json", ["[not json"]),
        ('words=["one", "two"]', ["one", "two"]),
        ("numbers=[]", []),
        ("numbers=4", [4]),
        ("sizes=2", [2]),
        ('options={"a": 1}', {"a": 1}),
        ("options=@options.json", {"a": 1}),
        ("either=5", 5),
        ("either=five", "five"),
        ("any=5", 5),
        ("any=hello", "hello"),
        ('any={"a": [1]}', {"a": [1]}),
        ("key=abc", "abc"),
        ("key=@key.txt", "s3cret"),
    ],
)
def test_text_becomes_what_its_input_is(text: str, value: Any) -> None:
    (built,) = _build(text).values()
    assert built == value
    assert type(built) is type(value)


def test_a_name_that_comes_again_makes_a_list() -> None:
    assert _build("words=a", "count=1", "words=b") == {"words": ["a", "b"], "count": 1}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("count=many", "count: must be a whole number, not 'many'"),
        ("count=1.5", "count: must be a whole number, not '1.5'"),
        ("scale=nan", "scale: must be a finite number, not 'nan'"),
        ("scale=x", "scale: must be a number, not 'x'"),
        ("flag=maybe", "flag: must be true or false, not 'maybe'"),
        ("size=big", "size: must be a whole number, not 'big'"),
        ("options=[1]", "options: must be a JSON object, not '[1]'"),
        ("numbers=a", "numbers: must be a whole number, not 'a'"),
        (
            "image=cat.png",
            "image: takes a file: write @cat.png to send one from here, or a URL (http, https, data)",
        ),
        (
            "image=@gone.png",
            "image: gone.png can't be read: No such file or directory; a text that begins with @ is written with @@",
        ),
        ("text=@raw.bin", "text: raw.bin is not UTF-8 text, which this input needs"),
        ("any=1e999", "any: holds a number that is out of range"),
        ("text=\udc80", "text: is not UTF-8 text"),
        ("txt=1", "txt: the model has no such input; did you mean text?"),
    ],
)
def test_fault_is_one_line_that_names_the_input(text: str, fault: str) -> None:
    with pytest.raises(BadInputs) as caught:
        _build(text)
    assert caught.value.faults == (fault,)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(BadInputs) as caught:
        _build("count=x", "flag=x", "count_=1", "text=a", "text=b")
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["count", "flag", "count_", "text"]
    assert caught.value.faults[-1] == "text: given 2 times, but it takes one value"


@pytest.mark.covers("D42")
def test_D42_the_text_of_a_secret_is_in_no_fault() -> None:
    document = {
        "components": {"schemas": {"Input": {"properties": {"key": {"type": "integer", "x-cog-secret": True}}}}}
    }
    with pytest.raises(BadInputs) as caught:
        _build("key=hunter2", document=document)
    assert "hunter2" not in str(caught.value)


def test_json_passes_as_it_is_but_for_files() -> None:
    given = {"text": "@poem.txt", "image": "@cat.png", "images": ["@cat.png"], "count": 1.5}
    assert _build(given=given) == {
        "text": "@poem.txt",
        "image": "data:image/png;base64,iVBORw==",
        "images": ["data:image/png;base64,iVBORw=="],
        "count": 1.5,
    }


def test_a_flag_wins_over_json() -> None:
    assert _build("count=2", given={"count": 1, "text": "a"}) == {"count": 2, "text": "a"}


def test_a_model_of_any_inputs_takes_any_name() -> None:
    document = {"components": {"schemas": {"Input": {"properties": {}, "additionalProperties": True}}}}
    assert _build("a=1", "b=x", document=document) == {"a": 1, "b": "x"}


def test_training_inputs_are_another_component() -> None:
    document = {"components": {"schemas": {"TrainingInput": {"properties": {"epochs": {"type": "integer"}}}}}}
    assert InputParser.of(document, "train").build([("epochs", "3")], {}, _read) == {"epochs": 3}


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_a_pair_without_name_or_sign_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not name=value"):
        pair(text)


@pytest.mark.parametrize("text", ['{"a": 1}', "@a.json", "@-", "-"])
def test_json_comes_from_argument_file_or_stdin(text: str) -> None:
    sources = {"a.json": b'{"a": 1}', "-": b'{"a": 1}'}
    assert json_object(text, lambda source: sources[source]) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "--json is not valid JSON: "),
        ("[1]", "--json must be an object of inputs"),
        ("@gone.json", "--json: gone.json can't be read: No such file"),
        ("@raw.bin", "--json: raw.bin is not UTF-8"),
        ('{"a": NaN}', "--json is not valid JSON: NaN is not a JSON number"),
    ],
)
def test_json_that_is_none_is_one_line(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="^" + fault.replace(".", r"\.")):
        json_object(text, _read)


def test_deep_json_is_refused_not_crashed() -> None:
    with pytest.raises(ValueError, match="--json is not valid JSON"):
        json_object('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", _read)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 2])
def test_a_file_of_any_size_is_whole(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    url = InputParser.of(DOCUMENT, "predict").build([("image", "@x.png")], {}, lambda _: content[:size])["image"]
    assert decode_data_url(url) == content[:size]
