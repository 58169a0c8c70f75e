"""Models inside a trio program: what the program gets, and what is left of it."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest
import trio

from cog_trio import (
    AtCapacity,
    Completed,
    InvalidInput,
    Output,
    PredictionService,
    Settings,
    SetupFailed,
    WorkerDied,
    open_service,
    serve_http,
)
from cog_trio.testing.processes import MARK, marked, nothing_left
from scenarios.places import EXAMPLES, MODELS

PROGRAM = EXAMPLES / "embedding" / "program.py"
THIRTY = MODELS / "thirty.py"


INTERRUPTED = """
import sys, trio, cog_trio

async def main():
    async with cog_trio.open_service(sys.argv[1]) as service:
        await service.wait_ready()
        await service.predict({"note": sys.argv[2]})

trio.run(main)
"""


def descriptors() -> dict[int, str]:
    """What each open descriptor of this process leads to, but for what only waits to be collected, of another test."""
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of this very look
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def globals_of_the_process() -> dict[str, Any]:
    """Everything that a library has no business to change."""
    root = logging.getLogger()
    return {
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "main": sys.modules["__main__"],
        "logging": (root.level, list(root.handlers), logging.getLogger("cog_trio").handlers, logging.raiseExceptions),
        "recursion": sys.getrecursionlimit(),
    }


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mark that everything started from here carries."""
    monkeypatch.setenv(MARK, name := f"embedding-{os.getpid()}-{time.time_ns()}")
    return name


