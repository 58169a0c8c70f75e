"""From JSON to what ``run`` gets: by the parameter's kind, never by the look of a value."""

from __future__ import annotations

import io
import os
import pathlib
from enum import Enum
from typing import Any

import pytest

import cog_trio.sdk.types as sdk
from cog_trio.sdk._parameters import Parameter
from cog_trio.sdk._urls import decode_data_url
from cog_trio.worker.model.input_values import FileSource, InputError, coerce, coerce_value, sources
from cog_trio.worker.model.run_folder import RunFolder


class Color(str, Enum):
    R = "r"
    G = "g"


class Size(Enum):
    SMALL = 1


class Numbers(int, Enum):
    ONE = 1


def value_of(kind: Any, value: Any, **rest: Any) -> Any:
    return coerce_value(Parameter("x", kind, **rest), value, {})


@pytest.mark.covers("sdk:W10")
@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        ("int", 1, 1),
        ("int", 1.0, 1),
        ("int", 1e22, 10**22),
        ("int", 10**30, 10**30),
        ("float", 1, 1.0),
        ("float", 1.5, 1.5),
        ("str", "https://h/a.png", "https://h/a.png"),
        ("bool", True, True),
        ("dict", {"a": 1.0}, {"a": 1.0}),
        ("any", 1.0, 1.0),
        ("union", 1, 1),
        ("union", 1.0, 1.0),
    ],
)
def test_W10_plain_kinds(kind: str, value: Any, seen: Any) -> None:
    got = value_of(kind, value)
    assert got == seen
    assert type(got) is type(seen)
    many = value_of(kind, [value], many=True)
    assert many == [seen]
    assert type(many[0]) is type(seen)


@pytest.mark.parametrize("kind", ["str", "int", "float", "path", "file", "secret", "any"])
def test_null_is_none(kind: str) -> None:
    assert value_of(kind, None) is None


def test_an_integer_beyond_all_floats_names_the_input() -> None:
    with pytest.raises(InputError, match=r"^Input validation error: x: the number is beyond the range of float$"):
        value_of("float", 10**400)
    with pytest.raises(InputError, match=r"x\[1\]"):
        value_of("float", [1, 10**400], many=True)


def test_members_of_enums() -> None:
    assert value_of("str", "r", enum=Color) is Color.R
    assert value_of("int", 1.0, enum=Size) is Size.SMALL
    assert value_of("int", 1.0, enum=Numbers) is Numbers.ONE
    assert value_of("str", ["g", "r"], enum=Color, many=True) == [Color.G, Color.R]
    assert value_of("str", Color.R, enum=Color) is Color.R
    with pytest.raises(InputError, match="x: not one of the values of Color"):
        value_of("str", "z", enum=Color)


def test_a_literal_needs_its_kind_alone() -> None:
    got = value_of("int", 2.0, literal=(1, 2), choices=(1, 2))
    assert (got, type(got)) == (2, int)


@pytest.mark.covers("sdk:W7")
def test_W7_secrets_also_in_lists() -> None:
    secret = value_of("secret", "k")
    assert isinstance(secret, sdk.Secret)
    assert secret.get_secret_value() == "k"
    (inner,) = value_of("secret", ["k"], many=True)
    assert inner == sdk.Secret("k")
    assert value_of("secret", secret) is secret


@pytest.mark.covers("worker:W55")
def test_paths_are_the_downloaded_files() -> None:
    parameters = [Parameter("one", "path"), Parameter("many", "path", many=True)]
    given = {"one": "http://h/a", "many": ["data:,b", "HTTP://h/a"]}
    assert sources(parameters, given) == [
        FileSource("one", None, "http://h/a"),
        FileSource("many", 0, "data:,b"),
        FileSource("many", 1, "HTTP://h/a"),
    ]
    files = {("one", None): "/t/0/a", ("many", 0): "/t/1/file.txt", ("many", 1): "/t/2/a"}
    values = coerce(parameters, given, files)
    assert values == {"one": sdk.Path("/t/0/a"), "many": [sdk.Path("/t/1/file.txt"), sdk.Path("/t/2/a")]}
    assert type(values["one"]) is sdk.Path
    assert isinstance(values["one"], pathlib.Path)


