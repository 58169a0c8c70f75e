"""The stand-in wheel, installed by the uv of Cog's images: into nothing, over other releases of Cog, over cog-trio."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from cog_trio._version import COG_RELEASE, SDK_VERSION, __version__
from cog_trio.cli.wheel import pack

pytestmark = pytest.mark.process

SITE: Final = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
UV: Final = Path(sys.executable).parent / "uv"
OFFLINE: Final = {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_NO_CACHE": "1"}
TOLD: Final = f"{SDK_VERSION} cog_trio.sdk\ncog-trio {__version__} (Cog {COG_RELEASE})"
ASK: Final = """
import cog, coglet, requests, structlog, runpy, sys
print(cog.__version__, cog.__spec__.name, flush=True)
sys.argv[1:] = ["--version"]
runpy.run_module("cog.server.http", run_name="__main__", alter_sys=True)
"""


def _needed(name: str, extra: str = "") -> Iterator[Distribution]:
    """A distribution's requirements, and theirs, as they are installed here."""
    for requirement in map(Requirement, distribution(name).requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            try:
                yield distribution(requirement.name)
            except PackageNotFoundError:
                pytest.fail(f"{requirement.name} is not installed: install .[dev]")
            yield from _needed(requirement.name)


def _link(site: Path) -> None:
    """All that the stand-in requires; uv sees a .dist-info only if it is not a link."""
    for needed in {one.name: one for one in _needed("cog-trio", pack.EXTRA)}.values():
        for root in {file.parts[0] for file in needed.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            source, target = Path(str(needed.locate_file(root))), site / root
            if root.endswith(".dist-info"):
                shutil.copytree(source, target)
            elif not target.exists():
                target.symlink_to(source)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack.pack_stand_in().write(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    _link(tmp_path / "env" / SITE)
    return tmp_path / "env" / "bin" / "python"


def _other(folder: Path, name: str, version: str, package: str) -> Path:
    """A wheel of somebody else's ``cog`` or ``coglet``."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    files = {f"{package}/__init__.py": f"__version__ = {version!r}\n", f"{package}/server/http.py": "print('theirs')\n"}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD")))
    return path


def _uv(python: Path, *arguments: str | Path) -> str:
    done = subprocess.run(
        [UV, "pip", *arguments, "--python", python],
        env={**os.environ, **OFFLINE},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def _ask(python: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COG_"))}
    done = subprocess.run(
        [python, "-c", ASK], cwd=python.parent, env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("before", ["nothing", "an old Cog", "Cog and its runtime", "cog-trio"])
def test_the_stand_in_is_what_runs_whatever_was_there(
    python: Path, stand_in: Path, tmp_path: Path, before: str
) -> None:
    others = {
        "nothing": [],
        "an old Cog": [_other(tmp_path, "cog", "0.9.26", "cog")],
        "Cog and its runtime": [
            _other(tmp_path, "cog", "0.23.1", "cog"),
            _other(tmp_path, "coglet", "0.23.1", "coglet"),
        ],
        "cog-trio": [pack.pack_own().write(tmp_path)],
    }[before]
    if others:
        _uv(python, "install", "--no-deps", *others)
    _uv(python, "install", stand_in)
    assert _ask(python) == TOLD
    assert f"cog=={SDK_VERSION}" in _freeze(python)
    _uv(python, "check")


def _freeze(python: Path) -> str:
    code = "from importlib.metadata import version; print('cog==' + version('cog'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=50).stdout


def test_without_the_stand_in_an_installed_cog_is_what_runs(python: Path, tmp_path: Path) -> None:
    """Why there is a stand-in: ``cog`` of cog-trio stands behind an installed one, so theirs answers, silently."""
    _uv(python, "install", "--no-deps", _other(tmp_path, "cog", "0.23.1", "cog"), pack.pack_own().write(tmp_path))
    done = subprocess.run([python, "-m", "cog.server.http"], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "theirs\n"
