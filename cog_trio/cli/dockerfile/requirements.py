"""pip's requirements files as an image needs them: which files they are, and what can't be installed from them.

Lines are read as pip reads them (comments, joined lines), options are left to pip. What the file includes by ``-r`` and
``-c`` is followed inside the model's folder, each file once; a path is refused, since the model's own files are copied
only after its packages were installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cog_trio.config.yaml_source import MAX_FILE, BadFile, SourceMark

INCLUDE: Final = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s+|=|(?<=-[rc]))(?P<file>.+)")
NAME: Final = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
EDITABLE: Final = re.compile(r"(?:-e|--editable)[\s=]+(?P<target>.+)")
ARCHIVES: Final = (".whl", ".tar.gz", ".zip")
MAX_FILES: Final = 100  # requirements files of one model


@dataclass(frozen=True)
class Requirements:
    """The files, and what pip must be told because of them."""

    files: tuple[str, ...] = ()  # relative to the model's folder, the named one first
    hashed: bool = False
    names: frozenset[str] = frozenset()  # of distributions, normalized


def normalized(name: str) -> str:
    """The name of a distribution as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(folder: Path, mark: SourceMark | None) -> Requirements:
    """Follow the file that a value of cog.yaml names.

    Raises:
      BadFile: a file is missing or outside of the folder, or a line can't be installed in an image.
    """
    if mark is None or mark.empty:
        return Requirements()
    files: dict[str, None] = {}
    waiting = [(mark.text("the name of a file"), f"{mark.path}:{mark.line}: {mark.key}", True)]
    hashed = False
    names: set[str] = set()
    while waiting:
        file, where, installs = waiting.pop(0)
        file = os.path.normpath(file)
        if file in files:
            continue
        if os.path.isabs(file) or file.startswith("..") or not (folder / file).is_file():
            raise BadFile(f"{where} names {file}, but there is no such file in {folder}")
        if len(files) == MAX_FILES or not file.isprintable():
            raise BadFile(f"{where}: more than {MAX_FILES} requirements files, or one with an unusual name")
        files[file] = None
        for number, line in _lines(folder / file):
            where = f"{folder / file}:{number}"
            hashed = hashed or "--hash" in line
            if include := INCLUDE.fullmatch(line):
                name = include["file"].strip()
                if "://" not in name:
                    path = os.path.join(os.path.dirname(file), name)
                    waiting.append((path, where, installs and not line.startswith(("-c", "--c"))))
            elif _is_path(line):
                raise BadFile(f"{where}: {line[:60]} is a path: the model's files are not there yet when pip runs")
            elif installs and (found := NAME.match(line)):  # a constraint alone brings nothing
                names.add(normalized(found["name"]))
    return Requirements(tuple(files), hashed, frozenset(names))


def _is_path(line: str) -> bool:
    """Whether pip would look for this on the disk."""
    editable = EDITABLE.fullmatch(line)
    target = editable["target"] if editable else line.partition("@ ")[2].strip() or line
    target = (target.partition(";")[0].split() or [""])[0]
    if target.startswith("-"):
        return False
    if "://" in target or target.startswith("file:"):
        return target.startswith("file:")
    return editable is not None or target.startswith(".") or "/" in target or target.endswith(ARCHIVES)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers: joined at a backslash, without comments and blanks."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"can't read {path}: {error}") from error
    if len(data) > MAX_FILE:
        raise BadFile(f"{path} is larger than {MAX_FILE} bytes")
    start, joined = 1, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if not joined:
            start = number
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        bare = re.sub(r"(^|\s)#.*$", "", joined).strip()
        joined = ""
        if bare:
            yield start, bare
