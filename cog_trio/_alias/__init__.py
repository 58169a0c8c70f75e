"""The names `cog` and `coglet`, which models import, for the modules of `cog_trio.sdk`.

This folder stands on ``sys.path`` of workers and their children, right behind the working folder, and (by a ``.pth`` of
the wheel) behind site-packages everywhere else; so the thin packages in it are found where they should win, and never
where another `cog` is installed and wanted. Either way of importing gives the same module objects: `install` binds
``cog`` and a finder answers each ``cog.x`` with ``cog_trio.sdk.x``, else ``cog_trio.sdk.legacy.x``, imported at that
moment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, Final

FOLDER: Final = os.path.dirname(os.path.abspath(__file__))
ALIAS: Final = "cog"
REAL: Final = "cog_trio.sdk"
LEGACY: Final = "cog_trio.sdk.legacy"  # modules that only older models import


class _Same(Loader):
    """Gives the real module under its second name, instead of executing its code once more."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias's there

    def get_code(self, name: str) -> Any:
        """For ``python -m cog.x``."""
        spec = importlib.util.find_spec(self._real)
        loader: Any = None if spec is None else spec.loader
        return loader.get_code(self._real)


def _find(real: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(real)
    except ModuleNotFoundError:  # not even its package is there
        return None


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(ALIAS + "."):
            return None
        name = fullname.removeprefix(ALIAS)
        real = REAL + name
        found = _find(real)
        if found is None:
            real = LEGACY + name
            found = _find(real)
        if found is None:  # and nobody else may look into our folder, which would make a second module
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        spec = ModuleSpec(fullname, _Same(real), origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


def install() -> None:
    """Make ``import cog`` mean `cog_trio.sdk` in this process, whatever is on its path. Repeatable."""
    sys.modules[ALIAS] = importlib.import_module(REAL)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def put_on_path() -> None:
    """Put the folder right behind the working folder on ``sys.path``, where children that are spawned take it from."""
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
    sys.path.insert(1, FOLDER)
