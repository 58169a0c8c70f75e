"""Hard cases of reading annotations: whatever form they have, one meaning."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.sdk.source import Models, input_of, output_of

INTEGER = {"type": "integer"}
STRING = {"type": "string"}


@pytest.mark.parametrize(
    ("annotation", "fragment"),
    [
        ("'int'", INTEGER),
        ("Optional['int']", {**INTEGER, "nullable": True}),
        ("list['int']", {"type": "array", "items": INTEGER}),
        ("List['int']", {"type": "array", "items": INTEGER}),
        ("'list[\"int\"]'", {"type": "array", "items": INTEGER}),
        ("'\\n  int |\\n  None'", {**INTEGER, "nullable": True}),
        ("Number", INTEGER),
        ("Union[Optional[str], int]", {"anyOf": [STRING, INTEGER]}),
        ("'None | int'", {**INTEGER, "nullable": True}),
        ("Annotated[Annotated[int, 1], 2]", INTEGER),
        ("Annotated[int, nowhere()]", INTEGER),
        ("Union[int, int]", INTEGER),
        ("cog.types.Path", {"type": "string", "format": "uri"}),
        ("Extended", {"type": "object"}),
        ("dict[str, Any] | Extended | str", {"anyOf": [{"type": "object"}, STRING]}),
    ],
)
def test_forms_of_input_annotations(annotation: str, fragment: dict[str, Any], models: Models) -> None:
    before = (
        "import typing_extensions\nNumber = NewType('Number', int)\n"
        "class Extended(typing_extensions.TypedDict):\n    a: int\n"
    )
    if "nowhere" in annotation:
        annotation = repr(annotation)
    found = input_of(models.run(f"x: {annotation}", before))
    nullable = fragment.get("nullable") or "Union[Optional" in annotation
    if "anyOf" in fragment and nullable:
        fragment = {"anyOf": [{**member, "nullable": True} for member in fragment["anyOf"]], "nullable": True}
    assert found == fragment


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_type_statements(models: Models) -> None:
    before = "type Text = str\ntype Many[T] = list[T]\ntype Later = 'Text'\n"
    model = models.run("a: Text, b: Many[int], c: Optional[Later]", before, returns="Many[Text]")
    assert input_of(model, "a") == STRING
    assert input_of(model, "b") == {"type": "array", "items": INTEGER}
    assert input_of(model, "c") == {**STRING, "nullable": True}
    assert output_of(model) == {"type": "array", "items": STRING}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters_are_no_input_types(models: Models) -> None:
    with pytest.raises(TypeError, match="unsupported input type"):
        models.load("class Runner:\n    def run[T](self, x: T) -> Any: ...\n")


def test_names_of_an_enclosing_function(models: Models) -> None:
    model = models.load(
        "def make():\n    Local = str\n    def run(x: 'Local') -> Any:\n        return Local(x)\n    return run\n"
        "runner = make()\n",
        "runner",
    )
    assert input_of(model) == STRING


CLASSES = """\
import collections.abc, pydantic
from typing_extensions import NotRequired as Maybe, Required
class Base(BaseModel):
    _hidden: int
    shared: ClassVar[str] = "a"
class Grandchild(Base):
    guidance_scale: Annotated[float, "doc"]
    late: "Optional[str]"
    many: list[str] = dataclasses.field(default_factory=list)
class Pydantic(pydantic.BaseModel):
    path: Path
    count: int = pydantic.Field(3)
    fresh: list[int] = pydantic.Field(default_factory=list)
    described: str = pydantic.Field(description="d")
@dataclasses.dataclass
class Data:
    a: "Any"
    b: int = 2
class Partial(TypedDict, total=False):
    a: Required[int]
    b: Optional[str]
class Whole(Partial):
    c: "Maybe[int]"
    d: Optional[int]
class Tree(TypedDict):
    children: "list[Tree]"
class Empty(BaseModel):
    pass
class Color(enum.Enum):
    R = "r"
"""


def properties(**fields: dict[str, Any]) -> dict[str, Any]:
    return {name: {**fragment, "title": name.capitalize()} for name, fragment in fields.items()}


@pytest.mark.parametrize(
    ("returns", "fragment"),
    [
        (
            "Grandchild",
            {
                "type": "object",
                "properties": {
                    "_hidden": {**INTEGER, "title": " Hidden"},
                    "guidance_scale": {"type": "number", "title": "Guidance Scale"},
                    "late": {**STRING, "nullable": True, "title": "Late"},
                    "many": {"type": "array", "items": STRING, "title": "Many"},
                },
                "required": ["_hidden", "guidance_scale"],
            },
        ),
        (
            "Pydantic",
            {
                "type": "object",
                "properties": properties(
                    path={"type": "string", "format": "uri"},
                    count=INTEGER,
                    fresh={"type": "array", "items": INTEGER},
                    described=STRING,
                ),
                "required": ["path", "described"],
            },
        ),
        ("Data", {"type": "object", "properties": properties(a={}, b=INTEGER), "required": ["a"]}),
        (
            "Whole",
            {
                "type": "object",
                "properties": properties(
                    a=INTEGER, b={**STRING, "nullable": True}, c=INTEGER, d={**INTEGER, "nullable": True}
                ),
                "required": ["a", "d"],
            },
        ),
        (
            "Tree",
            {
                "type": "object",
                "properties": properties(children={"type": "array", "items": {"type": "object"}}),
                "required": ["children"],
            },
        ),
        ("Empty", {"type": "object", "properties": {}}),
        ("Color", {"type": "string", "enum": ["r"]}),
        (
            "collections.abc.Iterator[Data]",
            {
                "type": "array",
                "items": {"type": "object", "properties": properties(a={}, b=INTEGER), "required": ["a"]},
                "x-cog-array-type": "iterator",
            },
        ),
        ("dict[str, Any]", {"type": "object", "additionalProperties": {}}),
        ("list[Any]", {"type": "array", "items": {}}),
    ],
)
def test_structured_outputs(returns: str, fragment: dict[str, Any], models: Models) -> None:
    assert output_of(models.run("", CLASSES, returns)) == fragment


def test_a_bad_field_is_named_with_its_class(models: Models) -> None:
    with pytest.raises(TypeError, match="field 'a' of Bad: unsupported output type bytes"):
        models.run("", "class Bad(BaseModel):\n    a: bytes\n", "list[Bad]")
