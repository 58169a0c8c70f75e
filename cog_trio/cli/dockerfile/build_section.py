"""The build section of cog.yaml, as ``dockerfile`` needs it: read and checked, with file, line and key in each error.

Nothing here runs or fetches anything: the same cog.yaml and requirements files give the same ``Build``. What Cog's own
build does and this one does not is told by ``warnings``, one line each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cog_trio.cli.dockerfile.requirements import BY_GIT, read_packages, read_requirements
from cog_trio.config.cog_yaml import BUILD_KEYS, FILE, KEYS, Config, environment, load_config, reserved_names
from cog_trio.config.yaml_source import SourceMark, read_yaml

PYTHON: Final = "3.13"  # where cog.yaml names none, as Cog has it
VERSION: Final = re.compile(r"3\.(\d+)(\.\d+)?")
OLDEST: Final = 10  # minor version of Python that cog-trio runs on
PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+|/[a-z0-9-]+)?")
TOOLS: Final[Mapping[str, str]] = {  # packages of what commands call and slim images lack; Cog's own base has them
    "cc": "build-essential",
    "curl": "curl",
    "g++": "build-essential",
    "gcc": "build-essential",
    "git": "git",
    "make": "make",
    "wget": "wget",
    "xz": "xz-utils",
}
CALL: Final = re.compile(rf"(?<![\w./$-])({'|'.join(map(re.escape, TOOLS))})(?=\s|$)|{re.escape(BY_GIT)}")
HEREDOC: Final = re.compile(r"(^|\s)\d*<<-?[\"']?\w")  # a word that Docker takes for the start of one
MOUNT: Final = re.compile(r"[^\s,\"'\\$]+")
READ: Final = (
    "python_version",
    "python_requirements",
    "python_packages",
    "system_packages",
    "pre_install",
    "run",
    "environment",
    "gpu",
)
IGNORED: Final[Mapping[str, str]] = {
    "cuda": "no CUDA is installed; take a base image that has it (--base)",
    "cudnn": "no cuDNN is installed; take a base image that has it (--base)",
    "sdk_version": "the SDK of cog-trio is installed, whatever version of Cog's is named",
    "python_overrides": "not supported; pin the versions in the requirements",
    "fast": "has no meaning here",
}


@dataclass(frozen=True)
class Command:
    """One command of the image, and the secrets that it sees."""

    text: str
    mounts: tuple[str, ...] = ()  # as RUN --mount takes them


@dataclass(frozen=True)
class Build:
    """What the image is made from."""

    config: Config
    python: str = PYTHON
    system_packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()  # Debian packages of what commands and requirements call
    python_packages: tuple[str, ...] = ()  # lines as a requirements file has them: requirements, then options of pip
    wheels: tuple[str, ...] = ()  # files of the folder that are installed, relative to it
    requirements: tuple[str, ...] = ()  # files, the named one first, then those that it includes
    hashed: bool = False  # the requirements carry hashes
    names: frozenset[str] = frozenset()  # of all distributions that are required, normalized
    before: tuple[Command, ...] = ()
    after: tuple[Command, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # while building
    gpu: bool = False
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # keys that nobody reads, one line each

    @property
    def runtime_required(self) -> bool:
        """Whether the requirements name cog-trio themselves."""
        return "cog-trio" in self.names

    @property
    def pip_words(self) -> list[str]:
        """``python_packages`` as words of a pip command."""
        return [word for line in self.python_packages for word in (line.split() if line[0] == "-" else [line])]


def read_build(folder: Path, python: str | None = None, config_file: str = FILE) -> Build:
    """Read the cog.yaml of a folder, and the requirements files that it names.

    Args:
      python: takes the place of its ``python_version``.
      config_file: the name that its file has in the folder.

    Raises:
      BadModel, BadFile: with one line for the user.
    """
    path = folder / config_file
    config = load_config(path)
    top = read_yaml(path).fields()
    section = top.get("build")
    fields = {} if section is None else section.fields("a mapping")
    if section is not None:
        section.slips(fields, READ, IGNORED)
    _one_line(top.get("environment"))
    packages = read_packages(folder, fields.get("python_packages"))
    requirements = read_requirements(folder, fields.get("python_requirements"))
    if packages.lines and requirements.files:
        fields["python_packages"].wrong("and python_requirements are both there: keep python_requirements")
    before, after = (tuple(_commands(fields.get(key))) for key in ("pre_install", "run"))
    system = tuple(dict.fromkeys(_system_packages(fields.get("system_packages"))))
    needed = packages if packages.lines else requirements
    return Build(
        config,
        python or _python(fields.get("python_version")),
        system,
        tuple(_tools((*before, *after), needed.by_git, system)),
        packages.lines,
        needed.wheels,
        requirements.files,
        needed.hashed,
        needed.names,
        before,
        after,
        _one_line(fields.get("environment")),
        _truth(fields.get("gpu")),
        (*config.warnings, *_warnings(fields)),
        tuple(_unknown(top, fields)),
    )


def is_python(version: str) -> bool:
    """Return whether a text is a version of Python that cog-trio runs on."""
    match = VERSION.fullmatch(version)
    return match is not None and int(match[1]) >= OLDEST


def _python(mark: SourceMark | None) -> str:
    """The version as it is written: unquoted 3.10 is 3.1 to others, here it is meant."""
    if mark is None or mark.empty:
        return PYTHON
    match = VERSION.fullmatch(mark.raw.strip()) if mark.is_a("str", "float") else None
    if match is None:
        mark.wrong('must be a version like "3.12"')
    if int(match[1]) < OLDEST:
        mark.wrong(
            f"is {match[0]}, but cog-trio needs Python 3.{OLDEST} or newer (cog-trio dockerfile --python overrides it)"
        )
    return match[0]


def _tools(commands: tuple[Command, ...], by_git: bool, system: tuple[str, ...]) -> Iterator[str]:
    """Yield the packages of what commands and requirements call, without those that cog.yaml names itself."""
    called = {match[1] or "git" for command in commands for match in CALL.finditer(command.text)}
    named = {re.split("[:=/]", name)[0] for name in system}
    packages = {TOOLS[name] for name in (called | {"git"} if by_git else called)}
    yield from sorted(packages - named)


def _system_packages(mark: SourceMark | None) -> Iterator[str]:
    for item in mark.items("a list of package names") if mark is not None else ():
        name = item.text().strip()
        if not PACKAGE.fullmatch(name):
            item.wrong(f"must be the name of a Debian package, not {name[:60]!r}")
        yield name


def _commands(mark: SourceMark | None) -> Iterator[Command]:
    for item in mark.items("a list of commands") if mark is not None else ():
        if not item.is_a("map"):
            yield Command(_command(item))
            continue
        fields = item.fields()
        item.slips(fields, ("command", "mounts"))
        if "command" not in fields:
            item.wrong("must be a command, or a mapping with command in it")
        yield Command(
            _command(fields["command"]), tuple(map(_mount, fields["mounts"].items())) if "mounts" in fields else ()
        )


def _command(mark: SourceMark) -> str:
    text = mark.text("a command").strip()
    if not text:
        mark.wrong("must be a command")
    lines = text.split("\n")
    if any(not line.rstrip().endswith("\\") for line in lines[:-1]) or "\0" in text:
        mark.wrong(r"has a line that does not end in \: give each command an item of its own")
    if lines[-1].rstrip().endswith("\\"):
        mark.wrong(r"ends in \, which would join it with what comes after it")
    if HEREDOC.search(text):
        mark.wrong("begins a here-document, for which a Dockerfile would take all lines after it: use printf")
    return "\n".join(line.rstrip() for line in lines)


def _mount(mark: SourceMark) -> str:
    fields = mark.fields("a mapping of type, id and target")
    mark.slips(fields, ("type", "id", "target"))
    parts = {}
    for name in ("type", "id", "target"):
        if name not in fields or not MOUNT.fullmatch(fields[name].text()):
            (fields.get(name) or mark).wrong(f"needs a {name}, without spaces, quotes and commas")
        parts[name] = fields[name].raw
    if parts["type"] != "secret":
        fields["type"].wrong("must be secret")
    return ",".join(f"{name}={value}" for name, value in parts.items())


def _one_line(mark: SourceMark | None) -> dict[str, str]:
    """Variables as a Dockerfile can set them."""
    pairs = environment(mark)
    for item in mark.items() if mark is not None else ():
        if not item.raw.isprintable():
            item.wrong("holds a line break or another control character, which a Dockerfile can't")
    return pairs


def _truth(mark: SourceMark | None) -> bool:
    if mark is None or mark.empty:
        return False
    if not mark.is_a("bool"):
        mark.wrong("must be true or false")
    return bool(mark.value())


def _warnings(fields: Mapping[str, SourceMark]) -> Iterator[str]:
    for name, mark in fields.items():
        where = f"{mark.path}:{mark.line}: {mark.key}"
        if name in IGNORED and not mark.empty:
            yield f"{where}: {IGNORED[name]}"
        elif name == "gpu" and _truth(mark):
            yield f"{where}: the image has no CUDA of its own; a wheel brings it, or a base image (--base)"
        elif name == "python_version" and mark.is_a("float"):
            yield f"{where}: write it in quotes, other readers take {mark.raw} for a number"
    yield from reserved_names(fields.get("environment"))


def _unknown(top: Mapping[str, SourceMark], fields: Mapping[str, SourceMark]) -> Iterator[str]:
    for known, marks in (((*KEYS, *BUILD_KEYS), top), ((*READ, *IGNORED), fields)):
        for name, mark in marks.items():
            if name not in known:
                yield f"{mark.path}:{mark.line}: {mark.key} is unknown and ignored"
