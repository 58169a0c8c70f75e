"""Files, URLs and secrets as user code sees them."""

from __future__ import annotations

import copy
import dataclasses
import io
import os
import pathlib
import pickle
import sys
from typing import Any

import httpx
import pydantic
import pytest

import cog_trio.sdk as cog
from cog_trio import _alias
from cog_trio.sdk.types import get_filename

_alias.install()


def test_secret_is_never_shown() -> None:
    secret = cog.Secret("hush")
    assert [str(secret), f"{secret}", f"{secret:>12}", repr(secret)] == [
        "**********",
        "**********",
        "  **********",
        "Secret(**********)",
    ]
    assert str(cog.Secret()) == ""
    assert secret.get_secret_value() == "hush"
    assert len(secret) == 4
    assert bool(cog.Secret(""))


def test_secret_is_a_value() -> None:
    assert cog.Secret("a") == cog.Secret("a") != cog.Secret("b")
    assert len({cog.Secret("a"), cog.Secret("a")}) == 1
    assert pickle.loads(pickle.dumps(cog.Secret("a"))) == cog.Secret("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        cog.Secret("a").secret_value = "b"  # type: ignore[misc]


def test_paths_stay_ours() -> None:
    path = cog.Path("/a/b.txt")
    for derived in (path.parent, path / "c", path.with_suffix(".c"), pickle.loads(pickle.dumps(path)), cog.Path.cwd()):
        assert type(derived) is cog.Path
    assert isinstance(path, pathlib.Path)
    assert cog.Path.__module__ == "cog.types"


def test_path_validate() -> None:
    assert cog.Path.validate("a/b") == cog.Path("a/b")
    plain = pathlib.Path("x")
    assert cog.Path.validate(plain) is plain
    url = cog.Path.validate("https://h/a/b%20c.png?v=1")
    assert isinstance(url, cog.URLPath)
    assert (str(url), url.filename, url.name) == ("https://h/a/b%20c.png?v=1", "b c.png", "b c.png")
    with pytest.raises(ValueError, match="int"):
        cog.Path.validate(5)


def test_url_path_converts_once() -> None:
    path = cog.Path.validate("data:text/plain;base64,aGk=")
    assert isinstance(path, cog.URLPath)
    local = path.convert()
    assert path.convert() is local
    assert local.name.endswith("file.txt")
    assert local.read_bytes() == b"hi"
    path.unlink()
    assert not local.exists()
    with pytest.raises(FileNotFoundError):
        path.unlink()
    path.unlink(missing_ok=True)


def test_url_path_is_a_path_and_what_derives_from_it_is_no_url() -> None:
    path = cog.URLPath(source="https://h/a.png", filename="a.png", fileobj=None)
    assert isinstance(path, pathlib.Path)
    assert type(path.parent) is cog.Path
    assert type(path / "b") is cog.Path
    assert path.suffix == ".png"
    assert os.fspath(path) == "https://h/a.png"
    again = pickle.loads(pickle.dumps(path))
    assert (again.source, again.filename) == ("https://h/a.png", "a.png")
    assert str(copy.deepcopy(path)) == "https://h/a.png"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/", ""),
        ("https://h", ""),
        ("https://h/a/b%20c.png?v=1#f", "b c.png"),
        ("https://h/a+b.txt", "a b.txt"),
        ("https://h/a%2Fb%00.txt", "a_b_.txt"),
        ("https://h/" + "x" * 300 + ".png", "x" * 195 + "~.png"),
        ("https://h/" + "é" * 200 + ".png", "é" * 97 + "~.png"),
        ("https://h/a." + "x" * 300, "a." + "x" * 197 + "~"),
        ("data:text/plain;base64,aGk=", "file.txt"),
        ("data:,hi", "file.txt"),
        ("data:no/such;base64,aGk=", "file"),
        ("data:audio/wav;base64,aGk=", "file.wav"),
        ("data:image/webp,x", "file.webp"),
        ("data:audio/flac,x", "file.flac"),
        ("data:model/gltf-binary,x", "file.glb"),
        ("data:video/webm,x", "file.webm"),
        ("DATA:image/png,x", "file.png"),
    ],
)
def test_get_filename(url: str, name: str) -> None:
    assert get_filename(url) == name
    assert len(name.encode()) <= 200


