"""Rows of the compatibility checklist whose effect is end to end: edge, worker, model and reply together.

Each model is written for its story. ``x`` stands for the row's input; what ``run`` saw comes back as the output.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from cog_trio.testing import FileServer, ServeModel, Server

NAMED = "stream temporary nan map ordered date bool array decimal uuid enum keys set int"
PRELUDE = "import io, os, sys\nfrom typing import *\nfrom cog import *\nimport cog, pathlib\n"


class Model:
    """Serves a model of this text."""

    def __init__(self, serve_model: ServeModel, folder: Path) -> None:
        self._serve = serve_model
        self.folder = folder

    @asynccontextmanager
    async def __call__(self, source: str, **options: Any) -> AsyncIterator[Server]:
        file = self.folder / "model.py"
        file.write_text(PRELUDE + source)
        with trio.fail_after(60):
            async with self._serve(file, **options) as server:
                yield server


@pytest.fixture
def model(serve_model: ServeModel, tmp_path: Path) -> Model:
    (tmp_path / "m").mkdir()
    return Model(serve_model, tmp_path / "m")


async def _output(server: Server, input: Any = None) -> Any:
    reply = (await server.predict(input)).json()
    assert reply["status"] == "succeeded", reply
    return reply["output"]


async def _error(server: Server, input: Any) -> str:
    reply = (await server.predict(input)).json()
    assert reply["status"] == "failed", reply
    assert isinstance(reply["error"], str)
    return reply["error"]


async def _places(server: Server, input: Any) -> list[list[Any]]:
    reply = await server.predict(input)
    assert reply.status_code == 422, reply.text
    return [fault["loc"][2:] for fault in reply.json()["detail"]]


def _data(text: str, kind: str = "text/plain") -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


@pytest.mark.covers("sdk:W10", "sdk:2", "sdk:3")
async def test_row_02_03_W10_numbers_are_exact_both_ways(model: Model) -> None:
    """Given integers of up to 4,300 digits, when they come as inputs or as outputs, then they are exact, 1.0 is an
    int, 1 a float; a longer one is 400 at the edge and a failure as an output."""
    source = """
class Runner(BaseRunner):
    def run(self, x: int = 0, f: float = 0, digits: int = 0) -> dict:
        made = 10 ** (digits - 1) if digits else 0
        return {"x": x, "types": [type(x).__name__, type(f).__name__], "f": f, "made": made}
"""
    most = 10**4299 + 7
    async with model(source) as server:
        for number in (2**53 + 1, 10**20, -(10**30), most, -(most // 10)):  # the sign counts as a digit
            body = b'{"input": {"x": ' + str(number).encode() + b"}}"
            reply = await server.client.post("/predictions", content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 200, reply.text[:300]
            assert json.loads(reply.content)["output"]["x"] == number
        seen = await _output(server, {"x": 1.0, "f": 1})
        assert (seen["x"], seen["f"], seen["types"]) == (1, 1.0, ["int", "float"])
        long = await server.client.post(
            "/predictions",
            content=b'{"input": {"x": 1' + b"0" * 4300 + b"}}",
            headers={"content-type": "application/json"},
        )
        assert (long.status_code, "detail" in long.json()) == (400, True)
        assert len(long.text) < 500
        assert (await _output(server, {"digits": 4300}))["made"] == 10**4299
        assert "4300 digits" in await _error(server, {"digits": 4301})
        assert await _places(server, {"x": True, "f": "1"}) == [["x"], ["f"]]


@pytest.mark.covers("sdk:W9", "sdk:W11", "sdk:9", "sdk:18", "sdk:35")
async def test_row_09_18_35_W9_W11_null_is_none(model: Model) -> None:
    """Given inputs that may be left out, when they are null or left out, then run sees None; others refuse null."""
    source = """
class Runner(BaseRunner):
    def run(
        self,
        a: Optional[int] = 5,
        b: int = Input(default=None),
        c: Optional[str] = Input(default=None, choices=["a", "b"]),
        d: str | float | None = Input(default=None),
        e: Optional[list[str]] = None,
        f: str = "f",
    ) -> list:
        return [a, b, c, d, e, f]
