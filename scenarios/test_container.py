"""The image's entry command under Debian's tini as PID 1 of a new PID namespace: signals, zombies, exit codes, the
readiness file; and what it does without an init process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from cog_trio.testing.server_process import SOON
from scenarios.container import NAMESPACE, Container, need, open_container, run_entry
from scenarios.places import MODELS


async def _until(path: Path, there: bool) -> None:
    """Wait until a file is there, or has gone: a thread writes it a moment after the change."""
    with trio.fail_after(SOON):
        while path.exists() is not there:
            await trio.sleep(0.02)


async def _until_sleeping(container: Container, count: int) -> None:
    with trio.fail_after(SOON):
        while sum(name == "sleep" for name, _ in container.inside().values()) < count:
            await trio.sleep(0.02)


async def test_SIGTERM_drains_then_exit_0_and_the_ready_file_tells_the_truth(tmp_path: Path) -> None:
    """Given a container under Kubernetes with a running prediction, when PID 1 gets SIGTERM, then the prediction ends
    well and is answered, creates get 503 meanwhile, the readiness file has gone, and the container leaves with 0."""
    ready, done = tmp_path / "cog" / "ready", tmp_path / "done"
    outcome: dict[str, Any] = {}
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "COG_TRIO_READY_FILE": str(ready)}
    with trio.fail_after(60):
        async with (
            open_container(MODELS / "orphans.py", tmp_path / "tmp", env=env) as container,
            trio.open_nursery() as nursery,
        ):
            server = container.server
            assert container.inside()[1][0] == "tini"
            await _until(ready, there=True)

            async def ask() -> None:
                reply = await server.client.put("/predictions/x", json={"input": {"until": str(done)}})
                outcome.update(reply.json())

            nursery.start_soon(ask)
            await server.until("BUSY")
            container.send(signal.SIGTERM)
            await _until(ready, there=False)
            assert (await server.client.get("/readyz")).status_code == 503
            assert (await server.client.get("/livez")).status_code == 200
            assert (await server.predict()).status_code == 503
            done.touch()
            assert await server.ended() == 0
    assert outcome["status"] == "succeeded"


async def test_orphans_are_reaped_and_a_dead_worker_leaves_nothing(tmp_path: Path) -> None:
    """Given a model whose children outlive their parents, when they end, then tini has buried them; when the worker
    is killed with such children alive, then they are gone, no zombie is left, the container lives on as DEFUNCT (200 on
    its health, 503 for its life), and SIGINT ends it with 0."""
    with trio.fail_after(60):
        async with open_container(MODELS / "orphans.py", tmp_path / "tmp") as container:
            server = container.server
            assert (await server.predict({"orphans": 20, "seconds": 0.2})).json()["output"] == "done"
            await container.until_no("sleep")
            assert container.zombies() == []
            assert (await server.predict({"orphans": 3, "seconds": 300})).json()["output"] == "done"
            await _until_sleeping(container, 3)
            (worker,) = container.main.children()
            worker.kill()
            await server.until("DEFUNCT")
            await container.until_no("sleep")
            assert container.zombies() == []
            assert (await server.client.get("/livez")).status_code == 503
            assert await container.stopped(signal.SIGINT) == 0


async def test_a_killed_server_takes_the_container_along(tmp_path: Path) -> None:
    """Given a container with children of the model alive, when the server is killed, then tini leaves with 137, and
    with it all that was inside."""
    with trio.fail_after(60):
        async with open_container(MODELS / "orphans.py", tmp_path / "tmp") as container:
            container.server.expected = None  # its temporary folder goes with the container's disk
            await container.server.predict({"orphans": 2, "seconds": 300})
            container.main.kill()
            assert await container.server.ended() == 137


async def test_await_explicit_shutdown_waits_for_the_route(tmp_path: Path) -> None:
    """Given --await-explicit-shutdown, when PID 1 gets SIGTERM, then the container serves on; POST /shutdown ends it
    with 0."""
    with trio.fail_after(60):
        async with open_container(MODELS / "echo.py", tmp_path / "tmp", "--await-explicit-shutdown") as container:
            server = container.server
            container.send(signal.SIGTERM)
            with trio.fail_after(SOON):
                while not any("SIGTERM" in entry.get("message", "") for entry in server.log):
                    await trio.sleep(0.02)
            assert (await server.predict({"text": "on"})).json()["output"] == "on"
            assert (await server.client.post("/shutdown")).status_code == 200
            assert await server.ended() == 0


@pytest.mark.covers("D38")
@pytest.mark.parametrize(("arguments", "code"), [((), 1), (("--nonsense",), 2)])
async def test_D38_wrong_starts_keep_their_exit_code_through_tini(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    """Given no model at all, or a wrong flag, when the container starts, then it leaves with 1, or 2, and one line."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COG_")}
    ended, said = await run_entry(*arguments, cwd=tmp_path, env=env)
    assert (ended, said.count("\n")) == (code, 1)


@pytest.mark.covers("D50")
async def test_without_tini_the_entry_is_its_own_init(tmp_path: Path) -> None:
    """Given an image whose entry point was replaced, so that the entry is PID 1, when children of the model outlive
    their parents, then they are buried all the same; SIGTERM reaches the server, which leaves with 0."""
    with trio.fail_after(60):
        async with open_container(MODELS / "orphans.py", tmp_path / "tmp", tini=False) as container:
            assert container.main.ppid() == container.init.pid
            assert (await container.server.predict({"orphans": 20, "seconds": 0.2})).json()["output"] == "done"
            await container.until_no("sleep")
            assert container.zombies() == []
            container.send(signal.SIGTERM)
            assert await container.server.ended() == 0
            assert sum("SIGTERM" in entry.get("message", "") for entry in container.server.log) == 1


@pytest.mark.covers("D50")
async def test_without_tini_the_exit_code_of_a_killed_server_is_kept(tmp_path: Path) -> None:
    """Given such a container, when the server is killed, then it leaves with 137."""
    with trio.fail_after(60):
        async with open_container(MODELS / "echo.py", tmp_path / "tmp", tini=False) as container:
            container.server.expected = None
            container.main.kill()
            assert await container.server.ended() == 137


ON_A_TERMINAL: Final = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""
IN_FRONT: Final = """
from cog_trio.server.pid1 import run_below_init
run_below_init()
import os
print("pid", os.getpid(), "in front", os.tcgetpgrp(0) == os.getpgrp())
raise SystemExit(7)
"""


async def test_without_tini_the_entry_starts_on_a_terminal_and_gets_its_keys() -> None:
    """Given a container without an init on a terminal (``docker run -it``), when the entry starts below PID 1, then it
    is not stopped for taking the terminal from the background, has it, and its exit code is kept."""
    need(tini=False)
    command = [sys.executable, "-c", ON_A_TERMINAL, *NAMESPACE, sys.executable, "-c", IN_FRONT]
    with trio.fail_after(30):
        done = await trio.run_process(command, check=False, capture_stdout=True, stdin=b"")
    assert (done.returncode, done.stdout.decode().split()) == (7, ["pid", "2", "in", "front", "True"])
