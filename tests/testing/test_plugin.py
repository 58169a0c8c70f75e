"""The pytest plugin in the project of a user: real runs of pytest in a folder that is not ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(180),  # several servers, one after the other, also where the machine is busy
]

ROOT: Final = Path(__file__).parent.parent.parent
SLOW: Final = ("cacheprovider", "schemathesis", "anyio", "hypothesispytest")  # plugins that are not needed here
SPARED: Final = tuple(f"-pno:{name}" for name in SLOW)
HEAVY: Final = ("trio", "httpx", "hypercorn", "h11", "msgspec", "cog_trio.testing.server_process")

MODEL: Final = """
import os, pathlib, subprocess, sys, tempfile
from cog import BaseRunner, Path

class Runner(BaseRunner):
    def run(self, text: str = "") -> str:
        if text == "litter":
            pathlib.Path(tempfile.gettempdir(), "litter").write_text("")
        if text == "child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        return text.upper()

class Same(BaseRunner):
    def run(self, file: Path) -> Path:
        return file
"""

TOKENS: Final = """
import cog

class Runner(cog.BaseRunner):
    @cog.streaming
    def run(self) -> cog.ConcatenateIterator[str]:
        yield from "abc"
"""

WORKS: Final = """
async def test_serve_model(serve_model, webhook_receiver, file_server, upload_server):
    url = file_server.add("words.txt", b"some words")
    async with serve_model("predict.py:Same", "--upload-url", upload_server.url) as server:
        reply = await server.predict({"file": url}, id="a", webhook=webhook_receiver.url)
        assert reply.json()["output"] == f"{upload_server.url}/words.txt"
        (upload,) = upload_server.uploads
        assert (upload.content, upload.headers["x-prediction-id"]) == (b"some words", "a")
        assert (await webhook_receiver.until("a"))[-1].json() == reply.json()
        assert file_server.paths == ["/words.txt"]
        assert (await server.client.get("/health-check")).json()["status"] == "READY"

async def test_fake_worker(fake_worker, open_service):
    import trio
    from cog_trio.testing import answer
    async with fake_worker(answer("slow", logs="busy", seconds=3600)) as worker:
        async with open_service(worker=worker) as service:
            began = trio.current_time()
            prediction = await service.predict({"anything": 1})
            assert trio.current_time() - began == 3600
            assert prediction.status.value == "succeeded"
"""

MORE: Final = """
async def test_open_service(open_service):
    async with open_service("predict.py:Runner") as service:
        prediction = await service.predict({"text": "hello"})
        assert prediction.status.value == "succeeded"

async def test_events(serve_model):
    async with serve_model("tokens.py") as server, server.events("b") as events:
        seen = [event async for event in events]
        assert "".join(event.data["chunk"] for event in seen if event.name == "output") == "abc"
        assert seen[-1].name == "completed"
        async with server.socket() as socket:
            await socket.send_message('{"type": "start", "id": "c", "input": {}}')
            assert "c" in await socket.get_message()
"""

FAILS: Final = """
async def test_a_failure_shows_the_log(serve_model):
    async with serve_model("predict.py") as server:
        await server.predict({"text": "hello"})
    raise KeyError("as it was")

async def test_no_model(serve_model):
    async with serve_model("nothing.py"):
        pass

async def test_a_fake_clock_and_a_real_server(serve_model, autojump_clock):
    async with serve_model("predict.py"):
        pass

async def test_setup_fails(serve_model):
    async with serve_model("predict.py:Nobody"):
        pass

async def test_a_file_is_left(serve_model):
    async with serve_model("predict.py") as server:
        await server.predict({"text": "litter"})

async def test_a_process_is_left(serve_model, monkeypatch):
    from functools import partial
    from cog_trio.testing.processes import nothing_left
    monkeypatch.setattr("cog_trio.testing.server_process.nothing_left", partial(nothing_left, seconds=0.2))
    async with serve_model("predict.py") as server:
        await server.predict({"text": "child"})

async def test_bad_flag(serve_model):
    async with serve_model("predict.py", "--queue", "many"):
        pass
"""


class Project:
    """Somebody's project, with a model and a test folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tests").mkdir()
        (folder / "predict.py").write_text(MODEL)
        (folder / "tokens.py").write_text(TOKENS)

    def run(self, test: str, *arguments: str, settings: str = "trio_mode = true", **environ: str) -> str:
        """Run pytest in its tests folder; what it printed."""
        (self.folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{settings}\n")
        (self.folder / "tests" / "test_model.py").write_text(test)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-rA", *SPARED, *arguments],
            cwd=self.folder / "tests",
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_entry_point_is_there() -> None:
    (found,) = entry_points(group="pytest11", name="cog_trio")
    assert found.value == "cog_trio.testing.plugin"


def test_fixtures_work_in_trio_mode(project: Project) -> None:
    """Given a project with trio_mode, when its tests use each fixture, then they pass."""
    said = project.run(WORKS + MORE)
    assert " 4 passed in " in said, said


def test_fixtures_work_with_marks(project: Project) -> None:
    """Given a project whose tests are marked one by one, when they use all kinds of fixtures, then they pass."""
    said = project.run("import pytest\npytestmark = pytest.mark.trio\n" + WORKS, settings="")
    assert " 2 passed in " in said, said


def test_failures_say_what_is_wrong(project: Project) -> None:
    """Given tests that fail in all ways, then each says what happened, and the log of its server is in the report."""
    said = project.run(FAILS)
    assert " 7 failed in " in said, said
    parts = dict(zip(*[iter(re.split(r"^_{3,} (test_\w+) _{3,}$", said, flags=re.MULTILINE)[1:])] * 2, strict=True))
    shown = parts["test_a_failure_shows_the_log"]
    assert "KeyError: 'as it was'" in shown
    assert "Captured log of the server of predict.py" in shown
    assert re.search(r"info +POST /predictions 200", shown)
    assert f"there is no nothing.py in {project.folder}/tests, {project.folder}" in parts["test_no_model"]
    assert "this test has a fake clock" in parts["test_a_fake_clock_and_a_real_server"]
    assert "health is SETUP_FAILED (" in parts["test_setup_fails"]
    assert "Nobody" in parts["test_setup_fails"]
    assert "left files in its temporary folder: ['litter']" in parts["test_a_file_is_left"]
    assert "still there after 0.2 s: process " in parts["test_a_process_is_left"]
    assert "time.sleep(60)" in parts["test_a_process_is_left"]
    assert "the server ended with 2" in parts["test_bad_flag"]
    assert "--queue" in parts["test_bad_flag"]


def test_a_project_that_uses_nothing_of_it_pays_nothing(project: Project) -> None:
    """Given the plugin and no other, when a test runs, then nothing heavy is imported; -p loads it as well."""
    test = f"import sys\ndef test_it():\n    assert not {set(HEAVY)!r} & set(sys.modules)\n"
    said = project.run(test, "-p", "cog_trio.testing.plugin", settings="", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert " 1 passed in " in said, said


def test_without_an_async_plugin_its_fixtures_say_so(project: Project) -> None:
    """Given no pytest-trio, when a plain test uses a fixture, then the error says that trio is missing."""
    test = "def test_it(serve_model):\n    serve_model('predict.py').__aenter__().send(None)\n"
    said = project.run(test, "-p", "cog_trio.testing.plugin", settings="", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "RuntimeError: a served model needs trio" in said, said