"""
    async with model(source) as server:
        assert await _output(server) == [5, None, None, None, None, "f"]
        assert await _output(server, dict.fromkeys("abcde")) == [None, None, None, None, None, "f"]
        assert await _places(server, {"f": None}) == [["f"]]
        assert await _places(server, {"a": "3", "b": "a", "c": "c", "d": True, "e": ["a", 1]}) == [
            ["a"],
            ["b"],
            ["c"],
            ["d"],
            ["e/1"],
        ]


FILES = """
class Runner(BaseRunner):
    def run(
        self,
        p: Path = Input(default=None),
        many: list[Path] = [],
        q: pathlib.Path = Input(default=None),
        f: Optional[File] = None,
        d: Path = Path("kept.txt"),
    ) -> dict:
        print("run was called")
        found = [item for item in (p, *many, q) if item is not None]
        return {
            "types": [type(item) is Path for item in found],
            "names": [item.name for item in found],
            "texts": [item.read_text() for item in found],
            "paths": [str(item) for item in found],
            "f": None if f is None else [type(f).__name__, f.read().decode()],
            "d": [type(d) is Path, str(d), d.read_text()],
        }
"""


@pytest.mark.covers("sdk:40", "sdk:41", "sdk:42", "sdk:43", "sdk:44")
async def test_row_40_41_42_43_44_files_come_as_files_and_go(model: Model, file_server: FileServer) -> None:
    """Given data: and http: URLs for Path, list[Path], pathlib.Path and File, when the model runs, then it sees files
    of the right name and content, gone afterwards; a default file is kept; a 404 fails before run is called."""
    (model.folder / "kept.txt").write_text("kept")
    async with model(FILES) as server:
        reply = (
            await server.predict(
                {
                    "p": _data("hi"),
                    "many": [file_server.add("a/b c.png", b"picture") + "?v=1", _data("two", "audio/wav")],
                    "q": file_server.add("q.txt", b"q"),
                    "f": _data("stream"),
                }
            )
        ).json()
        assert reply["status"] == "succeeded", reply
        seen = reply["output"]
        assert seen["types"] == [True] * 4
        assert [
            name.endswith(end) for name, end in zip(seen["names"], [".txt", "b c.png", ".wav", "q.txt"], strict=True)
        ]
        assert seen["texts"] == ["hi", "picture", "two", "q"]
        assert seen["f"] == ["BytesIO", "stream"]
        assert seen["d"] == [True, "kept.txt", "kept"]
        with trio.fail_after(20):  # the end of a run does not wait for its folder
            while any(Path(path).exists() for path in seen["paths"]):
                await trio.sleep(0.02)
        assert sorted(file_server.paths) == ["/a/b%20c.png?v=1", "/q.txt"]
        assert (await _output(server, {"f": file_server.add("f.txt", b"f")}))["f"] == ["URLFile", "f"]
        missing = (await server.predict({"p": f"{file_server.url}/none"})).json()
        assert missing["status"] == "failed"
        assert missing["error"].startswith("Input validation error: ")
        assert "404" in missing["error"]
        assert missing["logs"] == ""
        assert (await _error(server, {"p": "data:;base64,a"})).startswith("Input validation error: p: ")
        assert (await _error(server, {"many": [_data("a"), "data:nothing"]})).startswith(
            "Input validation error: many[1]: "
        )
        assert await _places(server, {"p": "name", "many": ["data:,a", "file:///etc/passwd"], "q": "", "f": "x"}) == [
            ["p"],
            ["many/1"],
            ["q"],
            ["f"],
        ]
    assert (model.folder / "kept.txt").read_text() == "kept"


@pytest.mark.covers("sdk:W3", "sdk:42")
async def test_row_42_W3_a_default_that_is_a_url_is_downloaded(model: Model, file_server: FileServer) -> None:
    """Given a default that is a URL, when the input is left out, then run sees a downloaded file each time."""
    url = file_server.add("d.txt", b"default")
    source = f"""
