"""Packs the cog-trio that runs into a wheel, from its installed files.

There are two wheels. The stand-in is a distribution named ``cog``: Cog's build installs it in place of its own SDK, and
an installer removes any other ``cog`` for it. The plain one is cog-trio, for an image where no index has it. Both are
pure and made with ``zipfile`` alone, so neither a build tool nor a network is needed, and the same files give the same
bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path
from typing import Final

import cog_trio
from cog_trio._version import COG_RELEASE, SDK_VERSION, __version__

PACKAGE: Final = Path(cog_trio.__file__).parent
ALIAS: Final = PACKAGE / "_alias" / "cog"  # the package ``cog`` of the stand-in
PTH: Final = "cog_trio_alias.pth"
SUMMARY: Final = "A trio runtime that serves machine-learning models written for Cog"
EXTRA: Final = "cog"  # requires what Cog's SDK brings and models therefore rely on
SCRIPT: Final = "[console_scripts]\ncog-trio = cog_trio.cli:main\n"
TAGS: Final = "Wheel-Version: 1.0\nGenerator: cog-trio\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can have
MODE: Final = 0o100644


class NotInstalled(Exception):
    """cog-trio runs from a folder without being installed, so nothing says what it requires."""

    def __init__(self) -> None:
        super().__init__("this cog-trio is not installed, so its requirements are not known: pip install it first")


@dataclass(frozen=True)
class Wheel:
    """A wheel in memory."""

    name: str  # of its file
    data: bytes

    def write(self, folder: Path) -> Path:
        """Write it into a folder, which is made if need be. A reader never sees a part of the file.

        Raises:
          OSError: if that fails. No part of the file is left.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        part = folder / f".{self.name}.{os.getpid()}"
        try:
            part.write_bytes(self.data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path


def pack_stand_in() -> Wheel:
    """Return the wheel that stands in for Cog's SDK: cog-trio, a package ``cog``, and what Cog's SDK requires.

    Raises:
      NotInstalled: if cog-trio is not installed.
    """
    installed = _installed()
    requirements = [text for text in _requirements(installed) if "extra ==" not in text]
    requirements += [text.partition(";")[0].strip() for text in _requirements(installed) if _is_of_extra(text)]
    files = {f"cog/{path.name}": path.read_bytes() for path in sorted(ALIAS.glob("*.py"))} | {"cog/py.typed": b""}
    about = f"It stands in for the SDK and the server of Cog {COG_RELEASE}."
    return _pack("cog", SDK_VERSION, f"{SUMMARY}. {about}", requirements, [], SCRIPT, files, installed)


def pack_own() -> Wheel:
    """Return the wheel of cog-trio, as it is installed here.

    Raises:
      NotInstalled: if cog-trio is not installed.
    """
    installed = _installed()
    extras = installed.metadata.get_all("Provides-Extra") or []
    scripts = installed.read_text("entry_points.txt") or SCRIPT
    return _pack("cog-trio", __version__, SUMMARY, _requirements(installed), extras, scripts, {}, installed)


def is_from_index() -> bool:
    """Return whether cog-trio was installed by its name, so that an image can install it in the same way."""
    try:
        return distribution("cog-trio").read_text("direct_url.json") is None
    except PackageNotFoundError:  # the stand-in runs, which no index has
        return False


def is_editable() -> bool:
    """Return whether cog-trio is installed as a link to a checkout, which may change at any time."""
    url = json.loads(_installed().read_text("direct_url.json") or "{}")
    return bool(url.get("dir_info", {}).get("editable"))


def _installed() -> Distribution:
    try:
        return distribution("cog-trio")
    except PackageNotFoundError:
        pass
    with suppress(PackageNotFoundError):
        stand_in = distribution("cog")
        if stand_in.version == SDK_VERSION:  # any other is not ours
            return stand_in
    raise NotInstalled


def _requirements(installed: Distribution) -> list[str]:
    return sorted(installed.requires or [])


def _is_of_extra(requirement: str) -> bool:
    return requirement.replace('"', "'").endswith(f"extra == '{EXTRA}'")


def _package() -> Iterator[tuple[str, Path]]:
    """Yield the files of the package, without those that Python and tools leave beside them."""
    for path in PACKAGE.rglob("*"):
        inside = path.relative_to(PACKAGE)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        if path.is_file() and not hidden and path.suffix not in (".pyc", ".pth"):
            yield f"cog_trio/{inside.as_posix()}", path


def _pack(
    name: str,
    version: str,
    summary: str,
    requirements: list[str],
    extras: list[str],
    scripts: str,
    more: Mapping[str, bytes],
    installed: Distribution,
) -> Wheel:
    distribution_name = name.replace("-", "_")
    info = f"{distribution_name}-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",  # older pips in older images know no later one
        f"Name: {name}",
        f"Version: {version}",
        f"Summary: {summary}",
        "License: Apache-2.0",
        "Requires-Python: >=3.10",
        *(f"Provides-Extra: {extra}" for extra in extras),
        *(f"Requires-Dist: {requirement}" for requirement in requirements),
    ]
    files = {file: path.read_bytes() for file, path in _package()} | {PTH: b"cog_trio/_alias\n", **more}
    files |= {
        f"{info}/METADATA": ("\n".join(metadata) + "\n").encode(),
        f"{info}/WHEEL": TAGS.encode(),
        f"{info}/entry_points.txt": scripts.encode(),
    }
    if (licence := installed.read_text("licenses/LICENSE") or installed.read_text("LICENSE")) is not None:
        files[f"{info}/LICENSE"] = licence.encode()
    record = f"{info}/RECORD"
    lines = [f"{file},sha256={_digest(data)},{len(data)}\n" for file, data in sorted(files.items())]
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file, data in (*sorted(files.items()), (record, "".join([*lines, f"{record},,\n"]).encode())):
            entry = zipfile.ZipInfo(file, EPOCH)
            entry.external_attr = MODE << 16
            entry.create_system = 3  # Unix: the mode counts, on each system that packs
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return Wheel(f"{distribution_name}-{version}-py3-none-any.whl", buffer.getvalue())


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
