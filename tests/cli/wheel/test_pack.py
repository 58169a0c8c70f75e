"""The wheels that cog-trio packs of itself: their names and contents, and that the same files give the same bytes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

import cog_trio
from cog_trio.cli.wheel import pack
from cog_trio.cli.wheel.command import command
from cog_trio.sdk import __version__ as sdk_version

OURS: Final = Path(cog_trio.__file__).parent
COGS: Final = {
    "typing-extensions>=4.0",
    "pyyaml>=6.0",
    "structlog>=21.0.0",
    "requests>=2.25.0",
}  # Cog's own SDK says so


def _files(wheel: pack.Wheel) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def _info(files: dict[str, bytes], name: str) -> str:
    (text,) = (data.decode() for file, data in files.items() if file.endswith(f".dist-info/{name}"))
    return text


def _required(files: dict[str, bytes], extra: str = "") -> set[str]:
    metadata = Parser().parsestr(_info(files, "METADATA"))
    found = map(Requirement, metadata.get_all("Requires-Dist") or [])
    return {
        str(one).partition(";")[0].strip().lower()
        for one in found
        if one.marker is None or one.marker.evaluate({"extra": extra})
    }


def test_the_stand_in_is_a_cog_whose_version_says_what_it_is() -> None:
    wheel = pack.pack_stand_in()
    name, version, build, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version), build, set(map(str, tags))) == ("cog", sdk_version, (), {"py3-none-any"})
    for wanted in ("cog==0.23.1", "cog>=0.9"):  # what a requirement of Cog's may say
        assert version in Requirement(wanted).specifier
    assert "coglet" not in wheel.name  # Cog would take it for another runtime
    files = _files(wheel)
    assert {file.partition("/")[0] for file in files} == {
        "cog",
        "cog_trio",
        "cog_trio_alias.pth",
        f"cog-{sdk_version}.dist-info",
    }
    assert {file for file in files if file.startswith("cog/")} == {"cog/__init__.py", "cog/py.typed"}
    assert files["cog/__init__.py"] == (OURS / "_alias" / "cog" / "__init__.py").read_bytes()
    assert _info(files, "entry_points.txt") == "[console_scripts]\ncog-trio = cog_trio.cli:main\n"
    assert "Apache License" in _info(files, "LICENSE")
    metadata = Parser().parsestr(_info(files, "METADATA"))
    assert [metadata[key] for key in ("Metadata-Version", "Name", "Version")] == ["2.1", "cog", sdk_version]


def test_the_stand_in_requires_what_we_and_cogs_sdk_require_and_no_coglet() -> None:
    required = _required(_files(pack.pack_stand_in()))
    assert required == _required(_files(pack.pack_own())) | COGS


def test_our_own_wheel_has_our_name_and_extras() -> None:
    files = _files(pack.pack_own())
    assert {file.partition("/")[0] for file in files} >= {"cog_trio", "cog_trio_alias.pth"}
    assert not any(file.startswith(("cog/", "coglet/")) for file in files)
    assert _required(files, pack.EXTRA) - _required(files) == COGS - _required(files)
    assert "cog_trio.testing.plugin" in _info(files, "entry_points.txt")


@pytest.mark.parametrize("packed", [pack.pack_stand_in, pack.pack_own])
def test_a_wheel_holds_the_whole_package_once_and_its_record_is_true(packed: Callable[[], pack.Wheel]) -> None:
    wheel = packed()
    files = _files(wheel)
    assert packed().data == wheel.data
    sources = {path.relative_to(OURS.parent).as_posix() for path in OURS.rglob("*.py")} | {"cog_trio/py.typed"}
    assert {file for file in files if file.startswith("cog_trio/")} >= sources
    assert not [file for file in files if file.endswith((".pyc", "/"))]
    assert files["cog_trio_alias.pth"] == (OURS / "_alias" / "cog_trio_alias.pth").read_bytes()
    told = {}
    for file, digest, size in csv.reader(_info(files, "RECORD").splitlines()):
        told[file] = size
        if not file.endswith("/RECORD"):
            data = files[file]
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={encoded}", str(len(data)))
    assert told.keys() == files.keys()


def test_the_command_prints_the_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pack, "is_editable", lambda: False)
    wheel = pack.pack_stand_in()
    for arguments, folder in (
        ([], tmp_path / "cache" / "cog-trio"),
        (["-o", str(tmp_path / "a" / "b")], tmp_path / "a/b"),
    ):
        for _ in range(2):
            result = CliRunner().invoke(command, arguments, standalone_mode=False)
            assert (result.exception, result.output) == (None, f"{folder / wheel.name}\n")
            assert [path.name for path in folder.iterdir()] == [wheel.name]
            assert (folder / wheel.name).read_bytes() == wheel.data
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(command, ["-o", str(tmp_path / "file" / "x")], standalone_mode=False)
    assert re.match(r"can't write .*file.*: Not a directory", str(refused.exception))


def test_without_an_installed_cog_trio_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside another cog: what that requires says nothing about cog-trio."""
    other = SimpleNamespace(version="0.23.1")

    def find(name: str) -> object:
        if name == "cog":
            return other
        raise PackageNotFoundError(name)

    monkeypatch.setattr(pack, "distribution", find)
    assert not pack.is_from_index()
    result = CliRunner().invoke(command, ["-o", "unused"], standalone_mode=False)
    assert "this cog-trio is not installed" in str(result.exception)
    other.version = sdk_version
    other.requires, other.read_text = ["requests"], lambda _: None
    assert _required(_files(pack.pack_stand_in())) == {"requests"}  # the stand-in packs itself


def test_without_a_home_folder_the_command_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    assert "by -o" in str(CliRunner().invoke(command, [], standalone_mode=False).exception)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object, __: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        pack.Wheel("x.whl", b"data").write(tmp_path)
    assert list(tmp_path.iterdir()) == []
