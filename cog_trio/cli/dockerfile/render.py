"""From a ``Build`` to the text of a Dockerfile: a function without I/O, so the same input gives the same bytes.

What follows Cog's contract: port 5000, ``/sbin/tini`` as the entry point, the model in ``/src`` and named by
COG_PREDICT_TYPE_STUB and COG_TRAIN_TYPE_STUB, ``/var/run/cog`` for the readiness file. What changes least stands
first, so that an edit of the model rebuilds one layer: the system, the packages, the commands, the user, the model.

tini is Debian's: signed and updated by the distribution, where Cog's build downloads a binary. Debian has it in
``/usr/bin``; the link at ``/sbin/tini`` is for those who name the contract's path in a manifest.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cog_trio.cli.dockerfile.build_section import Build, Command
from cog_trio.config.cog_yaml import FILE

BASE: Final = "python:{python}-slim-bookworm"  # the Debian release is named: system packages stay what they are
ENTRY: Final = ("python", "-m", "cog_trio.server.http")
HEADER: Final = f"# Written by `cog-trio dockerfile` from {FILE}."
UNUSED: Final = "/(test|tests|idlelib|lib2to3|site-packages|dist-packages)/"  # not needed, or compiled by pip
FILES: Final = "/tmp/cog-trio"  # where requirements wait for pip
LIST: Final = f"{FILES}/python_packages.txt"
EXTRA: Final = "[cog]"  # of cog-trio: what Cog's SDK brings, so that models find it
PROBE: Final = (
    "import http.client as h, json, os, ssl, sys; "
    "at = '127.0.0.1', int(os.environ.get('PORT') or 5000); "
    "tls = ssl._create_unverified_context() if os.environ.get('COG_TRIO_CERTFILE') else None; "
    "c = h.HTTPSConnection(*at, timeout=4, context=tls) if tls else h.HTTPConnection(*at, timeout=4); "
    "c.request('GET', '/health-check'); "
    "sys.exit(json.load(c.getresponse())['status'] not in ('READY', 'BUSY'))"
)


@dataclass(frozen=True)
class Image:
    """What the command line says about the image, beside cog.yaml."""

    runtime: str | None  # what pip installs as cog-trio, or a wheel in the model's folder; None: the model requires it
    base: str | None = None
    user: int | None = None  # uid and gid that everything runs as; None: root, as in Cog's images


def render_dockerfile(build: Build, image: Image) -> str:
    """The Dockerfile."""
    return "\n\n".join("\n".join(part) for part in _parts(build, image) if part) + "\n"


def base_of(build: Build, image: Image) -> str:
    return image.base or BASE.format(python=build.python)


def _parts(build: Build, image: Image) -> Iterator[list[str]]:
    yield [
        f"{HEADER} It is a stand-in for `cog build`: write it again after a",
        f"# change of {FILE} or of the requirements; what it leaves out stands in docs/how-to/container.md.",
        "# hadolint global ignore=DL3059",  # steps stay apart: each is a layer that is kept while it does not change
        f"FROM {base_of(build, image)}",
    ]
    variables = {"PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if build.gpu:
        variables |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    yield [_env({**variables, **build.config.environment})]  # here, so that the commands see them as in Cog's build
    if build.environment:
        yield [f"ARG {name}={_quoted(value)}" for name, value in build.environment.items()]
    yield list(_system(build))
    yield [
        "# the official images have no bytecode of Python's own library: each container would compile it at its start",
        f"RUN python -m compileall -q -x '{UNUSED}' \"$(python -c 'import os; print(os.path.dirname(os.__file__))')\"",
    ]
    yield [_run(command) for command in build.before]
    yield list(_packages(build, image))
    yield [_run(command) for command in build.after]
    yield list(_user(image))
    yield list(_model(build, image))
    yield [
        "EXPOSE 5000",
        "# healthy once setup() has ended; unhealthy after a failed setup or a lost worker",
        f"HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 CMD {_exec('python', '-c', PROBE)}",
        f"ENTRYPOINT {_exec('/sbin/tini', '--')}",
        f"CMD {_exec(*ENTRY)}",
    ]


def _system(build: Build) -> Iterator[str]:
    names = ["tini", *(name for name in build.system_packages if name != "tini"), *build.tools]
    yield "# hadolint ignore=DL3008"  # versions are the base image's; whoever wants others writes name=version
    yield (
        "RUN apt-get update \\\n"
        f"    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {' '.join(names)} \\\n"
        "    && rm -rf /var/lib/apt/lists/* \\\n"
        "    && ln -sf /usr/bin/tini /sbin/tini"
    )


def _packages(build: Build, image: Image) -> Iterator[str]:
    """One pip for all, so that its resolver sees cog-trio and the model's packages together."""
    runtime: list[str] = []
    if image.runtime is not None:
        wheel = image.runtime if image.runtime.endswith(".whl") else None
        runtime = [f"{FILES}/{wheel.rpartition('/')[2]}{EXTRA}" if wheel else image.runtime]
        if wheel:
            yield f"COPY {_exec(wheel, FILES + '/')}"
    for file in (*build.requirements, *build.wheels):
        yield f"COPY {_exec(file, f'{FILES}/{file}')}"
    if build.wheels:
        yield f"WORKDIR {FILES}"  # they are named relative to it
    before, named = "", [*build.python_packages]
    if build.requirements:
        named = ["-r", f"{FILES}/{build.requirements[0]}"]
    elif build.hashed or any(line.startswith("-") for line in build.python_packages):
        lines = " ".join(map(shlex.quote, build.python_packages))
        before = f"mkdir -p {FILES} && printf '%s\\n' {lines} > {LIST} \\\n    && "
        named = ["-r", LIST]
    pinned = "# hadolint ignore=DL3013"  # what stands in cog.yaml is installed as it stands there
    if build.hashed and runtime:  # with hashes pip takes nothing that has none
        yield f"RUN {before}{_pip(named)}"
        yield f"{pinned}\nRUN {_pip(runtime)} \\\n    && python -m pip check"
    else:
        yield f"{pinned}\nRUN {before}{_pip([*runtime, *named])}"
    if build.wheels:
        yield "WORKDIR /"


