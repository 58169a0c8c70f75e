"""The log of a server: what a platform and a person at a terminal read about predictions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from cog_trio.testing import ServeModel
from scenarios.places import MODELS

POLL: Final = 0.02  # seconds between two looks
MODEL: Final = """
import sys
from cog import BaseRunner

class Runner(BaseRunner):
    def setup(self):
        print("loading")

    def run(self, how: str = "") -> str:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        if how == "fail":
            raise ValueError("boom")
        return "done"
"""


class Server:
    """A server on a Unix socket whose log is a pipe; ``read`` reads it to its end."""

    def __init__(self, process: trio.Process, client: httpx.AsyncClient) -> None:
        self.process = process
        self.client = client

    async def predict(self, **input: Any) -> dict[str, Any]:
        reply = await self.client.post("/predictions", json={"input": input})
        prediction: dict[str, Any] = reply.json()
        return prediction

    async def read(self) -> list[dict[str, Any]]:
        """End the server; the records of its whole log."""
        assert self.process.stderr is not None
        self.process.terminate()
        log = b""
        async for chunk in self.process.stderr:
            log += chunk
        assert await self.process.wait() == 0
        assert log.endswith(b"\n")
        return [json.loads(line) for line in log.splitlines()]


@asynccontextmanager
async def _open_server(folder: Path, model: str | Path, *flags: str) -> AsyncIterator[Server]:
    path = str(folder / "socket")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COG_")}
    command = [sys.executable, "-m", "cog_trio", "serve", str(model), "--uds", path, "--log-format", "json", *flags]
    process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE, env=environment)
    transport = httpx.AsyncHTTPTransport(uds=path)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            ready = False
            while not ready:
                with suppress(httpx.ConnectError):  # it does not listen yet
                    ready = (await client.get("/health-check")).json()["status"] == "READY"
                await trio.sleep(POLL)
            yield Server(process, client)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            assert process.stderr is not None
            await process.stderr.aclose()


@pytest.mark.parametrize("level", ["info", "debug", "warning"])
async def test_each_prediction_has_its_lines(level: str, tmp_path: Path) -> None:
    """Given predictions that succeed and fail, when the log is read as JSON, then each has its start, what it printed,
    its end with times, and its error; probes are there at debug alone; at warning only setup's text is there."""
    (tmp_path / "model.py").write_text(MODEL)
    with trio.fail_after(50):
        async with _open_server(tmp_path, tmp_path / "model.py", "--log-level", level) as server:
            good, bad = await server.predict(), await server.predict(how="fail")
            await server.client.get("/livez")
            records = await server.read()
    setup = [record for record in records if record["message"] == "loading"]
    assert [record["source"] for record in setup] == ["stdout"]
    if level == "warning":
        assert records == setup
        return
    assert records[0]["versions"]["cog_trio"]
    assert records[0]["settings"] == {
        "--uds": f"{tmp_path}/socket",
        **({"--log-level": level} if level != "info" else {}),
    }
    assert [record["message"] for record in records if record["target"] == "cog_trio.cli"][-1] == (
        "Stopped, predictions: 2, log lines dropped: 0"
    )
    for id, outcome in ((good["id"], "succeeded"), (bad["id"], "failed")):
        own = [record for record in records if record.get("prediction_id") == id]
        assert [record["message"] for record in own] == [
            "prediction started",
            "to stdout",
            "to stderr",
            f"prediction {outcome}" + (": ValueError: boom" if outcome == "failed" else ""),
        ]
        assert [record.get("source") for record in own] == [None, "stdout", "stderr", None]
        end = own[-1]
        assert end["outcome"] == outcome
        assert 0 <= end["queue_seconds"] < end["queue_seconds"] + end["predict_seconds"] < 50
        assert ("exception" in end) == (outcome == "failed" and level == "debug")
    access = [record for record in records if record["target"] == "cog_trio.access"]
    posts = [record for record in access if record["path"] == "/predictions"]
    assert [(record["method"], record["status"], record["id"]) for record in posts] == [
        ("POST", 200, good["id"]),
        ("POST", 200, bad["id"]),
    ]
    assert all(record["bytes"] > 0 and record["ms"] > 0 for record in posts)
    assert any(record["path"] == "/livez" for record in access) == (level == "debug")


