"""The compatibility checklist: what each signature advertises, takes and refuses.

A row's values go through all three parts that decide about an input: the edge's checks, the worker's conversion, and
the binding of defaults.
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest.mark import ParameterSet

import cog_trio.sdk as cog
from tests.sdk.source import Models, arguments, input_of, is_listed, output_of, refusal

S = {"type": "string"}
I = {"type": "integer"}  # noqa: E741
N = {"type": "number"}
B = {"type": "boolean"}
O = {"type": "object"}  # noqa: E741
U = {"type": "string", "format": "uri"}
SECRET = {"type": "string", "format": "password", "writeOnly": True, "x-cog-secret": True}
ENUM = {"allOf": [{"$ref": "#/components/schemas/x"}]}


def array(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


OMIT = object()


def numbered(label: str, *values: Any) -> ParameterSet:
    """Parameters of a test that shows the rows in their label: ``07-W12`` is row 7 and weakness W12."""
    numbers = re.findall(r"^\d\d|(?<=-)W\d+", label)
    rows = [f"sdk:{number if number[0] == 'W' else int(number)}" for number in numbers]
    return pytest.param(*values, id=f"row-{label}", marks=pytest.mark.covers(*rows))


@dataclass
class Row:
    number: str
    parameter: str
    fragment: dict[str, Any]
    required: bool
    good: list[tuple[Any, Any]] = field(default_factory=list)
    bad: list[Any] = field(default_factory=list)
    before: str = ""
    enum: list[Any] | None = None


AB = ["a", "b"]
TD = "class Payload(TypedDict):\n    a: int"
COLOR = "class Color(str, enum.Enum):\n    R = 'r'\n    G = 'g'"
D = "D = {'a': 1, 'b': 2}\nclass E(enum.Enum):\n    A = 'a'\n    B = 'b'"

ROWS = [
    Row(
        "01", "x: str", S, True, [("a", "a"), ("", ""), ("https://h/a.png", "https://h/a.png")], [1, None, ["a"], OMIT]
    ),
    Row("02", "x: int", I, True, [(1, 1), (1.0, 1), (10**20, 10**20)], [1.5, "3", True, None]),
    Row("03", "x: float", N, True, [(1.5, 1.5), (1, 1.0)], ["1.5", True]),
    Row("04", "x: bool", B, True, [(True, True)], [1, "true", 0]),
    Row("05", "x: int = 7", {**I, "default": 7}, False, [(OMIT, 7)], [None]),
    Row("05-str", "x: str = ''", {**S, "default": ""}, False, [(OMIT, "")], [None]),
    Row("05-float", "x: float = 3", {**N, "default": 3}, False, [(OMIT, 3.0)], [None]),
    Row("06", "x: int = Input()", I, True, [(1, 1)], [OMIT]),
    Row("06-text", "x: int = Input(description='d')", {**I, "description": "d"}, True, [(1, 1)], [OMIT]),
    Row("06-empty", "x: int = Input(..., description='')", {**I, "description": ""}, True, [(1, 1)], [OMIT]),
    Row("07", "x: int = Input(3)", {**I, "default": 3}, False, [(OMIT, 3)]),
    Row("07-W12", "x: int = Input(default=N + 1)", {**I, "default": 3}, False, [(OMIT, 3)], before="N = 2"),
    Row("08-W11", "x: int = Input(default=None)", I, True, [(OMIT, None), (None, None), (2, 2)], ["a"]),
    Row("08-plain", "x: str = None", S, True, [(OMIT, None), (None, None)], [1]),
    Row("08-secrets", "x: list[Secret] = None", array(SECRET), True, [(OMIT, None), (None, None)]),
    Row(
        "09",
        "x: Optional[int] = None",
        {**I, "default": None, "nullable": True},
        False,
        [(OMIT, None), (3, 3), (None, None)],
        ["3"],
    ),
    Row("10", "x: Optional[str]", {**S, "nullable": True}, False, [(OMIT, None)], [1]),
    Row(
        "10-text",
        "x: str | None = Input(description='d')",
        {**S, "nullable": True, "description": "d"},
        False,
        [(OMIT, None)],
        [1],
    ),
    Row("11", "x: Optional[int] = 5", {**I, "default": 5, "nullable": True}, False, [(OMIT, 5), (None, None)]),
    Row("11-none-first", "x: Union[None, str] = None", {**S, "default": None, "nullable": True}, False, [(OMIT, None)]),
    Row(
        "12",
        "x: int = Input(default=5, ge=1, le=10)",
        {**I, "default": 5, "minimum": 1, "maximum": 10},
        False,
        [(1, 1), (10, 10)],
        [0, 11],
    ),
    Row("12-big", "x: int = Input(le=2**70)", {**I, "maximum": 2**70}, True, [(2**70, 2**70)], [2**70 + 1]),
    Row("12-infinite", "x: float = Input(ge=float('-inf'), le=float('inf'))", N, True, [(1e300, 1e300)]),
    Row(
        "12-numpy",
        "x: float = Input(default=np.float32(1.5), ge=np.float32(0.5), le=np.int64(3))",
        {**N, "default": 1.5, "minimum": 0.5, "maximum": 3},
        False,
        [(OMIT, 1.5)],
        [0.25, 4],
        before="import numpy as np",
    ),
    Row("05-numpy", "x: int = np.int64(4)", {**I, "default": 4}, False, [(OMIT, 4)], before="import numpy as np"),
    Row("12-float", "x: float = Input(ge=0.5)", {**N, "minimum": 0.5}, True, [(0.5, 0.5)], [0.4]),
    Row(
        "14",
        "x: str = Input(min_length=2, max_length=4)",
        {**S, "minLength": 2, "maxLength": 4},
        True,
        [("ab", "ab"), ("éé", "éé")],
        ["a", "abcde"],
    ),
    Row(
        "15", "x: str = Input(regex='^[a-z]+$')", {**S, "pattern": "^[a-z]+$"}, True, [("abc", "abc")], ["ABC", "abc\n"]
    ),
    Row(
        "15-compiled",
        "x: str = Input(regex=re.compile('^a+$', re.IGNORECASE))",
        {**S, "pattern": "(?i)^a+$"},
        True,
        [("AA", "AA")],
        ["b", "a\n"],
        before="import re",
    ),
    Row("15-search", "x: str = Input(regex='[a-z]+')", {**S, "pattern": "[a-z]+"}, True, [("1a2", "1a2")], ["ABC"]),
    Row("16", "x: str = Input(choices=['a', 'b'])", ENUM, True, [("a", "a")], ["c", None, 1], enum=AB),
    Row(
        "17",
        "x: int = Input(default=1, choices=[1, 2])",
        {**ENUM, "default": 1},
        False,
        [(2, 2), (2.0, 2), (OMIT, 1)],
        [3, "2"],
        enum=[1, 2],
    ),
    Row(
        "18",
        "x: Optional[str] = Input(default=None, choices=['a', 'b'])",
        {**ENUM, "default": None, "nullable": True},
        False,
        [(OMIT, None), ("a", "a"), (None, None)],
        ["c"],
        enum=AB,
    ),
    Row("19", "x: str = Input(choices=['a'])", ENUM, True, [("a", "a")], ["b"], enum=["a"]),
    Row("19-empty", "x: str = Input(choices=[])", S, True, [("q", "q")]),
    Row("20-keys", "x: str = Input(choices=D.keys())", ENUM, True, [("a", "a")], ["c"], before=D, enum=AB),
    Row("20-tuple", "x: str = Input(choices=('a', 'b'))", ENUM, True, [("a", "a")], ["c"], enum=AB),
    Row(
        "20-values", "x: str = Input(choices=[e.value for e in E])", ENUM, True, [("a", "a")], ["c"], before=D, enum=AB
    ),
    Row("20-enum", "x: str = Input(choices=E)", ENUM, True, [("a", "a")], ["c"], before=D, enum=AB),
    Row("22", "x: list[str] = Input(choices=['a', 'b'])", array(ENUM), True, [(AB, AB), ([], [])], [["c"]], enum=AB),
    Row(
        "23",
        "x: list[int] = Input(default=[1], ge=0)",
        array({**I, "minimum": 0}, default=[1]),
        False,
        [([0], [0]), (OMIT, [1])],
        [[-1]],
    ),
    Row("24", "x: list[int]", array(I), True, [([1, 2], [1, 2]), ([], []), ([1.0], [1])], [[1.5], ["1"], 1, None]),
    Row("24-typing", "x: List[int]", array(I), True, [([1], [1])]),
    Row("26", "x: list[dict]", array(O), True, [([{"a": 1}], [{"a": 1}])], [[1]]),
    Row("26-optional", "x: Optional[list[str]]", array(S, nullable=True), False, [(OMIT, None)], ["a"]),
    Row("27-W15", "x: list", array({}), True, [([1, "a"], [1, "a"])], [1]),
    Row("27-typing", "x: List", array({}), True),
    Row("27-any", "x: list[Any]", array({}), True, [([1, None], [1, None])]),
    Row("28", "x: dict", O, True, [({"a": 1}, {"a": 1}), ({}, {})], [[], 1]),
    Row("28-typing", "x: Dict[str, Any]", O, True),
    Row("28-not-checked", "x: dict[str, int]", O, True, [({"a": "not checked"}, {"a": "not checked"})]),
    Row("30", "x: Payload", O, True, [({"any": 1}, {"any": 1})], [[]], before=TD),
    Row(
        "30-list",
        "x: list[Payload] | None = None",
        array(O, default=None, nullable=True),
        False,
        [([{"any": 1}], [{"any": 1}])],
        before=TD,
    ),
    Row("31-W15", "x: Any", {}, True, [(1, 1), ("s", "s"), ({}, {}), (None, None)], [OMIT]),
    Row("33-list", "x: Annotated[list['Nowhere'], Opaque]", array(O), True),
    Row("33-optional", "x: Optional[Annotated['Nowhere', Opaque]]", {**O, "nullable": True}, False),
    Row("33-inside", "x: list[Annotated['Nowhere', Opaque]]", array(O), True),
    Row("33-around", "x: Annotated[Optional[int], Opaque]", {**O, "nullable": True}, False),
    Row("33-str", "x: Annotated[str, Opaque]", O, True),
    Row("33-doc", "x: Annotated[str, 'doc']", S, True, [("a", "a")]),
    Row("34", "x: str | float", {"anyOf": [S, N]}, True, [("a", "a"), (1.5, 1.5), (1, 1)], [True, None, {}]),
    Row(
        "35-W9",
        "x: str | float | None = Input(default=None)",
        {"anyOf": [{**S, "nullable": True}, {**N, "nullable": True}], "nullable": True, "default": None},
        False,
        [(OMIT, None), (None, None)],
        [True, {"a": 1}],
    ),
    Row(
        "36",
        "x: str | int | None = Input(description='d')",
        {"anyOf": [{**S, "nullable": True}, {**I, "nullable": True}], "nullable": True, "description": "d"},
        True,
        [("a", "a"), (1, 1)],
        [OMIT, 1.5, True],
    ),
    Row(
        "37",
        "x: list[int] | list[float]",
        {"anyOf": [array(I), array(N)]},
        True,
        [([1], [1]), ([1.5], [1.5]), ([], [])],
        [["3"], [True], 1],
    ),
    Row("39", "x: Literal['a', 'b']", ENUM, True, [("a", "a")], ["c"], enum=AB),
    Row("39-int", "x: Literal[1, 2] = 1", {**ENUM, "default": 1}, False, [(2, 2), (OMIT, 1)], [3], enum=[1, 2]),
    Row(
        "39-none",
        "x: Literal['a', None] = None",
        {**ENUM, "default": None, "nullable": True},
        False,
        [("a", "a"), (None, None)],
        ["b"],
        enum=["a"],
    ),
    Row("39-enum", "x: Color = Color.R", {**ENUM, "default": "r"}, False, [], ["q"], before=COLOR, enum=["r", "g"]),
    Row("40-W5", "x: Path", U, True, [], [5, "", "plain/name", "file:///etc/passwd"]),
    Row("41-W6", "x: list[Path]", array(U), True, [([], [])], [["data:,a", "name"]]),
    Row("42", "x: Path = Input(default='https://h/a.png')", {**U, "default": "https://h/a.png"}, False),
    Row(
        "42-W3",
        "x: Path = Path('a.png')",
        {**U, "default": "a.png"},
        False,
        [(OMIT, cog.Path("a.png"))],
    ),
    Row("43-W8", "x: pathlib.Path", U, True, [], ["name"]),
    Row("44", "x: Optional[File] = None", {**U, "nullable": True, "default": None}, False, [(OMIT, None)], ["name"]),
    Row("45", "x: Path = Input(accept='image/*')", {**U, "x-cog-accept": "image/*"}, True),
    Row("45-list", "x: list[Path] = Input(accept='image/*')", array(U, **{"x-cog-accept": "image/*"}), True),
    Row("46", "x: Secret", SECRET, True, [("k", cog.Secret("k"))], [5]),
    Row(
        "47",
        "x: Secret = Input(default=None)",
        {**SECRET, "default": None, "nullable": True},
        False,
        [(OMIT, None), (None, None)],
    ),
    Row("47-W7", "x: list[Secret]", array(SECRET), True, [(["a"], [cog.Secret("a")])]),
    Row("47-default", "x: Secret = Input(default='hidden')", SECRET, False, [(OMIT, cog.Secret("hidden"))]),
]


@pytest.mark.parametrize("row", [numbered(row.number, row) for row in ROWS])
def test_row(row: Row, models: Models) -> None:
    model = models.run(row.parameter, row.before)
    assert input_of(model) == row.fragment
    assert is_listed(model) == row.required
    schemas = model.document["components"]["schemas"]
    if row.enum is not None:
        kind = {str: "string", int: "integer"}[type(row.enum[0])]
        assert schemas["x"] == {"title": "x", "description": "An enumeration.", "enum": row.enum, "type": kind}
    else:
        assert "x" not in schemas
    has_title = "title" in schemas["Input"]["properties"]["x"]
    assert has_title == ("allOf" not in row.fragment)
    for given, expected in row.good:
        found = arguments(model, {} if given is OMIT else {"x": given})["x"]
        assert found == expected
        assert type(found) is type(expected)
    for given in row.bad:
        assert refusal(model, {} if given is OMIT else {"x": given})


@dataclass
class Refused:
    number: str
    parameter: str
    error: type[Exception]
    texts: list[str]
    before: str = ""


REFUSED = [
    Refused("13", "x: int = Input(default=1, ge=2)", ValueError, ["invalid", "minimum"]),
    Refused("21", "x: str = Input(default='z', choices=['a', 'b'])", ValueError, ["invalid", "choices"]),
    Refused("38-union", "x: str | int = Input(ge=1)", TypeError, ["constraints and choices", "ge"]),
    Refused("38-path", "x: str | Path", TypeError, ["unsupported input type", "cannot be part of a union"]),
    Refused("38-nested", "x: list[list[str]]", TypeError, ["unsupported input type list[list[str]]", "supported:"]),
    Refused("38-tuple", "x: tuple[int, int]", TypeError, ["unsupported input type"]),
    Refused("38-model", "x: M", TypeError, ["unsupported input type M"], "class M(BaseModel):\n    a: int"),
    Refused("38-untyped", "x", TypeError, ["no type annotation", "x: Any"]),
    Refused("38-untyped-default", "x=3", TypeError, ["no type annotation"]),
    Refused("38-object", "x: object", TypeError, ["unsupported input type object"]),
    Refused("38-none", "x: None", TypeError, ["unsupported input type None"]),
    Refused("38-bytes", "x: bytes", TypeError, ["unsupported input type bytes"]),
    Refused("38-optional-element", "x: list[Optional[int]]", TypeError, ["unsupported input type"]),
    Refused("38-iterator", "x: Iterator[str]", TypeError, ["unsupported input type Iterator[str]"]),
    Refused("38-mixed-literal", "x: Literal['a', 1]", TypeError, ["unsupported input type"]),
    Refused("38-missing-name", "x: 'Nowhere'", TypeError, ["Nowhere", "Opaque"]),
    Refused("38-missing-part", "x: 'list[nowhere.Thing]'", TypeError, ["nowhere.Thing", "Opaque"]),
    Refused("38-enum-in-union", "x: Color | int", TypeError, ["cannot be part of a union"], COLOR),
    Refused("45", "x: str = Input(accept='text/plain')", ValueError, ["accept is only valid on Path or File inputs"]),
    Refused("15", "x: str = Input(regex='[')", ValueError, ["invalid regex"]),
    Refused("16-none-fits", "x: int = Input(choices=['a'])", ValueError, ["none of the choices"]),
    Refused("13-type", "x: int = Input(default='a')", ValueError, ["invalid", "integer"]),
    Refused("13-bool", "x: int = True", ValueError, ["invalid", "integer"]),
    Refused("13-length", "x: str = Input(default='abc', max_length=2)", ValueError, ["invalid", "maxLength"]),
    Refused("13-pattern", "x: str = Input(default='a\\n', regex='^a$')", ValueError, ["invalid", "pattern"]),
    Refused("13-element", "x: list[int] = Input(default=[1, -1], ge=0)", ValueError, ["element 1", "minimum"]),
    Refused("13-union", "x: str | int = 1.5", ValueError, ["invalid", "union"]),
    Refused("12-no-number", "x: int = Input(default=1, ge='a')", ValueError, ["ge must be a finite number", "'a'"]),
    Refused("12-nan", "x: float = Input(le=float('nan'))", ValueError, ["le must be a finite number"]),
    Refused("12-never", "x: float = Input(ge=float('inf'))", ValueError, ["ge must be a finite number"]),
    Refused("14-fraction", "x: str = Input(min_length=2.5)", ValueError, ["min_length must be a whole number"]),
    Refused("14-negative", "x: str = Input(max_length=-1)", ValueError, ["max_length must be a whole number"]),
    Refused("15-no-text", "x: str = Input(regex=5)", ValueError, ["invalid regex 5"]),
    Refused("45-no-text", "x: Path = Input(accept=5)", ValueError, ["accept must be a text, got int"]),
    Refused("06-surrogate", "x: int = Input(description='\\ud800')", ValueError, ["description", "surrogate"]),
    Refused("16-surrogate", "x: str = Input(choices=['\\ud800'])", ValueError, ["a choice", "surrogate"]),
    Refused("16-nan", "x: float = Input(choices=[float('nan')])", ValueError, ["none of the choices"]),
    Refused("17-bool", "x: int = Input(choices=[1, 2], default=True)", ValueError, ["invalid default"]),
]


@pytest.mark.parametrize("row", [numbered(row.number, row) for row in REFUSED])
def test_refused_at_load(row: Refused, models: Models) -> None:
    with pytest.raises(row.error) as caught:
        models.run(row.parameter, row.before)
    assert re.search(r"\bx\b", str(caught.value))
    for text in row.texts:
        assert text in str(caught.value)


@pytest.mark.covers("sdk:5")
def test_row_05_unknown_inputs_are_dropped(models: Models) -> None:
    assert arguments(models.run("x: int = 7"), {"zz": 1}) == {"x": 7}


@pytest.mark.covers("sdk:6")
def test_row_06_missing_required(models: Models) -> None:
    assert refusal(models.run("x: int = Input()"), {}) == [
        (["body", "input", "x"], "Field required", "value_error.missing")
    ]


@pytest.mark.covers("sdk:W28", "sdk:23")
def test_row_23_W28_place_of_an_element(models: Models) -> None:
    model = models.run("x: list[int] = Input(default=[1], ge=0)")
    assert refusal(model, {"x": [-1]})[0][0] == ["body", "input", "x/0"]


@pytest.mark.covers("sdk:W2", "sdk:25")
def test_row_25_W2_defaults_are_fresh_for_each_call(models: Models) -> None:
    model = models.run("x: list[str] = Input(default=['q'])")
    arguments(model, {})["x"].append("w")
    assert arguments(model, {}) == {"x": ["q"]}


@pytest.mark.covers("sdk:W2", "sdk:29")
def test_row_29_W2_dict_defaults_are_fresh_too(models: Models) -> None:
    model = models.run("x: dict = Input(default={'k': [1]})")
    assert input_of(model) == {**O, "default": {"k": [1]}}
    arguments(model, {})["x"]["k"].append(2)
    assert arguments(model, {}) == {"x": {"k": [1]}}


ROW_32 = """\
from __future__ import annotations
from typing import TYPE_CHECKING, Annotated, Any, Optional
from cog import BaseRunner, Opaque, Path
if TYPE_CHECKING:
    from nowhere import Foo