def _pip(what: list[str]) -> str:
    return " ".join(["python -m pip install --no-cache-dir", *map(shlex.quote, what)])


def _user(image: Image) -> Iterator[str]:
    steps = ["install -d -m 1777 /var/run/cog"]
    if image.user:
        steps += [f"groupadd -g {image.user} cog", f"useradd -l -m -u {image.user} -g {image.user} cog"]
    yield "# for the readiness file; whoever the container runs as may write it"
    yield "RUN " + " \\\n    && ".join(steps)


def _model(build: Build, image: Image) -> Iterator[str]:
    config = build.config
    variables = {
        "COG_PREDICT_TYPE_STUB": config.predict,
        "COG_TRAIN_TYPE_STUB": config.train,
        "COG_MAX_CONCURRENCY": None if config.max_concurrency is None else str(config.max_concurrency),
    }
    if present := {name: value for name, value in variables.items() if value is not None}:
        yield _env(present)
    yield "WORKDIR /src"
    yield f"COPY --chown={image.user}:{image.user} . /src" if image.user else "COPY . /src"
    if image.user:
        yield f"USER {image.user}:{image.user}"


def _run(command: Command) -> str:
    return " ".join(["RUN", *(f"--mount={mount}" for mount in command.mounts), command.text])


def _env(variables: Mapping[str, str]) -> str:
    return "ENV " + " \\\n    ".join(f"{name}={_quoted(value)}" for name, value in variables.items())


def _quoted(value: str) -> str:
    """A value as Docker reads it back: nothing in it is expanded."""
    return value if re.fullmatch(r"[A-Za-z0-9_./:,@%+=-]+", value) else '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def _exec(*words: str) -> str:
    return json.dumps(words, ensure_ascii=False)