class Runner(BaseRunner):
    def run(self, x: Path = Input(default="{url}"), s: Secret = Input(default="hidden")) -> list:
        return [type(x) is Path, x.name[-5:], x.read_text(), type(s) is Secret, len(s.get_secret_value())]
"""
    async with model(source) as server:
        schema = (await server.client.get("/openapi.json")).json()["components"]["schemas"]["Input"]
        for _ in range(2):
            assert await _output(server) == [True, "d.txt", "default", True, 6]
    assert len(file_server.came) == 2
    assert schema["properties"]["x"]["default"] == url
    assert "default" not in schema["properties"]["s"]


@pytest.mark.covers("sdk:W1", "sdk:W2", "sdk:25", "sdk:29", "sdk:50")
async def test_row_25_29_50_W1_W2_defaults_are_values_and_fresh(model: Model) -> None:
    """Given mutable defaults under functools.wraps, when two requests append to them, then each began again."""
    source = """
import functools
def wrap(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
class Runner(BaseRunner):
    @wrap
    def run(self, x: list[str] = Input(default=["q"]), d: dict = Input(default={"k": [1]}), n: int = Input(4)) -> list:
        x.append("w")
        d["k"].append(2)
        return [x, d, n]
"""
    async with model(source) as server:
        for _ in range(2):
            assert await _output(server) == [["q", "w"], {"k": [1, 2]}, 4]


@pytest.mark.covers("sdk:W7", "sdk:46", "sdk:47")
async def test_row_46_47_W7_secrets_stay_secret(model: Model) -> None:
    """Given secrets as inputs, when they are printed, returned, nested in outputs or wrong, then nothing shows them."""
    source = """
import dataclasses
@dataclasses.dataclass
class Kept:
    key: Secret
class Runner(BaseRunner):
    def run(self, x: Secret, many: list[Secret] = [], none: Secret = Input(default=None)) -> Any:
        print(x, many, f"{x!r}", none)
        return [type(x).__name__, x, many, Kept(x), {"in": [x]}, none, x.get_secret_value() == "hunter2"]
"""
    async with model(source) as server:
        reply = await server.predict({"x": "hunter2", "many": ["hunter3"]}, id="kept")
        again = await server.client.get("/predictions/kept")
        wrong = await server.predict({"x": 4711, "many": ["hunter3", 4712], "none": ["hunter4"]})
        log = str(server.log)
    mask = "*" * 10
    assert reply.json()["output"] == ["Secret", mask, [mask], {"key": mask}, {"in": [mask]}, None, True]
    assert wrong.status_code == 422
    assert [fault["loc"][2:] for fault in wrong.json()["detail"]] == [["x"], ["many/1"], ["none"]]
    assert "hunter" not in reply.text + again.text + wrong.text + log
    assert "471" not in wrong.text


@pytest.mark.covers("sdk:W26", "sdk:W27", "sdk:48", "sdk:49", "sdk:51")
async def test_row_48_49_51_W26_W27_kinds_of_parameters(model: Model) -> None:
    """Given positional-only, keyword-only and ** parameters, when inputs come, then each gets its own; no input at
    all, null and a missing body are the same; a list is refused."""
    source = """
class Runner(BaseRunner):
    @staticmethod
    def run(a: int = 1, /, b: int = 2, *args: int, c: int = Input(default=4), **kwargs: Any) -> list:
        return [a, b, list(args), c, kwargs]
"""
    async with model(source) as server:
        assert await _output(server, {"a": 7, "c": 5, "more": {"x": None}}) == [7, 2, [], 5, {"more": {"x": None}}]
        post = server.client.post
        headers = {"content-type": "application/json"}
        for body in (b'{"input": null}', b"{}", b'{"input": {}}'):
            reply = await post("/predictions", content=body, headers=headers)
            assert reply.json()["output"] == [1, 2, [], 4, {}], (body, reply.text)
        assert await _places(server, []) == [["__root__"]]


@pytest.mark.covers("sdk:52", "sdk:53", "sdk:54")
async def test_row_52_53_54_one_output_or_many(model: Model) -> None:
    """Given an annotation of list, when one value, none, a list or a generator comes, then the output is a list."""
    source = """
class Runner(BaseRunner):
    def run(self, how: str) -> list[str]:
        if how == "generator":
            return (str(n) for n in range(2))
        return {"list": ["a"], "tuple": ("a", "b"), "none": None, "text": "abc", "empty": []}[how]
"""
    async with model(source) as server:
        found = {
            how: await _output(server, {"how": how}) for how in ("generator", "list", "tuple", "none", "text", "empty")
        }
    assert found == {
        "generator": ["0", "1"],
        "list": ["a"],
        "tuple": ["a", "b"],
        "none": [],
        "text": ["abc"],
        "empty": [],
    }


@pytest.mark.covers("sdk:53", "sdk:54")
@pytest.mark.parametrize("kind", ["Iterator", "ConcatenateIterator"])
async def test_row_53_54_iterators_give_arrays(model: Model, kind: str) -> None:
    """Given a generator, when it yields, then the final output is the array of what it yielded."""
    source = f"""
class Runner(BaseRunner):
    @streaming
    def run(self, n: int = 2) -> {kind}[str]:
        yield from "ab"[:n]
"""
    async with model(source) as server:
        assert await _output(server) == ["a", "b"]
        assert await _output(server, {"n": 0}) == []


@pytest.mark.covers("sdk:55")
async def test_row_55_structured_output_with_a_file(model: Model) -> None:
    """Given a cog.BaseModel with a file, an optional and a default, when it is returned, then it is an object."""
    source = """
class M(BaseModel):
    p: Path
    n: Optional[int]
    d: int = 3
class Runner(BaseRunner):
    def run(self, x: Path) -> M:
        return M(p=x)
"""
    async with model(source) as server:
        assert await _output(server, {"x": _data("hi")}) == {"p": _data("hi"), "n": None, "d": 3}


@pytest.mark.covers("sdk:W21", "sdk:57")
async def test_row_57_W21_values_of_any_kind(model: Model) -> None:
    """Given outputs of many kinds, when they are returned, then they are JSON; what is none fails with its place."""
    source = """
import collections, dataclasses, datetime, decimal, enum, tempfile, uuid
import numpy as np
class E(enum.Enum):
    A = "a"
def values(text):
    file = tempfile.NamedTemporaryFile(suffix=".txt")
    file.write(text.encode()); file.flush()
    return file
class Runner(BaseRunner):
    def run(self, how: str) -> Any:
        self.kept = values("hi")
        path = Path(self.kept.name)
        return {
            "stream": lambda: io.StringIO("hi"),
            "temporary": lambda: self.kept,
            "missing": lambda: Path("/no/such/file.png"),
            "nan": lambda: [float("nan"), 1.5, float("-inf")],
            "map": lambda: map(str, [1]),
            "ordered": lambda: collections.OrderedDict(a=path),
            "date": lambda: datetime.date(2020, 1, 2),
            "bool": lambda: np.bool_(True),
            "array": lambda: np.array([[1, 2]]),
            "decimal": lambda: decimal.Decimal("1.50"),
            "uuid": lambda: uuid.UUID(int=1),
            "enum": lambda: {E.A.value: E.A},
            "keys": lambda: {1: "a", None: "b", True: "c", 1.5: "d"},
            "set": lambda: {1},
            "int": lambda: "not enforced",
            "bytes": lambda: {"a": [b"x"]},
            "object": lambda: object(),
        }[how]()
"""
    async with model(source) as server:
        found = {how: await _output(server, {"how": how}) for how in NAMED.split()}
        nan = (await server.predict({"how": "nan"})).json()
        errors = {how: await _error(server, {"how": how}) for how in ("missing", "bytes", "object")}
    assert found == {
        "stream": _data("hi", "application/octet-stream"),
        "temporary": _data("hi"),
        "nan": [None, 1.5, None],
        "map": ["1"],
        "ordered": {"a": _data("hi")},
        "date": "2020-01-02",
        "bool": True,
        "array": [[1, 2]],
        "decimal": 1.5,
        "uuid": "00000000-0000-0000-0000-000000000001",
        "enum": {"a": "a"},
        "keys": {"1": "c", "null": "b", "1.5": "d"},
        "set": [1],
        "int": "not enforced",
    }
    assert "NaN" in nan["logs"]
    assert "/no/such/file.png" in errors["missing"]
    assert "bytes cannot be turned into JSON, at output.a[0]" in errors["bytes"]
    assert "object cannot be turned into JSON" in errors["object"]


@pytest.mark.covers("sdk:W20", "sdk:59")
@pytest.mark.parametrize(("weights", "seen"), [("https://h/w.tar", ["https://h/w.tar", "w.tar"]), ("", None)])
async def test_row_59_W20_weights_go_to_weights(model: Model, weights: str, seen: Any) -> None:
    """Given a setup with another first parameter, when COG_WEIGHTS is a URL or empty, then weights alone gets it;
    sys.argv has one element in import and setup."""
    source = """
at_import = len(sys.argv)
class Runner(BaseRunner):
    def setup(self, device="cpu", weights: Optional[Path] = None):
        self.seen = [device, None if weights is None else [str(weights), weights.name], at_import, len(sys.argv)]
    def run(self) -> list:
        return self.seen
"""
    async with model(source, env={"COG_WEIGHTS": weights}) as server:
        assert await _output(server) == ["cpu", seen, 1, 1]


@pytest.mark.covers("sdk:W28")
async def test_W28_every_fault_in_the_order_of_the_signature_and_short(model: Model) -> None:
    """Given many wrong inputs, some of them long, when they come, then one 422 lists each with its place, in the
    order of the signature, and repeats no long value; unknown ones are dropped with a warning of their names."""
    source = """
class Runner(BaseRunner):
    def run(self, z: int, y: list[int], x: str = Input(max_length=3), w: float = Input(le=1), v: str = "v") -> str:
        return v
"""
    async with model(source) as server:
        reply = await server.predict({"v": 1, "w": 2, "x": "long" * 1000, "y": [1, "2" * 1000, 2.5], "un": "known"})
        assert reply.status_code == 422
        detail = reply.json()["detail"]
        assert [fault["loc"] for fault in detail] == [
            ["body", "input", *place] for place in (["z"], ["y/1"], ["y/2"], ["x"], ["w"], ["v"])
        ]
        assert [fault["type"] for fault in detail] == ["value_error.missing"] + ["value_error"] * 5
        assert detail[0]["msg"] == "Field required"
        assert max(len(fault["msg"]) for fault in detail) < 200
        good = (await server.predict({"z": 1, "y": [], "x": "abc", "w": 1, "known_to_none": "its value"})).json()
        assert good["output"] == "v"
        with trio.fail_after(10):
            while "known_to_none" not in str(server.log):
                await trio.sleep(0.02)
        assert "its value" not in str(server.log)


@pytest.mark.covers("sdk:W17", "sdk:W19", "sdk:60", "sdk:61")
async def test_row_60_61_W17_W19_training_beside_prediction(model: Model) -> None:
    """Given cog.yaml with run and train, both with choices of one name, when the document is asked for, then it has
    both halves and each keeps its own choices."""
    (model.folder / "train.py").write_text(
        PRELUDE + "class Trainer:\n    def setup(self): ...\n"
        "    def train(self, a: str = Input(choices=['c', 'd'])) -> Path: ...\n"
    )
    (model.folder / "cog.yaml").write_text("run: model.py\ntrain: train.py:Trainer\n")
    source = """
class Runner(BaseRunner):
    def run(self, a: str = Input(choices=["a", "b"]), Output: str = Input(default="o", choices=["o"])) -> str:
        return a
"""
    async with model(source) as server:
        document = (await server.client.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]
        assert await _output(server, {"a": "b"}) == "b"
        assert await _places(server, {"a": "c"}) == [["a"]]
    assert {"/predictions", "/trainings", "/trainings/{training_id}/cancel"} <= document["paths"].keys()
    assert schemas["a"]["enum"] == ["a", "b"]
    assert schemas["TrainingInput_a"]["enum"] == ["c", "d"]
    assert schemas["Output"] == {"title": "Output", "type": "string"}
    assert schemas["TrainingOutput"]["title"] == "TrainingOutput"