def test_file_of_something_readable_is_that() -> None:
    buffer = io.BytesIO(b"x")
    same: Any = cog.File(buffer)
    assert same is buffer
    with pytest.raises(TypeError, match="read"):
        cog.File(5)
    assert isinstance(cog.File(), io.IOBase)


def test_file_validate() -> None:
    assert cog.File.validate("data:text/plain;base64,aGk=").read() == b"hi"
    assert isinstance(cog.File.validate("https://h/a"), cog.URLFile)
    for bad in ("a/b", "file:///etc/passwd", "data:no-comma", 5):
        with pytest.raises(ValueError):  # noqa: PT011 - any text
            cog.File.validate(bad)


class Served:
    """Stands for the network under `URLFile`: one answer, and what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, response: httpx.Response) -> None:
        self.requests: list[httpx.Request] = []
        self.closed = 0

        def answer(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            return response

        real = httpx.Client

        def client(**options: Any) -> httpx.Client:
            self.options = options
            return real(transport=httpx.MockTransport(answer), **options)

        monkeypatch.setattr(httpx, "Client", client)


def test_url_file_is_opened_by_the_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch, httpx.Response(200, content=b"one\ntwo\nthree"))
    monkeypatch.setenv("COG_USER_AGENT", "agent/1")
    file = cog.URLFile("https://h/some%20name.txt")
    assert file.name == "some name.txt"
    assert served.requests == []
    assert file.readline() == b"one\n"
    assert file.read(2) == b"tw"
    assert list(file) == [b"o\n", b"three"]
    assert file.read() == b""
    (request,) = served.requests
    assert request.headers["user-agent"] == "agent/1"
    assert served.options["timeout"] == 10.0
    file.close()
    file.close()
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read()


@pytest.mark.parametrize("status", [204, 205, 300, 302, 304, 404])
def test_url_file_raises_for_answers_without_the_file(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    Served(monkeypatch, httpx.Response(status))
    with pytest.raises(httpx.HTTPStatusError):
        cog.URLFile("https://h/a").read()


def test_url_file_pickles_while_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    Served(monkeypatch, httpx.Response(200, content=b"x"))
    file = cog.URLFile("https://h/a", "b.txt")
    again = pickle.loads(pickle.dumps(file))
    assert (again.url, again.name) == ("https://h/a", "b.txt")
    file.read()
    with pytest.raises(TypeError, match="opened"):
        pickle.dumps(file)
    file.close()


def test_url_file_is_for_http_only() -> None:
    for url in ("ftp://h/a", "data:,x", "name"):
        with pytest.raises(ValueError, match="http"):
            cog.URLFile(url)


@pytest.mark.covers("sdk:W22")
def test_W22_our_types_in_pydantic_classes(tmp_path: pathlib.Path) -> None:
    class Out(pydantic.BaseModel):
        path: cog.Path
        secret: cog.Secret | None = None
        file: cog.File | None = None

    made = Out(path=cog.Path("/a"), secret=cog.Secret("k"), file=io.BytesIO(b"x"))  # type: ignore[arg-type]
    assert made.model_dump()["path"] == cog.Path("/a")
    assert made.model_dump()["secret"] == cog.Secret("k")
    assert made.model_dump_json(exclude={"file"}) == '{"path":"/a","secret":"**********"}'
    properties = Out.model_json_schema()["properties"]
    assert properties["path"]["format"] == "uri"
    assert properties["secret"]["anyOf"][0]["writeOnly"] is True


def test_iterators_are_annotations_only() -> None:
    for kind in (cog.ConcatenateIterator, cog.AsyncConcatenateIterator):
        with pytest.raises(TypeError):
            kind()  # type: ignore[abstract]
    assert cog.ConcatenateIterator[str] is not None


def test_older_names_of_types() -> None:
    from cog_trio.sdk import types

    assert types.Input is cog.Input
    assert types.PYDANTIC_V2 is True
    assert types.CogConfig is not None
    with pytest.raises(AttributeError):
        types.Nothing  # noqa: B018
    assert sys.modules["cog"] is cog
