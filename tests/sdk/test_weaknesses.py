"""What Cog's source-reading generator gets wrong and live objects get right; and the audit.

The other weaknesses stand beside what they are about; `test_every_row_and_every_weakness_has_its_test` finds them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.sdk.source import Models, arguments, input_of, output_of, refusal

TESTS: Final = Path(__file__).parent.parent
I = {"type": "integer"}  # noqa: E741
U = {"type": "string", "format": "uri"}


@pytest.mark.covers("sdk:W13")
@pytest.mark.parametrize(
    ("number", "source"),
    [
        (
            "module",
            "import cog as c\nclass Runner(c.BaseRunner):\n    def run(self, x: int = c.Input(default=1)) -> int: ...",
        ),
        ("renamed", "from cog import Input as In\nclass Runner:\n    def run(self, x: int = In(1)) -> int: ..."),
        ("kept", "ONE = Input(default=1)\nclass Runner:\n    def run(self, x: int = ONE) -> int: ..."),
        ("made", "def one(): return Input(default=1)\nclass Runner:\n    def run(self, x: int = one()) -> int: ..."),
        ("type-alias", "T = int\nclass Runner:\n    def run(self, x: T = 1) -> T: ..."),
        ("class-alias", "class Other:\n    def run(self, x: int = 1) -> int: ...\nRunner = Other"),
        ("inside-if", "if True:\n    class Runner:\n        def run(self, x: int = 1) -> int: ..."),
        ("new-type", "T = NewType('T', int)\nclass Runner:\n    def run(self, x: T = 1) -> T: ..."),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_W13_however_it_is_written(number: str, source: str, models: Models) -> None:
    model = models.load(source)
    assert input_of(model) == {**I, "default": 1}
    assert output_of(model) == I
    assert arguments(model, {}) == {"x": 1}


@pytest.mark.covers("sdk:W13")
def test_W13_grandchildren_of_base_model_and_renamed_files(models: Models) -> None:
    model = models.load(
        "from cog import Path as P\nclass A(BaseModel):\n    a: int\nclass B(A):\n    b: P\nclass C(B): ...\n"
        "class Runner:\n    def run(self, x: P) -> C: ...\n"
    )
    assert input_of(model) == U
    assert output_of(model)["properties"] == {"a": {**I, "title": "A"}, "b": {**U, "title": "B"}}


@pytest.mark.covers("sdk:W13")
def test_W13_types_that_a_package_exports_again(models: Models) -> None:
    models.write("from .inner import Point as Point\n", "shapes/__init__.py")
    models.write("from cog import BaseModel\nclass Point(BaseModel):\n    x: int\n", "shapes/inner.py")
    model = models.load("from shapes import Point\nclass Runner:\n    def run(self) -> list[Point]: ...\n")
    assert output_of(model)["items"]["required"] == ["x"]


@pytest.mark.covers("sdk:W14")
@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ("x: Literal['a', 'b']", ["a", "b"]),
        ("x: Literal[1, 2]", [1, 2]),
        ("x: Color", ["r", "g"]),
        ("x: Size", [1, 2]),
    ],
)
def test_W14_literals_and_enums_are_choices(parameter: str, values: list[Any], models: Models) -> None:
    color = "class Color(str, enum.Enum):\n    R = 'r'\n    G = 'g'\n"
    before = f"{color}class Size(enum.IntEnum):\n    SMALL = 1\n    LARGE = 2"
    model = models.run(parameter, before)
    assert model.document["components"]["schemas"]["x"]["enum"] == values
    for value in values:
        assert arguments(model, {"x": value})["x"] == value
    assert refusal(model, {"x": "other"})
    plain = models.run(f"x: {type(values[0]).__name__} = Input(choices={values!r})")
    assert plain.document["components"]["schemas"] == model.document["components"]["schemas"]


@pytest.mark.covers("sdk:W16")
@pytest.mark.parametrize(
    ("parameter", "good", "bad", "text"),
    [
        ("x: list[int] = Input(ge=0, le=5)", [0, 5], [1, -1], "-1 is less than the minimum of 0"),
        ("x: list[str] = Input(min_length=2)", ["ab"], ["ab", "a"], '"a" is shorter than 2 characters'),
        ("x: list[str] = Input(max_length=2)", ["", "ab"], ["ab", "abc"], '"abc" is longer than 2 characters'),
        ("x: list[str] = Input(regex='^a')", ["ab"], ["ab", "b"], '"b" does not match "^a"'),
        ("x: list[str] = Input(choices=['a'])", ["a", "a"], ["a", "b"], '"b" is not one of ["a"]'),
        ("x: Optional[list[int]] = Input(default=None, ge=0)", [1], [1, -1], "-1 is less than the minimum of 0"),
    ],
)
def test_W16_rules_of_a_list_hold_for_its_elements(
    parameter: str, good: list[Any], bad: list[Any], text: str, models: Models
) -> None:
    model = models.run(parameter)
    assert arguments(model, {"x": good})["x"] == good
    assert refusal(model, {"x": bad}) == [(["body", "input", "x/1"], text, "value_error")]


@pytest.mark.covers("sdk:W18")
def test_W18_the_output_of_a_training_is_titled_so(models: Models) -> None:
    source = "def train(x: int) -> Path: ...\n"
    schemas = models.load(source, "train", train=True).document["components"]["schemas"]
    assert schemas["TrainingOutput"] == {**U, "title": "TrainingOutput"}
    assert "Output" not in schemas


@pytest.mark.covers("sdk:W31")
def test_W31_what_the_reference_left_out_is_documented() -> None:
    page = (TESTS.parent / "docs" / "reference" / "model.md").read_text()
    for words in (
        "`accept`",
        "`current_scope().context`",
        "they may contain each other",
        "| `None` |",
        "Optional[list",
    ):
        assert words in page
