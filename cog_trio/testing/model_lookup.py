"""Which model a test means: names are looked for around the test itself, so that it works from any folder.

``predict.py`` is looked for in the folders that the setting ``cog_trio_models`` names; then the nearest one is meant:
beside the test's file, or in the folders above it, up to pytest's root folder. No name is the nearest folder with a
``cog.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

CONFIG: Final = "cog.yaml"


class NoModel(Exception):
    """There is no such model near the test; the text says where it was looked for."""


def find_model(model: str | Path | None, test: Path, root: Path, first: Sequence[Path] = ()) -> str:
    """The model as ``cog-trio serve`` takes it: an absolute path, with ``:Name`` behind it if ``model`` has that.

    ``test`` is the test's file, ``root`` where the search upwards ends, ``first`` are the folders looked at before.

    Raises:
      NoModel: if nothing is there.
    """
    if isinstance(model, Path):
        return str(model)
    around = list(_upwards(test.parent, root))
    if model is None:
        for place in around:
            if (place / CONFIG).is_file():
                return str(place)
        raise NoModel(f"no folder with a {CONFIG} at or above {test.parent}: name the model's file")
    places = [*first, *around]
    for place in places:
        for name, rest in ((model, ""), _parted(model)):
            if (place / name).exists():
                return f"{place / name}{rest}"
    raise NoModel(f"there is no {_parted(model)[0]} in {', '.join(map(str, places))}")


def _parted(model: str) -> tuple[str, str]:
    """The file, and the name of the class with its colon."""
    file, colon, name = model.rpartition(":")
    return (file, f":{name}") if colon else (model, "")


def _upwards(folder: Path, root: Path) -> Iterator[Path]:
    yield folder
    if folder.is_relative_to(root) and folder != root:
        yield from _upwards(folder.parent, root)
