"""Rows of the HTTP checklist as a client meets them: a real server, a real worker, plain requests."""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from cog_trio.testing import ServeModel, Server
from scenarios.models.edges import LINES
from scenarios.places import MODELS
from scenarios.processes import worker_of

SECRET = "s3cret-Token"
BIG = "9" * 4300
WHOLE = {"1.0": "1", "1e2": "100", "-0.0": "0", "1" + "0" * 40: "1" + "0" * 40, BIG: BIG, "-" + BIG: "-" + BIG}


async def _post(server: Server, body: str) -> Any:
    return await server.client.post("/predictions", content=body, headers={"content-type": "application/json"})


def _check_setup(logs: str) -> None:
    lines = logs.split("\n")
    told = [line for line in lines if line.startswith("[coglet::setup] line")]
    assert told == [f"[coglet::setup] line {number}" for number in range(LINES)]
    assert lines[-1] == "[coglet] Server ready"


@pytest.mark.covers("http:W9")
async def test_W9_setup_lines_are_whole(serve_model: ServeModel) -> None:
    """Given a model that prints a lot in setup, when health says READY, then every line is there, in order, and the
    runtime's own line is the last."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            _check_setup((await server.health())["setup"]["logs"])


@pytest.mark.covers("http:W9")
async def test_W9_setup_lines_are_whole_where_errors_alone_are_logged(tmp_path: Path) -> None:
    """Given --log-level error, which the line with the address is below, then the lines of setup are there too."""
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "cog_trio", "serve", str(MODELS / "edges.py"), "--uds", str(path)]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.run_process, [*command, "--log-level", "error"])  # which ends with 0
            while not path.exists():
                await trio.sleep(0.02)
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                while (health := (await client.get("/health-check")).json())["status"] != "READY":
                    await trio.sleep(0.02)
                _check_setup(health["setup"]["logs"])
                await client.post("/shutdown")


@pytest.mark.covers("http:W11")
async def test_W11_each_state_has_its_own_refusal_with_the_id(serve_model: ServeModel) -> None:
    """Given a worker that failed in setup, or died, when a prediction is posted, then 503 says which, with the id."""
    with trio.fail_after(60):
        async with serve_model("bad_setup.py", status="SETUP_FAILED") as server:
            failed = await server.predict(id="mine")
        async with serve_model("echo.py") as server:
            os.kill(worker_of(server).pid, signal.SIGKILL)
            await server.until("DEFUNCT")
            gone = await server.predict(id="mine")
    assert (failed.status_code, gone.status_code) == (503, 503)
    assert failed.json()["error"].startswith("Setup has failed, predictions can't run: ")
    assert gone.json()["error"].startswith("The worker is gone, predictions can't run: Worker died: signal 9")
    assert failed.json()["id"] == gone.json()["id"] == "mine"
    assert failed.json()["status"] == gone.json()["status"] == "failed"


@pytest.mark.covers("http:W23", "http:W24")
async def test_W23_W24_times_are_the_same_in_the_reply_and_when_read_later(serve_model: ServeModel) -> None:
    """Given a prediction that ran, when it is read again, then state, times and predict_time are those of the reply."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            reply = (await server.predict({"seconds": 0.05}, id="p")).json()
            read = await server.look("p")
    assert {**reply, "input": {"seconds": 0.05, "token": None}} == {**read, "input": {"token": None, **read["input"]}}
    created, started, completed = (
        datetime.fromisoformat(reply[name]) for name in ("created_at", "started_at", "completed_at")
    )
    assert created <= started < completed
    assert created.tzinfo is not None
    assert 0.05 <= reply["metrics"]["predict_time"] <= (completed - created).total_seconds() + 0.1


