"""The built wheel: pure, whole, and its ``cog`` is there for everybody and in nobody's way (D34)."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from cog_trio._version import COG_RELEASE, __version__

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).parent.parent
SITE: Final = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
FOREIGN: Final = "__version__ = '0.23.1'\nclass BaseRunner: pass\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.iterdir()
    return built


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """An environment where the wheel is installed (a pure wheel is unpacked) and its dependencies can be seen."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / SITE
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def _run(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, *arguments], cwd=python.parent.parent, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_wheel_is_pure_and_holds_only_the_package_and_the_pth(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read("cog_trio_alias.pth") == b"cog_trio/_alias\n"
        metadata = next(name for name in names if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: true" in archive.read(metadata)
        entries = archive.read(metadata.replace("/WHEEL", "/entry_points.txt")).decode()
        assert "[pytest11]\ncog_trio = cog_trio.testing.plugin\n" in entries
    roots = {name.partition("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"cog_trio", "cog_trio_alias.pth"}
    packed = {name for name in names if name.startswith("cog_trio/")}
    files = [path for kind in ("*.py", "*.html", "*.css", "*.js") for path in (ROOT / "cog_trio").rglob(kind)]
    assert packed == {path.relative_to(ROOT).as_posix() for path in files} | {"cog_trio/py.typed"}
    assert wheel.stat().st_size < 4 * 2**20


@pytest.mark.covers("D34")
def test_cog_can_be_imported_where_none_is_installed(python: Path) -> None:
    said = _run(
        python, "-c", "import cog, cog_trio.sdk; print(cog.__file__, cog.BaseRunner is cog_trio.sdk.BaseRunner)"
    )
    assert said.endswith(" True")
    assert str(Path("cog_trio", "_alias")) in said or str(Path("cog_trio", "sdk")) in said


@pytest.mark.parametrize("module", ["cog.server.http", "cog_trio.server.http"])
def test_container_entry_answers_under_both_names(python: Path, module: str) -> None:
    assert _run(python, "-m", module, "--version") == f"cog-trio {__version__} (Cog {COG_RELEASE})"


@pytest.mark.covers("D34")
def test_installed_cog_is_neither_shadowed_nor_changed(python: Path) -> None:
    site = python.parent.parent / SITE
    (site / "cog").mkdir()
    (site / "cog" / "__init__.py").write_text(FOREIGN)
    assert _run(python, "-c", "import cog; print(cog.__file__)") == str(site / "cog" / "__init__.py")
    assert (site / "cog" / "__init__.py").read_text() == FOREIGN


@pytest.mark.covers("D34")
def test_worker_sees_ours_also_beside_an_installed_cog(python: Path) -> None:
    """The path that spawn gives the worker, in an environment with another cog."""
    site = python.parent.parent / SITE
    (site / "cog").mkdir()
    (site / "cog" / "__init__.py").write_text(FOREIGN)
    inner = "import cog, cog_trio.sdk as sdk; print(cog.BaseRunner is sdk.BaseRunner)"
    code = (
        f"import subprocess, sys; from cog_trio.orchestrator.spawn import _environment;"
        f"subprocess.run([sys.executable, '-c', {inner!r}], env=_environment(None))"
    )
    assert _run(python, "-c", code) == "True"
