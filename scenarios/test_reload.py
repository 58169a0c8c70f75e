"""Developing a model: `cog-trio serve --reload` follows the files, without dropping the port."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from cog_trio.testing import ServeModel, Server
from scenarios.processes import worker_of

MODEL = """
import time

from cog import BaseRunner

from helper import GREETING


class Runner(BaseRunner):
    def setup(self) -> None:
        print("set up", GREETING)

    def run(self, seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return GREETING
"""


def write(folder: Path, greeting: str) -> None:
    (folder / "helper.py").write_text(f"GREETING = {greeting!r}\n")


async def until(server: Server, greeting: str) -> None:
    """Wait until the model says this."""
    with trio.fail_after(20):
        while True:
            reply = await server.predict()
            if reply.status_code == 200 and reply.json()["output"] == greeting:
                return
            assert reply.status_code in (200, 503), reply.text
            await trio.sleep(0.05)


async def test_a_developer_saves_and_the_server_follows(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a server with --reload, when files of the model are saved, then it answers from the new code on the same
    port; a run that is in flight ends by the old code; a broken save shows, and the next one heals it; what the
    model writes and what is not a code starts nothing; a cog.yaml that is wrong leaves the model as it is."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "predict.py").write_text(MODEL)
    (folder / "cog.yaml").write_text("run: predict.py:Runner\n")
    write(folder, "one")
    async with serve_model(folder, "--reload") as server:
        await server.until("READY")
        first = worker_of(server).pid
        await until(server, "one")
        await server.start("long", {"seconds": 1})
        await server.until("BUSY")
        write(folder, "two")
        await server.until("STARTING")
        assert (await server.finished("long"))["output"] == "one"
        await until(server, "two")
        write(folder, "six")  # as long as the one before, within the same second maybe
        await until(server, "six")
        health = await server.health()
        assert "helper.py has changed" in health["setup"]["logs"]
        assert "set up six" in health["setup"]["logs"]

        second = worker_of(server).pid
        assert second != first
        (folder / "weights.json").write_text("{}")
        (folder / ".hidden").mkdir()
        (folder / ".hidden" / "other.py").write_text("")
        (folder / "predict.py").write_text(MODEL + "\nnever closed (\n")
        seen = await server.until("SETUP_FAILED", 20)
        assert "SyntaxError" in seen["setup"]["logs"]
        assert [line for line in server.log if "weights.json" in str(line) or ".hidden" in str(line)] == []
        (folder / "predict.py").write_text(MODEL)
        await until(server, "six")

        (folder / "cog.yaml").write_text("run: 3\n")
        with trio.fail_after(20):
            while not any("the model stays as it is" in str(line) for line in server.log):
                await trio.sleep(0.05)
        await until(server, "six")
        (folder / "other.py").write_text(MODEL.replace("return GREETING", "return GREETING + '!'"))
        (folder / "cog.yaml").write_text("run: other.py:Runner\n")
        await until(server, "six!")


@pytest.mark.parametrize(
    ("flags", "text"),
    [(["--reload-dir", "nowhere"], "--reload-dir nowhere: there is no such folder")],
    ids=["no folder"],
)
async def test_what_can_not_be_watched_is_said_at_once(tmp_path: Path, flags: list[str], text: str) -> None:
    (tmp_path / "predict.py").write_text(MODEL)
    with trio.fail_after(20):
        done = await trio.run_process(
            [sys.executable, "-m", "cog_trio", "serve", "predict.py", *flags],
            cwd=tmp_path,
            capture_stderr=True,
            check=False,
        )
    assert (done.returncode, done.stderr.decode().strip()) == (2, f"cog-trio: {text}")
