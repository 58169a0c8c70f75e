"""What ``cog-trio dockerfile`` writes, built and run in a root of its own: each RUN, ENV, COPY and USER is carried out,
then ENTRYPOINT and CMD serve the model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import psutil
import pytest
import trio

from cog_trio.testing.processes import MARK
from cog_trio.testing.server_process import open_server
from scenarios.container import EXEC, Container, need
from scenarios.rootfs import instructions

ROOT: Final = Path(__file__).parent.parent
PLAYED: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "--")
USER: Final = 23_456
MODEL: Final = """\
import os, pathlib, subprocess
import local_words, requests, structlog, words  # Cog's SDK brings two of them
from cog import BaseRunner

class Runner(BaseRunner):
    def run(self, name: str) -> dict:
        return {
            "said": f"{words.GREETING} {name}{local_words.GREETING}",
            "environment": os.environ["GREETING"],
            "built": pathlib.Path("/opt/built").read_text(),
            "tool": subprocess.run(["played-tool"], capture_output=True, text=True, check=True).stdout,
            "user": os.getuid(),
            "folder": os.getcwd(),
            "own": os.stat("run.py").st_uid,
            "read_only": not os.access("/src", os.W_OK),
        }
"""
CONFIG: Final = """\
run: run.py:Runner
environment:
  - GREETING=she said "hi" for $5 \\ today
build:
  python_requirements: needs/requirements.txt
  system_packages: [played-tool]
  environment: [SECRET=of the build]
  run:
    - echo "$SECRET, $GREETING" > /opt/built
"""
CONTROL: Final = """\
Package: played-tool
Version: 1.0
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: says what it is
"""


def _need_debian() -> None:
    need()
    for tool in ("apt-get", "dpkg-deb", "chroot"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if subprocess.run(["dpkg", "-s", "tini"], capture_output=True, check=False).returncode:
        pytest.skip("tini is not a package of this Debian: apt can't find it installed without a network")


def _write_package(scratch: Path) -> None:
    """An apt repository with one package in it."""
    tree = scratch / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(CONTROL)
    tool = tree / "usr" / "bin" / "played-tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\nprintf tool\n")
    tool.chmod(0o755)
    debs = scratch / "debs"
    debs.mkdir()
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", tree, debs / "played.deb"], check=True, capture_output=True
    )
    data = (debs / "played.deb").read_bytes()
    index = f"{CONTROL}Filename: ./played.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    (debs / "Packages").write_text(index)


def _write_wheels(scratch: Path) -> None:
    """An index of one wheel that the model requires."""
    (scratch / "wheels").mkdir()
    _write_wheel(scratch / "wheels", "words", "hello")


def _write_wheel(folder: Path, name: str, greeting: str) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"GREETING = {greeting!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n" + "".join(f"{info}/{n},,\n" for n in ("METADATA", "WHEEL")))


@pytest.mark.timeout(150)
async def test_the_image_is_built_and_serves(tmp_path: Path) -> None:
    """Given a cog.yaml with system packages, requirements (a wheel of the folder among them), commands and variables,
    and a cog-trio that no index has, when its Dockerfile is built and run, then the model sees all of it, as the user
    that was asked for, from a read-only /src; its HEALTHCHECK passes, the readiness file is there, and SIGTERM to tini
    ends it with 0."""
    _need_debian()
    context, scratch = tmp_path / "model", tmp_path / "scratch"
    (context / "needs").mkdir(parents=True)
    (scratch / "layer").mkdir(parents=True)
    (context / "run.py").write_text(MODEL)
    (context / "cog.yaml").write_text(CONFIG)
    (context / "needs" / "requirements.txt").write_text("-r more.txt\n./needs/local_words-1.0-py3-none-any.whl\n")
    _write_wheel(context / "needs", "local_words", "!")
    (context / "needs" / "more.txt").write_text("words==1.0\n")
    _write_package(scratch)
    _write_wheels(scratch)
    dockerfile = tmp_path / "Dockerfile"
    await trio.run_process(
        [sys.executable, "-m", "cog_trio", "dockerfile", str(context), "--user", str(USER), "-o", str(dockerfile)]
    )
    mark = "played-image"
    given = ("PORT=0", "COG_TRIO_HOST=127.0.0.1", "KUBERNETES_SERVICE_HOST=10.0.0.1", f"{MARK}={mark}")
    script = (sys.executable, str(ROOT / "scenarios" / "rootfs.py"), str(dockerfile), str(context), str(scratch))
    command = ("-c", EXEC, *PLAYED, *script, *given)
    with trio.fail_after(120):
        async with open_server("", command=command, timeout=90) as server:
            (init,) = psutil.Process(server.process.pid).children()
            assert init.cmdline() == ["/sbin/tini", "--", "python", "-m", "cog_trio.server.http"]
            assert init.uids().real == USER
            reply = await server.predict({"name": "world"})
            assert reply.json()["output"] == {
                "said": "hello world!",
                "environment": 'she said "hi" for $5 \\ today',
                "built": 'of the build, she said "hi" for $5 \\ today\n',
                "tool": "tool",
                "user": USER,
                "folder": "/src",
                "own": USER,
                "read_only": True,
            }
            (probe,) = (rest for word, rest in instructions(dockerfile.read_text()) if word == "HEALTHCHECK")
            program = json.loads(probe[probe.index("[") :])[2]
            port = server.url.rpartition(":")[2]
            for value, code in ((port, 0), ("1", 1)):
                environ = {**os.environ, "PORT": value}
                done = await trio.run_process(
                    [sys.executable, "-c", program], env=environ, check=False, capture_stderr=True
                )
                assert done.returncode == code, done.stderr
            inside = Path(f"/proc/{init.pid}/root")
            assert (inside / "var" / "run" / "cog" / "ready").exists() or (inside / "run" / "cog" / "ready").exists()
            assert list((inside / "var" / "lib" / "apt" / "lists").iterdir()) == []
            assert await Container(server, init).stopped() == 0
