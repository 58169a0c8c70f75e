"""User values to the wire: each row of the table, files, and what fails with which words."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import io
import itertools
import json
import os
import pathlib
import sys
import tempfile
import types
import uuid
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Any

import numpy
import pydantic
import pytest

import cog_trio.sdk.types as sdk
from cog_trio.sdk.model import BaseModel
from cog_trio.worker.model.output_values import Composed, FileItem, OutputEncoder, is_file
from cog_trio.worker.model.run_folder import RunFolder

MASK = "*" * 10
Pair = namedtuple("Pair", "a b")


class Color(Enum):
    R = "r"


class Level(IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: float
    key: sdk.Secret
    slots: Any = None


class Shape(BaseModel):
    name: str
    point: Point
    path: sdk.Path | None = None


class Validated(pydantic.BaseModel):
    when: datetime.date
    key: pydantic.SecretStr


class Older:
    def dict(self) -> dict[str, Any]:
        return {"a": {1}}


class OwnText(str):
    def __str__(self) -> str:
        return "wrong"


@pytest.fixture
def outputs(tmp_path: pathlib.Path) -> OutputEncoder:
    return OutputEncoder(RunFolder(str(tmp_path / "out")))


def encoded(outputs: OutputEncoder, value: Any, index: int | None = None) -> Any:
    item = outputs.item(value, index)
    assert isinstance(item, bytes)
    return json.loads(item)


def composed(outputs: OutputEncoder, value: Any, index: int | None = None) -> Any:
    """The value with ``(name, content)`` where a file stands."""
    item = outputs.item(value, index)
    assert isinstance(item, Composed)
    text, end = "", 0
    for place, file in item.files:
        assert item.data[place : place + 4] == b"null"
        content = [os.path.basename(file.path), pathlib.Path(file.path).read_text()]
        text += item.data[end:place].decode() + json.dumps(content)
        end = place + 4
    return json.loads(text + item.data[end:].decode())


TABLE: list[tuple[Any, Any]] = [
    ("text é \U0001f600", "text é \U0001f600"),
    (OwnText("right"), "right"),
    (None, None),
    (True, True),
    (-5, -5),
    (10**30, 10**30),
    (-(2**63) - 1, -(2**63) - 1),
    (2**63, 2**63),
    (1.5, 1.5),
    (Color.R, "r"),
    (Level.HIGH, 3),
    (sdk.Secret("s"), MASK),
    (sdk.Secret(None), ""),
    (pydantic.SecretStr("s"), MASK),
    (pydantic.SecretBytes(b"s"), MASK),
    (Point(1, sdk.Secret("s")), {"x": 1, "key": MASK, "slots": None}),
    (Validated(when=datetime.date(2026, 1, 2), key=pydantic.SecretStr("s")), {"when": "2026-01-02", "key": MASK}),
    (Older(), {"a": [1]}),
    ({"a": {"b": [1, "x", None, True, 2.5]}}, {"a": {"b": [1, "x", None, True, 2.5]}}),
    (OrderedDict(a=sdk.Secret("s")), {"a": MASK}),
    ({1: 1, 2.5: 2, None: 3}, {"1": 1, "2.5": 2, "null": 3}),
    ({True: 4}, {"true": 4}),
    ({"a": {10**20: 10**20}}, {"a": {str(10**20): 10**20}}),
    (datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
    (datetime.date(2026, 1, 2), "2026-01-02"),
    (datetime.time(3, 4), "03:04:00"),
    (decimal.Decimal("1.10"), 1.1),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (numpy.float32(0.5), 0.5),
    (numpy.float64(0.1), 0.1),
    (numpy.int64(7), 7),
    (numpy.bool_(True), True),
    (numpy.str_("s"), "s"),
    (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (numpy.array(5), 5),
    (numpy.array(["a", None], dtype=object), ["a", None]),
    ({"v": numpy.arange(3, dtype=numpy.uint64) + 2**63}, {"v": [2**63, 2**63 + 1, 2**63 + 2]}),
    ((1, "a"), [1, "a"]),
    (Pair(1, 2), [1, 2]),
    (set(), []),
    (frozenset({1}), [1]),
    (deque([1]), [1]),
    (range(3), [0, 1, 2]),
    (map(str, [1]), ["1"]),
    ({"g": (x for x in "ab")}, {"g": ["a", "b"]}),
    ([{"k": sdk.Secret("s")}], [{"k": MASK}]),
    ({}, {}),
    ([], []),
    ("", ""),
]


@pytest.mark.covers("lesson:63")
@pytest.mark.parametrize(("value", "result"), TABLE, ids=lambda value: type(value).__name__)
def test_the_table(outputs: OutputEncoder, value: Any, result: Any) -> None:
    got = encoded(outputs, value)
    assert got == result
    assert type(got) is type(result)
    assert not outputs.not_finite


@pytest.mark.covers("sdk:W10")
def test_W10_digits_are_exact(outputs: OutputEncoder) -> None:
    assert outputs.item(10**4000) == b"1" + b"0" * 4000
    assert outputs.item({"a": [-(10**40)]}) == b'{"a":[-1' + b"0" * 40 + b"]}"
    assert outputs.item(decimal.Decimal("0." + "1" * 50)) == b"0." + b"1" * 50
    with pytest.raises(ValueError, match=r"integer of more than 4300 digits at output\.a"):
        outputs.item({"a": 10**5000})


@pytest.mark.covers("D15", "lesson:63")
@pytest.mark.parametrize(
    ("value", "result"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        ([1.0, float("inf"), 2.0], [1.0, None, 2.0]),
        (["a", float("nan")], ["a", None]),
        ({"a": {"b": float("nan")}}, {"a": {"b": None}}),
        (numpy.array([1.0, numpy.nan]), [1.0, None]),
        (numpy.float32("nan"), None),
        (decimal.Decimal("NaN"), None),
        ((float("nan"),), [None]),
    ],
)
def test_D15_not_finite_is_null_and_told(outputs: OutputEncoder, value: Any, result: Any) -> None:
    assert encoded(outputs, value) == result
    assert outputs.not_finite


def test_finite_numbers_whose_sum_is_not(outputs: OutputEncoder) -> None:
    assert encoded(outputs, [1.7e308, 1.7e308, 10**400]) == [1.7e308, 1.7e308, 10**400]
    assert not outputs.not_finite


@pytest.mark.covers("lesson:63")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"abc", "a value of type bytes cannot be turned into JSON, at output"),
        ({"a": [1, object()]}, "a value of type object cannot be turned into JSON, at output.a[1]"),
        ([bytearray()], "a value of type bytearray cannot be turned into JSON, at output[0]"),
        (Older, "a value of type type cannot be turned into JSON, at output"),
        (1j, "a value of type complex cannot be turned into JSON, at output"),
        (types.SimpleNamespace(), "a value of type types.SimpleNamespace cannot be turned into JSON, at output"),
        ({(1, 2): 1}, "a key of type tuple cannot be turned into JSON, at output"),
        ("\ud800", "a value of type str cannot be turned into JSON, at output: it holds a lone surrogate"),
        (
            {"a": ["\ud800"]},
            "a value of type str cannot be turned into JSON, at output.a[0]: it holds a lone surrogate",
        ),
        ({"\ud800": 1}, "a value of type str cannot be turned into JSON, at output: it holds a lone surrogate"),
    ],
)
def test_what_has_no_json_form(outputs: OutputEncoder, value: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        outputs.item(value)
    assert str(caught.value) == text


def test_the_place_of_an_element(outputs: OutputEncoder) -> None:
    with pytest.raises(TypeError, match=r"at output\[3\]\.a$"):
        outputs.item({"a": b""}, 3)
    with pytest.raises(TypeError, match=r"at output\[0\]$"):
        outputs.item(b"", 0)


def test_values_that_contain_themselves(outputs: OutputEncoder) -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    ring: dict[str, Any] = {}
    ring["self"] = {"more": [ring]}

    class Endless:
        def dict(self) -> Any:
            return {"next": Endless()}

    for value in (loop, ring, Endless()):
        with pytest.raises(ValueError, match="nested deeper than 200 levels, or contains itself"):
            outputs.item(value)


def test_what_user_code_raises_is_the_users(outputs: OutputEncoder) -> None:
    class Broken:
        def dict(self) -> Any:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        outputs.item([Broken()])


# Files


def test_a_returned_path_stays_where_it_is(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"png")
    assert outputs.item(sdk.Path(path)) == FileItem(str(path))
    assert outputs.item(path, 1) == FileItem(str(path))
    assert not (tmp_path / "out").exists()


@pytest.mark.covers("worker:W49")
def test_W49_paths_are_made_absolute(
    outputs: OutputEncoder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("a.txt").write_text("a")
    assert outputs.item(pathlib.Path("a.txt")) == FileItem(str(tmp_path / "a.txt"))


@pytest.mark.covers("worker:W68")
def test_W68_a_yielded_file_is_a_copy(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "frame.png"
    items = []
    for content in (b"one", b"two", b""):
        path.write_bytes(content)
        items.append(outputs.item(path, yielded=True))
    path.unlink()
    assert [pathlib.Path(item.path).read_bytes() for item in items if isinstance(item, FileItem)] == [
        b"one",
        b"two",
        b"",
    ]
    assert {os.path.basename(item.path) for item in items if isinstance(item, FileItem)} == {"frame.png"}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700


@pytest.mark.covers("worker:W68")
def test_W68_copied_where_the_kernel_refuses(
    outputs: OutputEncoder, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"0123456789" * 1000)
    parts = iter([100])

    def refuse(source: int, target: int, count: int) -> int:
        for part in parts:
            return os.write(target, os.read(source, part))
        raise OSError(18, "cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    item = outputs.item(path, yielded=True)
    assert isinstance(item, FileItem)
    assert pathlib.Path(item.path).read_bytes() == path.read_bytes()


@pytest.mark.covers("worker:W68")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")
def test_W68_a_file_that_tells_its_size_as_nothing(outputs: OutputEncoder) -> None:
    item = outputs.item(pathlib.Path("/proc/self/status"), yielded=True)
    assert isinstance(item, FileItem)
    assert b"Pid:" in pathlib.Path(item.path).read_bytes()


@pytest.mark.covers("worker:W48")
@pytest.mark.parametrize("yielded", [False, True])
def test_W48_a_missing_file_fails_by_name(outputs: OutputEncoder, tmp_path: pathlib.Path, yielded: bool) -> None:
    for value in (tmp_path / "gone.png", {"a": tmp_path / "gone.png"}):
        with pytest.raises(FileNotFoundError, match=r"gone\.png"):
            outputs.item(value, yielded=yielded)


class Cut(BaseException):
    """Raised as a cancel is: in any frame, after any call."""


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a file that is dropped as soon as it is opened
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_a_cancel_at_any_call_leaves_no_descriptor_open(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("x")

    def cut_at(last: int) -> bool:
        """Encode a yielded file, and raise at an event; whether there were so many."""
        seen = 0

        def profile(frame: types.FrameType, event: str, value: object) -> None:
            nonlocal seen
            seen += frame.f_code is not cut_at.__code__
            if seen == last:
                raise Cut

        before = os.listdir("/proc/self/fd")
        try:
            sys.setprofile(profile)
            outputs.item(path, yielded=True)
        except Cut:
            pass
        finally:
            sys.setprofile(None)
        assert os.listdir("/proc/self/fd") == before, f"cut at event {last}"
        return seen >= last

    assert next(number for number in itertools.count(1) if not cut_at(number)) > 20


def test_what_is_no_regular_file(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe' is not a regular file"):
        outputs.item(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        outputs.item(tmp_path)


@pytest.mark.covers("lesson:32")
def test_open_files_are_read_from_the_start(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"sound")
    with open(tmp_path / "a.wav", "rb") as file, tempfile.NamedTemporaryFile(suffix=".txt") as temporary:
        file.read()
        temporary.write(b"hello")
        streams: list[Any] = [file, io.BytesIO(b"raw"), io.StringIO("é"), temporary, sdk.File(io.BytesIO(b"f"))]
        items = [outputs.item(stream, index) for index, stream in enumerate(streams)]
    found = [
        (os.path.basename(item.path), pathlib.Path(item.path).read_bytes()) for item in items if type(item) is FileItem
    ]
    assert found == [
        ("0.wav", b"sound"),
        ("1.bin", b"raw"),
        ("2.bin", "é".encode()),
        ("3.txt", b"hello"),
        ("4.bin", b"f"),
    ]


def test_an_object_of_unknown_kind_is_read_once(outputs: OutputEncoder) -> None:
    class Response:
        name = 7

        def read(self) -> bytes:
            return b"all"

    item = outputs.item(Response())
    assert isinstance(item, FileItem)
    assert pathlib.Path(item.path).read_bytes() == b"all"
    assert item.path.endswith("0.bin")
    assert composed(outputs, [Response()]) == [["1.bin", "all"]]


def test_a_name_with_an_odd_extension(outputs: OutputEncoder) -> None:
    class Named(io.BytesIO):
        name = "a.b/../c d"

    item = outputs.item(Named(b""))
    assert isinstance(item, FileItem)
    assert os.path.basename(item.path) == "0.bin"


@pytest.mark.covers("worker:W51")
def test_W51_files_inside_a_value_are_told_by_their_places(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    path = sdk.Path(tmp_path / "a.png")
    assert composed(outputs, OrderedDict(a=path)) == {"a": ["a.png", "png"]}
    value = {"é": None, "a": [io.StringIO("hi"), {"b": path}], "null": None}
    assert composed(outputs, value) == {"é": None, "a": [["0.bin", "hi"], {"b": ["a.png", "png"]}], "null": None}
    assert composed(outputs, [path], 0) == [["a.png", "png"]]
    shape = Shape(name="s", point=Point(1, sdk.Secret("k")), path=path)
    assert composed(outputs, shape) == {
        "name": "s",
        "point": {"x": 1, "key": MASK, "slots": None},
        "path": ["a.png", "png"],
    }
    assert encoded(outputs, {"a": None}) == {"a": None}, "an item without files after one with"


@pytest.mark.covers("worker:W51")
def test_W51_a_file_whose_key_is_overwritten_is_dropped(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    value = {1: tmp_path / "a", "1": tmp_path / "b"}
    assert composed(outputs, value) == {"1": ["b", "b"]}


@pytest.mark.covers("worker:W48")
def test_W48_a_missing_file_inside_a_value_is_named(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        outputs.item({"a": tmp_path / "gone"})


@pytest.mark.covers("worker:W68")
def test_W68_a_yielded_file_inside_a_value_is_copied(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.txt").write_text("first")
    item = outputs.item({"a": tmp_path / "a.txt"}, yielded=True)
    (tmp_path / "a.txt").write_text("second")
    assert isinstance(item, Composed)
    ((_, file),) = item.files
    assert pathlib.Path(file.path).read_text() == "first"
    assert os.path.basename(file.path) == "a.txt"


@pytest.mark.covers("worker:W69")
def test_W69_a_url_is_the_output(outputs: OutputEncoder) -> None:
    url = sdk.Path.validate("https://nobody.invalid/a.png")
    assert encoded(outputs, url) == "https://nobody.invalid/a.png"
    assert encoded(outputs, {"a": [url]}) == {"a": ["https://nobody.invalid/a.png"]}


def test_which_values_touch_the_disk(tmp_path: pathlib.Path) -> None:
    with open(os.devnull) as file:
        assert all(map(is_file, (tmp_path, io.BytesIO(), file)))
    assert not any(map(is_file, ("text", 1, None, {"a": tmp_path}, [tmp_path], object())))


def test_spilled_values(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    first, second = outputs.spill(b'"a"'), outputs.spill(b'"b"')
    assert [pathlib.Path(path).read_bytes() for path in (first, second)] == [b'"a"', b'"b"']
    assert os.path.isabs(first)


def test_iterators_with_files_inside(outputs: OutputEncoder, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "same.txt"

    def frames() -> Iterator[pathlib.Path]:
        for text in ("a", "b"):
            path.write_text(text)
            yield path

    assert composed(outputs, {"frames": frames()}) == {"frames": [["same.txt", "a"], ["same.txt", "b"]]}
