"""`BaseModel`: what dataclasses allow, and what models written for pydantic expect."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar, Optional

import pydantic
import pytest

import cog_trio.sdk as cog


class Inner(cog.BaseModel):
    secret: cog.Secret
    path: cog.Path


class Out(cog.BaseModel):
    text: str
    inner: Inner
    parts: list[Inner] = []  # noqa: RUF012 - as models write it


def test_subclasses_are_dataclasses() -> None:
    class More(Out):
        extra: int = 3

    assert [field.name for field in dataclasses.fields(More)] == ["text", "inner", "parts", "extra"]
    assert More("a", Inner(cog.Secret("k"), cog.Path("p"))) == More("a", Inner(cog.Secret("k"), cog.Path("p")))


def test_nothing_is_checked() -> None:
    assert Out(1, 2).text == 1  # type: ignore[arg-type, comparison-overlap]


def test_keywords_pass_through() -> None:
    class Frozen(cog.BaseModel, frozen=True):
        a: int

    class Ordered(cog.BaseModel, order=True):
        a: int

    with pytest.raises(dataclasses.FrozenInstanceError):
        Frozen(1).a = 2  # type: ignore[misc]
    assert Ordered(1) < Ordered(2)
    with pytest.raises(TypeError):

        class Wrong(cog.BaseModel, no_such=True):
            a: int


def test_a_hand_written_init_survives() -> None:
    class Own(cog.BaseModel):
        a: int

        def __init__(self) -> None:
            self.a = 7

    assert Own().a == 7


def test_bases() -> None:
    @dataclasses.dataclass
    class Data:
        a: int

    class Mixin:
        pass

    class Fine(Out, Mixin):
        pass

    with pytest.raises(TypeError, match="Data"):

        class Two(Out, Data):
            pass

    with pytest.raises(TypeError, match="first base"):

        class Second(Mixin, Out):
            pass


def test_auto_dataclass_can_be_off() -> None:
    class Plain(cog.BaseModel, auto_dataclass=False):
        a: int = 1

    assert not dataclasses.is_dataclass(Plain)
    assert Plain().a == 1
    with pytest.raises(ValueError, match="auto_dataclass"):

        class Below(Out, auto_dataclass=False):
            pass


@pytest.mark.covers("sdk:W22")
def test_W22_mutable_defaults_are_copied() -> None:
    class Lists(cog.BaseModel):
        a: list[int] = []  # noqa: RUF012 - that is the point
        b: dict[str, list[int]] = {"x": []}  # noqa: RUF012
        c: set[int] = set()  # noqa: RUF012

    one = Lists()
    one.a.append(1)
    one.b["x"].append(1)
    one.c.add(1)
    assert Lists() == Lists([], {"x": []}, set())


@pytest.mark.covers("sdk:W22")
def test_W22_optional_means_none() -> None:
    class Sparse(cog.BaseModel):
        a: Optional[int]  # noqa: UP045 - as models write it
        b: "int | None"  # noqa: UP037
        c: int

    made: Any = Sparse(c=3)  # type: ignore[call-arg]
    assert (made.a, made.b, made.c) == (None, None, 3)


@pytest.mark.covers("sdk:W22")
def test_W22_required_after_optional_is_keyword_only() -> None:
    class Parent(cog.BaseModel):
        a: int = 1

    class Child(Parent):
        b: int  # type: ignore[misc]

    child: Any = Child
    assert child(b=2).a == 1
    with pytest.raises(TypeError):
        child(1, 2)


def test_class_variables_are_no_fields() -> None:
    class With(cog.BaseModel):
        shared: ClassVar[int] = 1
        a: int = 2

    assert [field.name for field in dataclasses.fields(With)] == ["a"]


@pytest.mark.covers("sdk:W22")
def test_W22_methods_of_pydantic() -> None:
    made = Out("a", Inner(cog.Secret("k"), cog.Path("p")), [Inner(cog.Secret(None), cog.Path("q"))])
    dumped = {
        "text": "a",
        "inner": {"secret": cog.Secret("k"), "path": cog.Path("p")},
        "parts": [{"secret": cog.Secret(None), "path": cog.Path("q")}],
    }
    assert made.dict() == made.model_dump() == dumped
    assert made.json() == made.model_dump_json()
    assert json.loads(made.json())["inner"] == {"secret": "**********", "path": "p"}
    assert made.copy(update={"text": "b"}).text == "b"
    assert made.text == "a"
    assert Inner.parse_obj({"secret": 1, "path": 2}) == Inner.model_validate({"secret": 1, "path": 2})
    with pytest.raises(TypeError):
        Inner.model_validate({"nothing": 1})
    anything: Any = made
    assert not isinstance(anything, pydantic.BaseModel)


@pytest.mark.covers("sdk:W22")
def test_W22_pydantic_fields_become_their_defaults() -> None:
    class Ported(cog.BaseModel):
        a: int = pydantic.Field(3, ge=1)
        b: list[int] = pydantic.Field(default_factory=list)
        c: str = pydantic.Field(description="required")

    made: Any = Ported(c="x")
    assert (made.a, made.b, made.c) == (3, [], "x")


def test_ignored_parts_of_pydantic_are_told_once() -> None:
    with pytest.warns(UserWarning, match="without effect: Config, check") as told:

        class Ported(cog.BaseModel):
            a: int

            class Config:
                extra = "forbid"

            @pydantic.field_validator("a")
            def check(cls, value: int) -> int:  # noqa: N805, RUF100
                return value

    assert len(told) == 1
