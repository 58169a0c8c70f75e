"""Plays what Cog's own tools do with cog-trio: the build of an image, then its containers, one after the other.

    unshare --mount --net --fork python scenarios/cog_image.py SCRATCH

The Dockerfile is that of Cog 0.23.1 for `COG_SDK_WHEEL=$(cog-trio wheel) cog build`, carried out by ``rootfs.py`` with
the real uv. Each container is PID 1 of a PID namespace of its own; the network namespace is this program's alone, so
port 5000 and 0.0.0.0 are the real ones. What is asked of a container is what `cog run`, `cog train`, `cog serve` and
`cog exec` ask. The last line on stdout is a JSON object of what was found; a test looks at it.

Run as a program, so it imports the standard library only.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from scenarios import rootfs

PORT: Final = 5000
LONG: Final = 60.0  # seconds until something that is waited for must have happened on a busy machine
POLL: Final = 0.05
END_OF_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")  # in a requirement
UP: Final = 0x8914  # SIOCSIFFLAGS
PYTHON: Final = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
BASE: Final = {
    "PATH": f"/usr/local/bin:{sys.base_prefix}/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib",  # before that of the system's Python, if this one is another
    "UV_OFFLINE": "1",
    "UV_NO_INDEX": "1",
    "UV_FIND_LINKS": "/wheels",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
}
# What Cog's generator writes for a model without a GPU, but for two steps: tini is copied instead of downloaded, and
# the search for libraries of Python in all of the root is left out. {wheel} is the file that COG_SDK_WHEEL names.
DOCKERFILE: Final = """\
#syntax=docker/dockerfile:1.4
FROM python:3.12-slim
ENV DEBIAN_FRONTEND=noninteractive
ENV PYTHONUNBUFFERED=1
ENV LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/usr/lib/x86_64-linux-gnu:/usr/local/nvidia/lib64:/usr/local/nvidia/bin
ENV NVIDIA_DRIVER_CAPABILITIES=all
COPY --from=ghcr.io/astral-sh/uv:0.9.26 /uv /uvx /usr/local/bin/
ENV UV_SYSTEM_PYTHON=true
COPY --from=tini tini /sbin/tini
ENTRYPOINT ["/sbin/tini", "--"]
COPY --from=cog_build requirements.txt /tmp/requirements.txt
ENV CFLAGS="-O3 -funroll-loops -fno-strict-aliasing -flto -S"
RUN --mount=type=cache,target=/root/.cache/pip uv run pip install --cache-dir /root/.cache/pip -r /tmp/requirements.txt
ENV CFLAGS=
COPY --from=cog_build {wheel} /tmp/{wheel}
ENV CFLAGS="-O3 -funroll-loops -fno-strict-aliasing -flto -S"
RUN --mount=type=cache,target=/root/.cache/uv uv pip install --no-cache /tmp/{wheel}
ENV CFLAGS=
RUN echo done > /opt/after
WORKDIR /src
EXPOSE 5000
ENV COG_PREDICT_TYPE_STUB="predict.py:Predictor"
ENV COG_TRAIN_TYPE_STUB="train.py:train"
CMD ["python", "-m", "cog.server.http"]
COPY . /src
"""


def _needed(name: str, seen: dict[str, Distribution]) -> dict[str, Distribution]:
    """What a distribution of the SDK requires, and what that requires, as far as it is installed here."""
    for text in distribution(name).requires or []:
        required = END_OF_NAME.split(text)[0]
        wanted = "extra ==" not in text or (name == "cog-trio" and text.replace('"', "'").endswith("extra == 'cog'"))
        if wanted and required.lower() not in seen:
            with suppress(PackageNotFoundError):  # for another Python or system
                seen[required.lower()] = distribution(required)
                _needed(required, seen)
    return seen


def give_python(root: Path) -> None:
    """Make the system's Python that of the image, since uv leaves virtual environments alone. It has pip and what the
    SDK requires, and nothing else."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run(["chroot", root, PYTHON, "-I", "-c", code], capture_output=True, text=True, check=True)
    site = root / found.stdout.strip()[1:]
    site.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", site], check=True)
    for needed in _needed("cog-trio", {"pip": distribution("pip")}).values():
        for name in {file.parts[0] for file in needed.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            source, target = Path(str(needed.locate_file(name))), site / name
            if target.exists():
                continue
            if name.endswith(".dist-info"):  # uv does not see one that is a link
                shutil.copytree(source, target)
            else:
                target.symlink_to(source)
    programs = root / "usr" / "local" / "bin"
    for name in ("python", "pip"):
        (programs / name).unlink(missing_ok=True)
    (programs / "python").symlink_to(PYTHON)
    (programs / "pip").write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    (programs / "pip").chmod(0o755)


class Container:
    """One container, started by the command of the image or by another one behind its entry point."""

    def __init__(self, root: Path, image: Mapping[str, str], folder: str, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", f"--root={root}", f"--wd={folder}", "--", *command],
                env=dict(image),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=LONG)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def wait_started(self) -> dict[str, Any]:
        """As the command line does: ask until the setup has ended."""
        end = time.monotonic() + LONG
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(ConnectionError):
                health: dict[str, Any] = self.ask("GET", "/health-check")[1]
                if health["status"] != "STARTING":
                    return health
            time.sleep(POLL)
        sys.exit(f"the container has not started:\n{self.log()}")

    def send(self, number: signal.Signals) -> None:
        """``docker stop`` or ``docker kill``: signals go to PID 1."""
        outer = self._process.pid
        (first,) = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        os.kill(int(first), number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.ended()

    def ended(self) -> int:
        return self._process.wait(LONG)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()  # unshare takes the container with it
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")


class Image:
    """What the build has made."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        (wheel,) = (scratch / "cog_build").glob("*.whl")
        self.root = rootfs.prepare(scratch, give_python)
        stages = {"ghcr.io/astral-sh/uv:0.9.26": scratch / "uv", "tini": scratch / "tini", "cog_build": wheel.parent}
        self._variables, self._folder, _, self._command = rootfs.build(
            DOCKERFILE.replace("{wheel}", wheel.name), scratch / "model", self.root, stages, BASE
        )

    @contextmanager
    def run(self, name: str, *command: str, **variables: str) -> Iterator[Container]:
        """``docker run``: the command of the image, or another one, with variables on top."""
        entry = self._command[:2]
        words = [*entry, *(command or self._command[2:])]
        image = {**self._variables, "HOME": "/root", **variables}
        container = Container(self.root, image, self._folder, words, self._scratch / f"{name}.log")
        try:
            yield container
        finally:
            container.kill()


def play(image: Image) -> dict[str, Any]:
    """All of the stories; what was found, by name."""
    found: dict[str, Any] = {}
    warning = {"LOG_FORMAT": "console", "COG_LOG_LEVEL": "warning"}  # as `cog run` has it
    with image.run("run", **warning, KUBERNETES_SERVICE_HOST="10.0.0.1") as container:
        health = container.wait_started()
        ready = image.root / "run" / "cog" / "ready"  # /var/run is a link of the root to /run
        end = time.monotonic() + LONG
        while not ready.exists() and time.monotonic() < end:
            time.sleep(POLL)
        found["run"] = {
            "health": health,
            "ready": ready.exists(),
            "prediction": container.ask("POST", "/predictions", {"input": {"text": "you"}, "context": {}}),
            "wrong": container.ask("POST", "/predictions", {"input": {"text": "you", "numbers": [1, "2"]}}),
            "document": container.ask("GET", "/openapi.json")[1],
            "code": container.stop(),
            "log": container.log(),
        }
    with image.run("broken", **warning, BROKEN="1") as container:
        status = container.wait_started()["status"]
        found["broken"] = {"status": status, "code": container.stop(), "log": container.log()}
    with image.run("train", "python", "-m", "cog.server.http", "--x-mode", "train") as container:
        container.wait_started()
        found["train"] = {
            "training": container.ask("POST", "/trainings", {"input": {"steps": 3}}),
            "code": container.stop(),
        }
    serve = "python --check-hash-based-pycs never -m cog.server.http --await-explicit-shutdown true"
    with image.run("serve", *serve.split(), LOG_FORMAT="console") as container:
        container.wait_started()
        container.send(signal.SIGTERM)
        found["serve"] = {
            "prediction": container.ask("POST", "/predictions", {"input": {"text": "you"}}),
            "code": container.stop(signal.SIGINT),
            "log": container.log(),
        }
    inner = "import cog, coglet, requests, structlog, words, importlib.metadata as m; print(m.version('cog'))"
    for name, command in {
        "import": ("python", "-c", inner),
        "freeze": ("python", "-m", "pip", "freeze"),
        "schema": ("python", "-m", "cog.command.openapi_schema"),
    }.items():
        with image.run(name, *command) as container:
            found[name] = {"code": container.ended(), "log": container.log()}
    return found


def main(scratch: str) -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, UP, struct.pack("16sH14x", b"lo", 1))  # the namespace starts with its loopback down
    print(json.dumps(play(Image(Path(scratch)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
