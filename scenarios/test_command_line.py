"""Starts: the command line and the container entry, right and wrong."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.server_process import SOON
from scenarios.places import EXAMPLES, MODELS

CONTAINER = ("-m", "cog_trio.server.http")


async def _run(*arguments: str, cwd: Path | None = None, environ: Mapping[str, str] = {}) -> tuple[int, str]:
    """Run a command that must end by itself: its exit code and what it said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COG_", "PORT"))}
    with trio.fail_after(30):
        done = await trio.run_process(
            [sys.executable, *arguments],
            env={**inherited, **environ},
            cwd=cwd,
            check=False,
            capture_stderr=True,
            stdin=subprocess.DEVNULL,
        )
    return done.returncode, done.stderr.decode()


@pytest.mark.covers("D38")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "missing.py"], "missing.py"),
        (["serve", "--nonsense"], "--nonsense"),
        (["serve", str(MODELS / "echo.py"), "--port", "99999"], "--port"),
        (["serve", str(MODELS / "echo.py"), "--setup-timeout", "soon"], "--setup-timeout"),
        (["serve", str(MODELS)], "cog.yaml"),
        (["serve", str(MODELS / "echo.py"), "--certfile", "missing.pem"], "--keyfile"),
        (["serve", str(MODELS / "echo.py"), "--ssl-certfile", "missing.pem", "--keyfile", "x.pem"], "missing.pem"),
        (["serve", str(MODELS / "echo.py"), "--auth-token", "two words"], "--auth-token"),
        (["nonsense"], "nonsense"),
    ],
)
async def test_D38_wrong_start_is_one_line_and_exit_2(arguments: list[str], words: str) -> None:
    """Given a wrong model or flag, when the command is started, then one line says what is wrong, and exit 2."""
    code, said = await _run("-m", "cog_trio", *arguments)
    assert code == 2
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.covers("http:W16", "D38")
@pytest.mark.parametrize(
    ("variable", "way"), [("MAKE_SERVE", "make serve PORT=... takes"), ("MAKELEVEL", "--port takes")]
)
async def test_D38_port_in_use_is_one_line_and_exit_1(variable: str, way: str) -> None:
    """Given a port that somebody listens on, when a server is to use it, then one line, and exit 1. The line names the
    variable of our Makefile under ``make serve``, and the flag under anybody else's make."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = await _run(
            *("-m", "cog_trio", "serve", str(MODELS / "echo.py"), "--port", str(port), "--log-level", "error"),
            environ={variable: "1"},
        )
    assert code == 1
    assert str(port) in said
    assert way in said
    assert said.count("\n") == 1


async def test_container_entry_serves_what_the_variables_say(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given PORT and COG_PREDICT_TYPE_STUB, when the container entry starts, then it serves that model there."""
    shutil.copy(MODELS / "echo.py", tmp_path)
    with trio.fail_after(60):
        async with serve_model(
            "-",
            "--host",
            "127.0.0.1",
            command=CONTAINER,
            cwd=tmp_path,
            env={"PORT": "0", "COG_PREDICT_TYPE_STUB": "echo.py:Runner"},
        ) as server:
            assert (await server.predict({"text": "in a container"})).json()["output"] == "in a container"


async def test_container_entry_reads_cog_yaml(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a folder with a cog.yaml and no variable but PORT, when the container entry starts, then it serves it,
    with its environment set before the model is imported."""
    (tmp_path / "predict.py").write_text(
        "import os\nFIRST = os.environ.get('WORD')\ndef run() -> str:\n    return f'{FIRST} of {os.getcwd()}'\n"
    )
    (tmp_path / "cog.yaml").write_text("run: predict.py:run\nenvironment:\n  - WORD=yes\n")
    with trio.fail_after(60):
        async with serve_model(
            "-", "--host", "127.0.0.1", command=CONTAINER, cwd=tmp_path, env={"PORT": "0"}
        ) as server:
            assert (await server.predict()).json()["output"] == f"yes of {tmp_path}"


@pytest.mark.covers("D38")
async def test_D38_container_without_a_model_exits_1_and_with_a_missing_one_is_setup_failed(
    serve_model: ServeModel, tmp_path: Path
) -> None:
    """Given no model at all, then exit 1; given a file that is not there, then the server lives: SETUP_FAILED."""
    code, said = await _run(*CONTAINER, cwd=tmp_path)
    assert code == 1
    assert "COG_PREDICT_TYPE_STUB" in said
    with trio.fail_after(60):
        async with serve_model(
            "-",
            "--host",
            "127.0.0.1",
            command=CONTAINER,
            cwd=tmp_path,
            status="SETUP_FAILED",
            env={"PORT": "0", "COG_PREDICT_TYPE_STUB": "missing.py"},
        ) as server:
            assert "missing.py" in (await server.health())["setup"]["logs"]


async def test_unix_socket(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given --uds, when the server runs, then it answers there, and the socket is removed at its end."""
    path = tmp_path / "socket"
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "hello", "--uds", str(path), status=None) as server:
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                with trio.fail_after(SOON):
                    while (await client.get("/health-check")).json()["status"] != "READY":
                        await trio.sleep(0.02)
                assert (await client.post("/predictions", json={})).json()["output"] == "hello world"
            assert await server.stop() == 0
    assert not path.exists()


@pytest.mark.covers("http:W30")
async def test_ready_file_is_there_while_ready(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given --ready-file, when the model is ready, then the file is there; when the server has ended, it is not."""
    path = tmp_path / "run" / "ready"
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "hello", "--ready-file", str(path)) as server:
            with trio.fail_after(SOON):
                while not path.exists():
                    await trio.sleep(0.02)
            await server.stop()
    assert not path.exists()