@pytest.mark.covers("http:W35")
async def test_W35_an_output_file_that_is_missing_fails_and_is_named(serve_model: ServeModel) -> None:
    """Given a model that returns a path where no file is, then the prediction fails and names it."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            reply = (await server.predict({"end": "missing file"})).json()
    assert reply["status"] == "failed"
    assert "/no/such/file.png" in reply["error"]
    assert "output" not in reply


@pytest.mark.covers("http:W44", "D15", "lesson:61")
async def test_W44_D15_whole_numbers_arrive_exactly(serve_model: ServeModel) -> None:
    """Given an input that is an int, when a whole number comes in any form and length, then run sees that int."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            for given, seen in WHOLE.items():
                reply = await _post(server, f'{{"input":{{"n":{given}}}}}')
                assert reply.status_code == 200, reply.text
                assert reply.json()["output"] == seen
            for number in ("9" * 4301, "-" + "9" * 4301, "1e999", "-1e999"):
                assert (await _post(server, f'{{"input":{{"n":{number}}}}}')).status_code == 400


@pytest.mark.covers("http:W45", "http:W46")
async def test_W45_W46_faults_are_short_and_point_into_values(serve_model: ServeModel) -> None:
    """Given inputs that are wrong and long, then each fault has a path with the index of its own, and at most 100
    characters of the value."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            reply = await server.predict({"numbers": [1, "y" * 1000], "word": "z" * 1000, "token": [SECRET]})
    assert reply.status_code == 422
    assert [fault["loc"] for fault in reply.json()["detail"]] == [
        ["body", "input", "numbers/1"],
        ["body", "input", "word"],
        ["body", "input", "token"],
    ]
    assert "y" * 101 not in reply.text
    assert "z" * 101 not in reply.text
    assert SECRET not in reply.text


@pytest.mark.covers("D42")
async def test_D42_a_secret_is_masked_wherever_it_could_show(serve_model: ServeModel) -> None:
    """Given an input that is a secret, when the model prints it, logs it and raises with it, then neither the reply,
    nor the read, nor a join, nor the server's log shows it."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            await server.start("p", {"token": SECRET, "end": "raise", "seconds": 0.3})
            join = await server.client.put("/predictions/p", json={}, headers={"prefer": "respond-async"})
            seen = await server.finished("p")
    assert join.json()["input"]["token"] == seen["input"]["token"] == "**********"
    assert seen["error"] == "ValueError: first line second line **********"
    assert "it ran **********" in seen["logs"]
    assert SECRET not in join.text + str(seen) + str(server.log)


@pytest.mark.covers("http:W49")
async def test_W49_a_cancel_never_hits_the_next_run_of_its_id(serve_model: ServeModel) -> None:
    """Given one id that is run, cancelled and run again at once, many times, then each cancel ends its own run only."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            for _ in range(30):
                await server.start("p", {"seconds": 10})
                assert await server.cancel("p") == 200
                assert (await server.finished("p"))["status"] == "canceled"
                assert await server.cancel("p") == 200
                again = await server.client.put("/predictions/p", json={"input": {"n": 7}})
                assert (again.status_code, again.json()["status"], again.json()["output"]) == (200, "succeeded", "7")


@pytest.mark.covers("http:W50", "D14", "lesson:65")
async def test_W50_errors_have_one_form_and_the_traceback_is_in_the_logs(serve_model: ServeModel) -> None:
    """Given code that raises, with a text or without, then error is one line, Type: text, and logs end in the
    traceback."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            told = (await server.predict({"end": "raise"})).json()
            bare = (await server.predict({"end": "bare"})).json()
    assert told["error"] == "ValueError: first line second line None"
    assert bare["error"] == "RuntimeError"
    for reply, last in ((told, "ValueError: first line\nsecond line None\n"), (bare, "RuntimeError\n")):
        assert reply["logs"].startswith("it ran None\n")
        assert "Traceback (most recent call last):\n" in reply["logs"]
        assert reply["logs"].endswith(last)


@pytest.mark.covers("http:W51")
async def test_W51_a_last_line_without_newline_belongs_to_its_own_run(serve_model: ServeModel) -> None:
    """Given a run whose last print has no newline, then its logs have the text, and the next run's have not."""
    with trio.fail_after(60):
        async with serve_model("edges.py") as server:
            replies = [(await server.predict()).json() for _ in range(3)]
    assert {reply["logs"] for reply in replies} == {"it ran None\nWARNING:root:with None\nno newline"}
