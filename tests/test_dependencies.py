"""What pyproject.toml says that cog-trio needs: all that it imports, from a lowest version on, and without caps.

`make test-lowest` runs the tests with these lowest versions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import metadata, requires, version
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parent.parent
MODULES: Final = {"yaml": "pyyaml"}  # that have another name than their distribution
BROUGHT: Final = {  # by what we require
    "anyio": "httpx",
    "h11": "httpx",
    "h2": "hypercorn",
    "httpcore": "httpx",
    "wsproto": "hypercorn",
}
CAPPED: Final = {"hypercorn"}  # we subclass its parts
MODELS_OWN: Final = {"pydantic", "pydantic_core"}  # used if a model has brought them
NO_USERS: Final = {"all", "dev", "docs"}  # extras that say nothing about what the package imports
EXTRAS: Final = {*(metadata("cog-trio").get_all("Provides-Extra") or [])} - NO_USERS


def _requirements(extra: str = "") -> list[Requirement]:
    found = [Requirement(text) for text in requires("cog-trio") or ()]
    return [one for one in found if ("extra ==" in str(one.marker)) == bool(extra) and _applies(one, extra)]


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _imported() -> Iterator[tuple[str, str]]:
    """Each file with each top-level module that it imports and that is neither ours nor Python's."""
    for file in (ROOT / "cog_trio").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"cog_trio"}:
                yield name, file.relative_to(ROOT).as_posix()


def test_all_that_is_imported_is_required() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named: set[str] = {canonicalize_name(one.name) for one in _requirements()}
    named |= {canonicalize_name(one.name) for extra in EXTRAS for one in _requirements(extra)}
    named |= {name for name in ("exceptiongroup", "typing-extensions") if f'"{name}>=' in text}  # on Python 3.10
    for module, brings in BROUGHT.items():
        assert any(canonicalize_name(Requirement(one).name) == module for one in _all_of(brings)), module
    missing = {
        (name, file)
        for name, file in _imported()
        if canonicalize_name(MODULES.get(name, name)) not in named
        and name not in BROUGHT.keys() | MODELS_OWN | {"annotationlib"}  # of Python 3.14
    }
    assert missing == set()


@pytest.mark.parametrize("pin", ["httpx==0.24.0", "h11==0.14.0", "click==8.1.3", "PyYAML==6.0.1", "trio==0.27.0"])
def test_what_models_pin_is_not_pushed_aside(pin: str) -> None:
    """An installer that comes after the model's requirements changes what our own do not allow."""
    pinned = Requirement(pin)
    (version_of_it,) = (one.version for one in pinned.specifier)
    ours = [one for one in map(Requirement, requires("cog-trio") or []) if one.name.lower() == pinned.name.lower()]
    plain = [one for one in ours if one.marker is None]
    assert all(one.specifier.contains(version_of_it) for one in plain)


def _all_of(name: str) -> list[str]:
    """What a distribution requires, and what that requires."""
    direct = requires(name) or []
    return [*direct, *(text for one in direct for text in _own(Requirement(one).name))]


def _own(name: str) -> list[str]:
    try:
        return requires(name) or []
    except ModuleNotFoundError:  # of an extra that is not installed
        return []


@pytest.mark.parametrize("requirement", _requirements(), ids=str)
def test_a_requirement_has_a_floor_and_hardly_ever_a_cap(requirement: Requirement) -> None:
    operators = {one.operator for one in requirement.specifier}
    assert operators == ({">=", "<"} if requirement.name in CAPPED else {">="})
    assert requirement.specifier.contains(version(requirement.name), prereleases=True)