@pytest.fixture
def short_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trio keeps a thread for ten seconds after its work; here it ends at once, so that one that stays is seen."""
    monkeypatch.setattr("trio._core._thread_cache.IDLE_TIMEOUT", 0.05)


async def until_only_the_main_thread_is_left() -> None:
    left: list[str] = []
    with trio.move_on_after(10):
        while left := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
            await trio.sleep(0.02)
        return
    raise AssertionError(f"threads are left: {left}")


async def until_begun(note: Path) -> int:
    """Wait until the model of ``thirty.py`` works; the process that it works in."""
    with trio.fail_after(20):
        while not (note.exists() and (text := note.read_text()).startswith("began ")):
            await trio.sleep(0.01)
        return int(text.split()[1])


async def test_the_example(tmp_path: Path) -> None:
    """Given the program of the documentation, when it is run, then the one model feeds the other, the deadline of one
    second ends what would take thirty, the model answers again at once, and nothing is left of any of it."""
    name = f"example-{os.getpid()}-{time.time_ns()}"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    began = time.monotonic()
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, str(PROGRAM)],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, MARK: name, "TMPDIR": str(temporary)},
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        *("TWO!", "MODELS!", "IN!", "ONE!", "PROGRAM!"),
        "too slow: cancelled after 1 second",
        "AGAIN!",
    ]
    assert time.monotonic() - began < 25, "nobody waited for the thirty seconds"
    await nothing_left(name)
    assert list(temporary.iterdir()) == []


async def test_a_deadline_of_the_program_and_nothing_left(
    tmp_path: Path, mark: str, short_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a prediction of thirty seconds under a deadline of one, when that passes, then the model has stopped by a
    cancel in its own process when the block is left; and when a deadline around the service and a nursery passes too,
    while another such prediction runs, then no task, thread, process, descriptor or file is there that was not there
    before, and nothing of the process was changed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    note = tmp_path / "note"
    await trio.to_thread.run_sync(int)  # trio's own first thread, and what it opens for it
    before = globals_of_the_process()
    tasks = trio.lowlevel.current_statistics().tasks_living
    await until_only_the_main_thread_is_left()
    files = descriptors()
    with trio.fail_after(60), trio.CancelScope() as outer:
        async with open_service(THIRTY) as service, trio.open_nursery() as nursery:
            await service.wait_ready()
            began = trio.current_time()
            with trio.move_on_after(1) as deadline:
                await service.predict({"note": str(note)}, id="a")
            took = trio.current_time() - began
            assert deadline.cancelled_caught
            assert 1 <= took < 25  # the model takes thirty
            verb, pid = note.read_text().split()
            assert verb == "canceled", "the model itself was cancelled"
            assert int(pid) in marked(mark)
            prediction = service.get("a")
            assert prediction is not None
            assert prediction.status.value == "canceled"
            assert (await service.predict({"note": str(note), "seconds": 0})).result() == "done"
            assert note.read_text() == f"began {pid}", "in the same worker"
            assert globals_of_the_process() == before
            note.unlink()
            nursery.start_soon(run_named, service, note, "b")
            await until_begun(note)
            with pytest.raises(AtCapacity):
                await service.predict({"note": str(note)})
            outer.deadline = trio.current_time()
            await trio.sleep_forever()
    assert outer.cancelled_caught, "the deadline of the whole program closes all of it"
    assert note.read_text() == f"canceled {pid}"
    assert not psutil.pid_exists(int(pid))
    await nothing_left(mark)
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    await until_only_the_main_thread_is_left()
    assert globals_of_the_process() == before
    assert descriptors() == files
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_services_side_by_side_nested_and_one_after_the_other(mark: str) -> None:
    """Given three services of two models in one process, two of them with servers of their own on free ports, when
    they are used at once and shut down one by one, then none is touched by what happens to another."""
    with trio.fail_after(90):
        hello_settings = Settings(port=0)
        async with (
            open_service(MODELS / "echo.py") as echo,
            open_service(EXAMPLES / "hello", settings=hello_settings) as hello,
        ):
            await echo.wait_ready()
            await hello.wait_ready()
            async with trio.open_nursery() as nursery, httpx.AsyncClient(timeout=20, trust_env=False) as client:
                first = await nursery.start(serve_http, echo, Settings(port=0))
                urls = [*first, *await nursery.start(serve_http, hello)]
                assert urls[0] != urls[1]
                shouted = await client.post(f"{urls[1]}/predictions", json={"input": {"name": "you"}})
                assert shouted.json()["output"] == "hello you"
                async with open_service(EXAMPLES / "hello") as inner:
                    await inner.wait_ready()
                    assert (await inner.predict({"name": "inner"})).result() == "hello inner"
                assert (await hello.predict({"name": "outer"}, id="mine")).result() == "hello outer"
                seen = (await client.get(f"{urls[1]}/predictions/mine")).json()
                assert seen["output"] == "hello outer", "what a program ran is read over HTTP"
                assert (await client.post(f"{urls[1]}/shutdown")).status_code == 200
                await hello.wait_stopped()
                refused = await client.post(f"{urls[1]}/predictions", json={"input": {}})
                assert refused.status_code == 503
                alive = await client.get(f"{urls[0]}/health-check")
                assert alive.json()["status"] == "READY"
                nursery.cancel_scope.cancel()
            assert echo.health().status == "READY"
            assert hello.statistics().created == 2


async def test_crash_and_wrong_input_and_wrong_model_by_name(tmp_path: Path, mark: str) -> None:
    """Given a program with a model, when the input is wrong, the worker is killed, or the model can't be set up, then
    each is an error of its own name, and the program goes on."""
    note = tmp_path / "note"
    with trio.fail_after(60):
        async with open_service(THIRTY) as service, trio.open_nursery() as nursery:
            await service.wait_ready()
            with pytest.raises(InvalidInput, match="note: Field required"):
                await service.predict({"seconds": 1})

            async def kill() -> None:
                os.kill(await until_begun(note), signal.SIGKILL)

            nursery.start_soon(kill)
            with pytest.raises(WorkerDied, match=r"signal 9 \(SIGKILL\)") as raised:
                await service.predict({"note": str(note)})
            assert raised.value.prediction.status.value == "failed"
        async with open_service(MODELS / "bad_setup.py") as service:
            with pytest.raises(SetupFailed) as failed:
                await service.wait_ready()
            assert "Traceback" in failed.value.logs


async def test_ctrl_c_in_a_program(tmp_path: Path) -> None:
    """Given a program of a few lines whose model works, when it gets SIGINT, then it ends as Python programs do, the
    model was cancelled before that, and nothing is left."""
    name, note = f"interrupted-{os.getpid()}-{time.time_ns()}", tmp_path / "note"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(
                    trio.run_process,
                    [sys.executable, "-c", INTERRUPTED, str(THIRTY), str(note)],
                    check=False,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, MARK: name, "TMPDIR": str(temporary)},
                )
            )
            await until_begun(note)
            process.send_signal(signal.SIGINT)
    assert process.returncode == -signal.SIGINT
    assert note.read_text().startswith("canceled ")
    await nothing_left(name)
    assert list(temporary.iterdir()) == []


def test_it_works_from_anyio_on_trio(tmp_path: Path, mark: str) -> None:
    """Given a program that knows anyio alone, when it runs on the trio backend, then its task groups, cancel scopes
    and deadlines are those of the predictions in them."""
    note = tmp_path / "note"
    seen: dict[str, Any] = {}

    async def main() -> None:
        with anyio.fail_after(60):
            async with open_service(THIRTY) as service, open_service(MODELS / "tokens.py") as tokens:
                await service.wait_ready()
                await tokens.wait_ready()
                async with anyio.create_task_group() as group:
                    with pytest.raises(TimeoutError):
                        await run_late(service, note, group)
                seen["deadline"] = note.read_text().split()[0]
                async with anyio.create_task_group() as group:
                    group.start_soon(run_named, service, note, "scope")
                    await until_begun(note)
                    group.cancel_scope.cancel()
                seen["scope"] = service.get("scope").status.value  # type: ignore[union-attr]
                async with tokens.stream({"count": 3}) as stream:
                    events = [event async for event in stream]
                seen["outputs"] = sum(isinstance(event, Output) for event in events)
                seen["last"] = type(events[-1])

    note.unlink(missing_ok=True)
    anyio.run(main, backend="trio")
    assert seen == {"deadline": "canceled", "scope": "canceled", "outputs": 3, "last": Completed}


async def run_late(service: PredictionService, note: Path, group: anyio.abc.TaskGroup) -> None:
    with anyio.fail_after(30) as scope:
        group.start_soon(set_deadline, scope, note)
        await service.predict({"note": str(note)})


async def set_deadline(scope: anyio.CancelScope, note: Path) -> None:
    """Now, but not before the model works."""
    await until_begun(note)
    scope.deadline = anyio.current_time()


async def run_named(service: PredictionService, note: Path, id: str) -> None:
    await service.predict({"note": str(note)}, id=id)


def test_a_program_without_http_loads_no_server() -> None:
    """Given a program that only runs a model, when it has imported what it needs, then no server came along."""
    code = (
        "import sys, json; from cog_trio import open_service, Settings, Output, WorkerDied; "
        "print(json.dumps([name for name in ('hypercorn', 'httpx', 'rich', 'yaml', 'click') if name in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(answer.stdout) == []