class Runner(BaseRunner):
    def run(self, x: Annotated[Foo, Opaque], p: Optional[Path] = None) -> Any:
        return x
"""


@pytest.mark.covers("sdk:W4", "sdk:32")
def test_row_32_W4_one_missing_name_spoils_nothing_else(models: Models) -> None:
    from cog_trio.worker.model.load import load_model

    model = load_model(models.write(ROW_32))
    assert input_of(model) == O
    assert input_of(model, "p") == {**U, "nullable": True, "default": None}
    assert [parameter.kind for parameter in model.parameters] == ["dict", "path"]


@pytest.mark.covers("sdk:39")
def test_row_39_values_become_members(models: Models) -> None:
    model = models.run("x: Color = Color.R", COLOR)
    (parameter,) = model.parameters
    assert parameter.enum is not None
    assert arguments(model, {"x": "g"})["x"] is parameter.enum("g")
    assert arguments(model, {})["x"] is parameter.enum("r")


@pytest.mark.covers("sdk:W8", "sdk:43")
def test_row_43_W8_default_of_pathlib_is_our_path(models: Models) -> None:
    (value,) = arguments(models.run("x: pathlib.Path = pathlib.Path('a.png')"), {}).values()
    assert type(value) is cog.Path
    assert isinstance(value, pathlib.Path)


@pytest.mark.covers("sdk:46")
def test_row_46_texts_never_show_the_value(models: Models) -> None:
    assert "5" not in str(refusal(models.run("x: Secret"), {"x": 5}))
    with pytest.raises(ValueError, match="invalid default: ") as caught:
        models.run("x: Secret = Input(default=77)")
    assert "77" not in str(caught.value)


@pytest.mark.covers("sdk:W26", "sdk:48")
def test_row_48_W26_unknown_inputs_pass_through_kwargs(models: Models) -> None:
    model = models.run("**kwargs")
    component = model.document["components"]["schemas"]["Input"]
    assert component == {"title": "Input", "type": "object", "properties": {}, "additionalProperties": True}
    assert arguments(model, {"a": 1}) == {"a": 1}


@pytest.mark.covers("sdk:W27", "sdk:49")
def test_row_49_W27_kinds_of_parameters(models: Models) -> None:
    model = models.run("a: int, /, b: int = 2, *, c: int = Input(default=4)")
    assert model.bind({"a": 1}) == ([1], {"b": 2, "c": 4})
    args, kwargs = model.bind({"a": 1})
    assert model.call(*args, **kwargs)["c"] == 4


@pytest.mark.covers("sdk:W27", "sdk:49")
@pytest.mark.parametrize("decorator", ["staticmethod", "classmethod"])
def test_row_49_W27_methods_without_self(decorator: str, models: Models) -> None:
    first = "cls, " if decorator == "classmethod" else ""
    model = models.load(
        f"class Runner:\n    @{decorator}\n    def run({first}a: int = Input(default=4)) -> int:\n        return a\n"
    )
    assert model.call(**arguments(model, {})) == 4


ROW_50 = """\
def wrap(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
class Runner(BaseRunner):
    @wrap
    def run(self, x: int = Input(default=4)) -> int:
        return x
"""


@pytest.mark.covers("sdk:W1", "sdk:50")
def test_row_50_W1_decorated_run_gets_values(models: Models) -> None:
    model = models.load(ROW_50)
    assert input_of(model) == {**I, "default": 4}
    assert model.call(**arguments(model, {})) == 4


@pytest.mark.covers("sdk:50")
def test_row_50_a_wrapper_without_wraps_is_looked_through(models: Models) -> None:
    model = models.load(ROW_50.replace("@functools.wraps(function)", "#"))
    assert model.call(**arguments(model, {})) == 4


@pytest.mark.covers("sdk:50")
def test_row_50_a_wrapper_that_hides_all_recommends_wraps(models: Models) -> None:
    hidden = ROW_50.replace("@functools.wraps(function)", "other = print").replace(
        "return function(", "other(); return function("
    )
    with pytest.raises(TypeError, match=r"functools\.wraps"):
        models.load(hidden)


@pytest.mark.covers("sdk:51")
def test_row_51_no_inputs(models: Models) -> None:
    model = models.load("class Runner:\n    def run(self) -> int:\n        return 1\n")
    assert model.document["components"]["schemas"]["Input"] == {"title": "Input", "type": "object", "properties": {}}
    assert arguments(model, {}) == {}


MODEL = """\
class M(BaseModel):
    p: Path
    n: Optional[int]
    d: int = 3
class Node(BaseModel):
    next: Optional["Node"] = None
    m: M
class T(TypedDict):
    a: int
    b: NotRequired[str]
"""
M = {
    "type": "object",
    "properties": {
        "p": {**U, "title": "P"},
        "n": {**I, "nullable": True, "title": "N"},
        "d": {**I, "title": "D"},
    },
    "required": ["p"],
}
OUTPUTS = [
    ("52", "list[str]", array(S)),
    ("53", "Iterator[str]", array(S, **{"x-cog-array-type": "iterator"})),
    ("53-async", "AsyncIterator[int]", array(I, **{"x-cog-array-type": "iterator"})),
    ("53-generator", "Generator[str, None, None]", array(S, **{"x-cog-array-type": "iterator"})),
    (
        "54",
        "ConcatenateIterator[str]",
        array(S, **{"x-cog-array-type": "iterator", "x-cog-array-display": "concatenate"}),
    ),
    ("55", "M", M),
    ("56-dict", "dict[str, list[int]]", {"type": "object", "additionalProperties": array(I)}),
    ("56-list", "list[M]", array(M)),
    (
        "56-nested",
        "Node",
        {
            "type": "object",
            "properties": {
                "next": {**O, "nullable": True, "title": "Next"},
                "m": {**M, "title": "M"},
            },
            "required": ["m"],
        },
    ),
    (
        "56-typed-dict",
        "T",
        {
            "type": "object",
            "properties": {"a": {**I, "title": "A"}, "b": {**S, "title": "B"}},
            "required": ["a"],
        },
    ),
    ("57-any", "Any", {}),
    ("bare-list", "list", array(O)),
    ("bare-dict", "dict", O),
    ("optional", "Optional[int]", {**I, "nullable": True}),
    ("union", "int | str", {"anyOf": [I, S]}),
    ("none", "None", {"nullable": True}),
    ("literal", "Literal['a', 'b']", {"type": "string", "enum": ["a", "b"]}),
    ("opaque", "Annotated['Nowhere', Opaque]", O),
    ("opaque-list", "Annotated[list['Nowhere'], Opaque]", array(O)),
    ("path", "Path", U),
    ("file", "File", U),
    ("secret", "Secret", SECRET),
]


@pytest.mark.parametrize(("returns", "fragment"), [numbered(*row) for row in OUTPUTS])
def test_output(returns: str, fragment: dict[str, Any], models: Models) -> None:
    assert output_of(models.run("", "from typing_extensions import NotRequired\n" + MODEL, returns)) == fragment


@pytest.mark.covers("sdk:54")
@pytest.mark.parametrize(
    ("returns", "text"),
    [
        ("ConcatenateIterator[int]", "only texts can be concatenated"),
        ("list[Optional[int]]", "as an element"),
        ("Annotated[Optional[int], Opaque]", "Opaque"),
        ("tuple[int, int]", "unsupported output type"),
        ("bytes", "unsupported output type bytes"),
        ("object", "unsupported output type object"),
        ("'Nowhere'", "Nowhere"),
    ],
)
def test_row_54_outputs_that_are_refused(returns: str, text: str, models: Models) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        models.run("", returns=returns)


def test_output_annotation_is_demanded(models: Models) -> None:
    with pytest.raises(TypeError, match="-> Any"):
        models.load("class Runner:\n    def run(self, x: int): ...\n")


@pytest.mark.covers("sdk:53")
def test_row_53_streaming_is_a_flag_of_the_operation(models: Models) -> None:
    source = "class Runner:\n    {}\n    def run(self) -> Iterator[str]: ...\n"
    plain, marked = models.load(source.format("")), models.load(source.format("@streaming"))
    assert "x-cog-streaming" not in plain.document["paths"]["/predictions"]["post"]
    assert marked.document["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    assert (plain.streaming, marked.streaming) == (False, True)
    with pytest.raises(ValueError, match="@streaming needs an iterator"):
        models.load("class Runner:\n    @streaming()\n    def run(self) -> str: ...\n")


@pytest.mark.covers("sdk:W17", "sdk:61")
def test_row_61_W17_choices_never_take_a_name_that_means_something_else(models: Models) -> None:
    model = models.run("Output: str = Input(choices=['a']), Status: int = Input(choices=[1])", returns="int")
    schemas = model.document["components"]["schemas"]
    assert schemas["Output"] == {"title": "Output", "type": "integer"}
    assert schemas["Status"]["enum"][0] == "starting"
    assert schemas["Input_Output"]["enum"] == ["a"]
    assert schemas["Input_Output"]["title"] == "Output"
    assert schemas["Input"]["properties"]["Status"]["allOf"] == [{"$ref": "#/components/schemas/Input_Status"}]


def test_all_faults_are_told_at_once(models: Models) -> None:
    with pytest.raises(TypeError) as caught:
        models.run("a: bytes, b, c: str = Input(regex='['), d: int = 3", returns="tuple")
    text = str(caught.value)
    assert all(part in text for part in ("'a'", "'b'", "'c'", "output type tuple"))
    assert "'d'" not in text
    assert [line.split("'")[1] for line in text.split(";\n")[:3]] == ["a", "b", "c"], "a line each"
