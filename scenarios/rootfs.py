"""Plays `docker build` and `docker run` of one Dockerfile, in a root of its own that is gone afterwards.

    unshare --mount --pid --fork python scenarios/rootfs.py DOCKERFILE CONTEXT SCRATCH [NAME=value ...]

The base image is this machine, seen through an overlay in memory: nothing outside of SCRATCH changes. What FROM names
is therefore not fetched; a fresh Python environment stands where the image's Python would, with this project's
dependencies in it but not the project. apt and pip are the real ones; without a network, apt reads SCRATCH/debs and
pip SCRATCH/wheels. RUN, ENV, ARG, COPY, WORKDIR and USER are carried out in their order; ENTRYPOINT and CMD then
replace this process, which is PID 1, with the variables of the command line on top, as `docker run -e` has it. By then
the root is read-only but for /var/run/cog and a folder for temporary files.

Run as a program, so it imports the standard library only.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

WORD: Final = re.compile(r'(?P<name>\w+)=(?P<value>"(?:[^"\\]|\\.)*"|\S*)')
PATHS: Final = "/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OURS: Final = ("cog_trio", "_cog_trio", "__editable__")
OFFLINE: Final = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_CONFIG_FILE": os.devnull}
PART: Final = re.compile(r"\\(?P<literal>.)|\$\{?(?P<variable>\w+)\}?|(?P<text>[^\\$]+|.)")
FLAGS: Final = re.compile(r"--(?P<name>[a-z]+)=(?P<value>\S+)\s+")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, with joined lines and without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word, rest.strip()


def variables(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """What ENV or ARG sets, with the values that are known put in."""
    return {match["name"]: _plain(match["value"], known) for match in WORD.finditer(text)}


def _plain(value: str, known: Mapping[str, str]) -> str:
    bare = value[1:-1] if value.startswith('"') else value
    return "".join(
        known.get(part["variable"], "") if part["variable"] else part["literal"] or part["text"]
        for part in PART.finditer(bare)
    )


def _flags(text: str) -> tuple[dict[str, str], str]:
    """The flags of an instruction, and what stands behind them."""
    found: dict[str, str] = {}
    while match := FLAGS.match(text):
        found[match["name"]] = match["value"]
        text = text[match.end() :]
    return found, text


def prepare(scratch: Path, give_python: Callable[[Path], None] | None = None) -> Path:
    """Mount the root: this machine below, memory above, with a Python of its own and the offline sources.

    ``give_python`` makes another Python than the usual one.
    """
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", scratch / "layer"], check=True)
    for name in ("upper", "work", "root"):
        (scratch / "layer" / name).mkdir()
    root, layer = scratch / "layer" / "root", scratch / "layer"
    options = f"lowerdir=/,upperdir={layer / 'upper'},workdir={layer / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
    for place in {"/dev", sys.base_prefix, sys.prefix}:
        if place == "/dev" or not (root / place[1:] / "bin").exists():  # another disk: an overlay shows only one
            (root / place[1:]).mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--rbind", place, root / place[1:]], check=True)
    for place in (sys.base_prefix, sys.prefix):  # a home folder may hold them, closed to the image's user
        for parent in Path(place[1:]).parents:
            (root / parent).chmod((root / parent).stat().st_mode | 0o055)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    for name in ("debs", "wheels"):
        shutil.copytree(scratch / name, root / name)
    apt = root / "etc" / "apt"
    shutil.rmtree(apt / "sources.list.d", ignore_errors=True)
    apt.mkdir(exist_ok=True)
    (apt / "sources.list").write_text("deb [trusted=yes] file:/debs ./\n")
    (give_python or _python)(root)
    return root


def _python(root: Path) -> None:
    subprocess.run(["chroot", root, sys.executable, "-m", "venv", "--without-pip", "/opt/python"], check=True)
    (site,) = (root / "opt" / "python" / "lib").glob("python3*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(OURS) and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)


def build(
    text: str,
    context: Path,
    root: Path,
    stages: Mapping[str, Path] = MappingProxyType({}),
    given: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, str], str, int, list[str]]:
    """Carry the instructions out; the environment, the folder, the user and the command of the image.

    Args:
      stages: the folder that stands for each name behind ``COPY --from``.
      given: variables of the base image, over those that are usual.
    """
    env, args, folder, user = {"PATH": PATHS, **given}, dict(OFFLINE), "/", 0
    entry: list[str] = []
    command: list[str] = []
    for word, rest in instructions(text):
        match word:
            case "ENV":
                env |= variables(rest, env)
            case "ARG":
                args |= variables(rest, env)
            case "RUN":
                script = f"cd {shlex.quote(folder)} && {_flags(rest)[1]}"
                done = subprocess.run(
                    ["chroot", f"--userspec={user}:{user}", root, "/bin/sh", "-c", script],
                    env={"HOME": "/root", **args, **env},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                if done.returncode:
                    sys.exit(f"RUN {rest}\nleft with {done.returncode}:\n{done.stdout}{done.stderr}")
            case "COPY":
                flags, names = _flags(rest)
                _copy(names, stages[flags["from"]] if "from" in flags else context, root, folder, flags.get("chown"))
            case "WORKDIR":
                folder = rest
                (root / rest[1:]).mkdir(parents=True, exist_ok=True)
            case "USER":
                user = int(rest.partition(":")[0])
            case "ENTRYPOINT":
                entry = json.loads(rest)
            case "CMD":
                command = json.loads(rest)
            case "FROM" | "EXPOSE" | "HEALTHCHECK":
                continue
            case _:
                sys.exit(f"{word} is not played here")
    return env, folder, user, entry + command


def _copy(text: str, context: Path, root: Path, folder: str, chown: str | None) -> None:
    owner = int((chown or "0").partition(":")[0])
    *sources, target = json.loads(text) if text.startswith("[") else text.split()
    place = root / os.path.join(folder, target)[1:]
    for name in sources:
        source = context / name.lstrip("/")
        to = place if source.is_dir() else place / source.name if target.endswith("/") else place
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, to, dirs_exist_ok=True)
        else:
            shutil.copy(source, to)
        for path in (to, *to.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)


def main(dockerfile: str, context: str, scratch: str, *more: str) -> None:
    """Build, then become the container."""
    root = prepare(Path(scratch))
    env, folder, user, command = build(Path(dockerfile).read_text(), Path(context), root)
    env |= dict(pair.split("=", 1) for pair in more)
    for place in ("run/cog", "mnt"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", root / place], check=True)
    subprocess.run(["mount", "-o", "remount,ro", root], check=True)
    env["TMPDIR"] = "/mnt"
    os.chroot(root)
    os.chdir(folder)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    os.execve(command[0], command, env)


if __name__ == "__main__":
    main(*sys.argv[1:])
