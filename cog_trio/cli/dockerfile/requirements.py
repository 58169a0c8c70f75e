"""pip's requirements as an image needs them: which files they are, and what can't be installed from them.

Lines of a file are read as pip reads them (comments, joined lines), options are left to pip. What the file includes by
``-r`` and ``-c`` is followed inside the model's folder, each file once. A wheel of that folder is copied beside the
file; any other path is refused, since the model's own files are copied only after its packages were installed.
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
WHEEL: Final = re.compile(r"(?P<file>[^\s;:@\[]+\.whl)(\[[^\]]*\])?(\s*;.*)?")  # a path, with extras and a marker
BY_GIT: Final = "git+"  # pip calls git for it
SWITCHES: Final = ("--pre", "--no-index", "--prefer-binary", "--require-hashes")  # options of a requirements file
VALUED: Final = {  # those that have a value; it can't be a path, which the image does not have
    "-f": "--find-links",
    "-i": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "--find-links": "--find-links",
    "--index-url": "--index-url",
    "--no-binary": "--no-binary",
    "--only-binary": "--only-binary",
    "--trusted-host": "--trusted-host",
}
URLS: Final = ("--find-links", "--index-url", "--extra-index-url")
OF_ONE: Final = ("--hash", "--config-settings", "--global-option")  # they stay on the line of their requirement
WHEEL_END: Final = re.compile(r"\.whl($|[\s;\[])")
MAX_FILES: Final = 100  # requirements files of one model


@dataclass(frozen=True)
class Requirements:
    """What pip is to install, as files or as lines, and what an image needs for it."""

    files: tuple[str, ...] = ()  # relative to the model's folder, the named one first
    lines: tuple[str, ...] = ()  # as a file has them: requirements, then options of pip
    hashed: bool = False
    names: frozenset[str] = frozenset()  # of distributions, normalized
    wheels: tuple[str, ...] = ()  # files in the model's folder, relative to it
    by_git: bool = False


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
    hashed = by_git = False
    names: set[str] = set()
    wheels: dict[str, None] = {}
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
            by_git = by_git or BY_GIT in line
            if include := INCLUDE.fullmatch(line):
                name = include["file"].strip()
                if "://" not in name:
                    path = os.path.join(os.path.dirname(file), name)
                    waiting.append((path, where, installs and not line.startswith(("-c", "--c"))))
            elif wheel := find_wheel(folder, line):
                wheels[wheel] = None
                names.add(wheel_name(wheel))
            elif _is_path(line):
                raise BadFile(f"{where}: {line[:60]} is a path: the model's files are not there yet when pip runs")
            elif installs and (found := NAME.match(line)):  # a constraint alone brings nothing
                names.add(normalized(found["name"]))
    return Requirements(tuple(files), (), hashed, frozenset(names), tuple(wheels), by_git)


def read_packages(folder: Path, mark: SourceMark | None) -> Requirements:
    """Read a list of requirements, which may have options of pip behind them or as items of their own.

    Raises:
      BadFile: it is not such a list, or something in it can't be installed in an image.
    """
    requirements: dict[str, None] = {}
    options: dict[str, None] = {}
    names: set[str] = set()
    wheels: dict[str, None] = {}
    for item in mark.items("a list of texts") if mark is not None else ():
        text = item.text().strip()
        if not text or not text.isprintable():
            item.wrong("must be a text on one line")
        words = text.split()
        end = next((number for number, word in enumerate(words) if word.startswith("-")), len(words))
        requirement = " ".join(words[:end])
        of_one = []
        for option in _options(item, words[end:]):
            if option.startswith(OF_ONE):
                of_one.append(option)
            else:
                options[option] = None
        if wheel := find_wheel(folder, requirement):
            wheels[wheel] = None
            names.add(wheel_name(wheel))
        elif WHEEL_END.search(requirement) and "://" not in requirement:
            item.wrong(f"names {requirement[:60]}, but there is no such wheel in {folder}")
        elif requirement and _is_path(requirement):
            item.wrong(f"names {requirement[:60]}, which is a path: the model's files are not there yet when pip runs")
        elif found := NAME.match(requirement):
            names.add(normalized(found["name"]))
        if requirement:
            requirements[" ".join([requirement, *of_one])] = None
    lines = (*requirements, *options)
    text = "\n".join(lines)
    return Requirements((), lines, "--hash" in text, frozenset(names), tuple(wheels), BY_GIT in text)


def _options(item: SourceMark, words: list[str]) -> Iterator[str]:
    """Yield options of pip, of a requirement or of an item without one, as lines of a requirements file."""
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name in SWITCHES and not equals:
            yield name
        elif name in OF_ONE and equals:
            yield f"{name}={value}"
        elif name in VALUED and (value or words):
            long, value = VALUED[name], value or words.pop(0)
            if long in URLS and "://" not in value:
                item.wrong(f"holds {name} {value}, which is a path: the image has only what a URL leads to")
            yield f"{long} {value}"
        else:
            item.wrong(f"holds {name}, which is not an option that a requirements file can have")


def find_wheel(folder: Path, requirement: str) -> str | None:
    """Return the wheel in the model's folder that a requirement names, relative to the folder; None for all else."""
    found = WHEEL.fullmatch(requirement)
    if found is None:
        return None
    file = os.path.normpath(found["file"])
    inside = not os.path.isabs(file) and not file.startswith("..") and file.isprintable()
    return file if inside and (folder / file).is_file() else None


def wheel_name(file: str) -> str:
    """Return the name of the distribution in a wheel."""
    return normalized(os.path.basename(file).partition("-")[0])


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