async def test_no_prediction_logs_leaves_out_what_they_print(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    with trio.fail_after(50):
        async with _open_server(tmp_path, tmp_path / "model.py", "--no-prediction-logs") as server:
            reply = await server.predict()
            messages = [record["message"] for record in await server.read()]
    assert reply["logs"] == "to stdout\nto stderr\n"
    assert "loading" in messages
    assert "prediction succeeded" in messages
    assert "to stdout" not in messages


async def test_an_interrupt_says_what_it_waits_for(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a prediction that runs, when Ctrl-C comes, then the log says how many run and how long they may."""
    gate = tmp_path / "gate"
    told = "SIGINT: shutting down: 1 prediction may finish within 25 s, a second signal cancels them"
    with trio.fail_after(50):
        async with serve_model("talks.py", "--drain-grace", "25") as server, trio.open_nursery() as nursery:
            nursery.start_soon(server.predict, {"gate": str(gate)})
            while not any(entry.get("message") == "talking" for entry in server.log):
                await trio.sleep(POLL)
            server.process.send_signal(signal.SIGINT)
            while not any(entry.get("message") == told for entry in server.log):
                await trio.sleep(POLL)
            gate.touch()
            await server.process.wait()


async def test_a_reader_of_the_log_that_stalls_stops_nobody(tmp_path: Path) -> None:
    """Given a stderr that nobody reads, when a model prints far more than may wait, then predictions go on, the dropped
    lines are counted, and one line says so when the reader is back."""
    with trio.fail_after(50):
        async with _open_server(tmp_path, MODELS / "pours.py:Chunks") as server:
            for _ in range(2):
                assert (await server.predict(mib=0, lines=10_000, width=1000))["status"] == "succeeded"
            metrics = (await server.client.get("/metrics")).text.splitlines()
            (count,) = [
                float(line.split()[1])
                for line in metrics
                if line.startswith('cog_log_lines_dropped_total{by="service_log"} ')
            ]
            assert count > 0
            records = await server.read()
    told = [record for record in records if record["message"].endswith("log lines were dropped: stderr is too slow")]
    assert sum(int(record["message"].split()[0]) for record in told) >= count


async def test_SIGUSR1_writes_what_the_server_is_doing(tmp_path: Path) -> None:
    """Given a prediction that hangs, when SIGUSR1 comes, then the log names it, its stage and the waiting tasks, and
    the prediction goes on."""
    gate = tmp_path / "gate"
    with trio.fail_after(50):
        async with _open_server(tmp_path, MODELS / "talks.py", "--log-level", "warning") as server:
            done: list[dict[str, Any]] = []

            async def predict() -> None:
                done.append(await server.predict(gate=str(gate)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(predict)
                while (await server.client.get("/health-check")).json()["status"] != "BUSY":
                    await trio.sleep(POLL)
                server.process.send_signal(signal.SIGUSR1)
                await server.client.get("/livez")
                gate.touch()
            assert done[0]["status"] == "succeeded"
            records = await server.read()
            messages = [record["message"] for record in records]
    assert any("thread MainThread is at" in one["message"] for one in records if one.get("worker_target")), "its worker"
    states = [message for message in messages if message.startswith("state: ")]
    assert "predictions running: 1, queued: 0" in states[0]
    assert any(f"predict {done[0]['id']}: processing, created " in state for state in states)
    assert any("task " in state and "program.py" in state for state in states)
    assert any(state.startswith("state: thread ") for state in states)
    assert len(states) < 300