def test_only_parameters_of_kind_path_have_sources() -> None:
    parameters = [Parameter("s", "str"), Parameter("f", "file"), Parameter("d", "dict"), Parameter("p", "path")]
    assert (
        sources(parameters, {"s": "http://h", "f": "http://h", "d": {"a": "http://h"}, "p": None, "zz": "http://h"})
        == []
    )


@pytest.mark.covers("sdk:W3")
def test_W3_a_default_that_is_a_url_is_downloaded_when_left_out() -> None:
    url = Parameter("p", "path", default="https://h/a.png", required=False)
    local = Parameter("q", "path", default="a.png", required=False)
    assert sources([url, local], {}) == [FileSource("p", None, "https://h/a.png")]
    assert coerce([url, local], {}, {("p", None): "/t/0/a.png"}) == {"p": sdk.Path("/t/0/a.png")}
    assert sources([url], {"p": "data:,"}) == [FileSource("p", None, "data:,")]
    listed = Parameter("r", "path", many=True, default=["https://h/a", "b"], required=False)
    assert sources([listed], {}) == [FileSource("r", 0, "https://h/a")]
    assert coerce([listed], {}, {("r", 0): "/t/0/a"}) == {"r": [sdk.Path("/t/0/a"), sdk.Path("b")]}


def test_a_default_that_needs_no_file_is_left_to_the_binding() -> None:
    assert coerce([Parameter("n", "int", default=3, required=False)], {}, {}) == {}


def test_files_are_opened_lazily_or_at_once() -> None:
    data, remote = value_of("file", ["data:;base64,aGk=", "HTTPS://nobody.invalid/a%20b.txt"], many=True)
    assert isinstance(data, io.BytesIO)
    assert data.read() == b"hi"
    assert isinstance(remote, sdk.URLFile)
    assert remote.name == "a b.txt"


@pytest.mark.covers("worker:W57")
def test_W57_bad_base64_names_the_input() -> None:
    for kind, value, place in (("file", "data:;base64,a", "x"), ("file", ["data:,", "data:;base64,!"], "x[1]")):
        with pytest.raises(InputError) as caught:
            value_of(kind, value, many=isinstance(value, list))
        assert str(caught.value).startswith(f"Input validation error: {place}: the data: URL is not valid base64: ")
        assert str(caught.value).endswith("(data:;base64,...)")
    with pytest.raises(InputError, match="not a URL"):
        value_of("file", "plain")


def test_names_without_a_parameter_pass() -> None:
    assert coerce([Parameter("a", "int")], {"a": 1.0, "zz": 1.0}, {}) == {"a": 1, "zz": 1.0}


def test_the_given_values_are_not_changed() -> None:
    given = {"a": [1.0], "s": "k"}
    coerce([Parameter("a", "int", many=True), Parameter("s", "secret")], given, {})
    assert given == {"a": [1.0], "s": "k"}


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("data:,a%20b", b"a b"),
        ("data:text/plain,\u00e9", "é".encode()),
        ("data:text/plain;base64,aGk=", b"hi"),
        ("DATA:text/plain;charset=x;BASE64,aGk=", b"hi"),
        ("data:;base64,aGk", b"hi"),
        ("data:;base64,aG\n k=", b"hi"),
        ("data:;base64,aGk%3D", b"hi"),
        ("data:;base64,", b""),
        ("data:,", b""),
        ("data:;base64,+/+/", b"\xfb\xff\xbf"),
    ],
)
def test_data_urls(url: str, data: bytes) -> None:
    assert decode_data_url(url) == data


@pytest.mark.covers("worker:W57")
@pytest.mark.parametrize(
    "url",
    ["data:", "data:;base64", "data:;base64,a", "data:;base64,a*==", "data:;base64,a\u00e9==", "data:;base64,-_-_"],
)
def test_W57_data_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="data: URL"):
        decode_data_url(url)


def test_folders_are_private_and_known_when_made(tmp_path: pathlib.Path) -> None:
    folder = RunFolder(str(tmp_path / "a" / "b"))
    before = folder.made
    assert not before
    assert folder.make() == folder.make() == str(tmp_path / "a" / "b")
    assert folder.made
    assert folder.make("c", "d") == str(tmp_path / "a" / "b" / "c" / "d")
    assert {os.stat(path).st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}


def test_a_folder_that_cannot_be_made_is_not_made(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    folder = RunFolder(str(tmp_path / "file" / "run"))
    with pytest.raises(NotADirectoryError):
        folder.make("inputs")
    assert not folder.made
