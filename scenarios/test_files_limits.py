"""Nothing can exceed a frame (W19): everything that a model, a client or the runtime says is sent at its limits and
far over them, and the next prediction on the one slot must work. docs/reference/limits.md tells what happens."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import trio

from cog_trio.bridge.protocol import MAX_FRAME, MAX_INLINE, MAX_LOG_LINE, MAX_METRIC
from cog_trio.testing import ServeModel, Server

MODEL = "limits.py"
MIB = 2**20
ESCAPED = "\x01"  # six bytes in JSON
SIZES = [MAX_INLINE - 3, MAX_INLINE - 2, MAX_INLINE - 1, MAX_FRAME - 200, MAX_FRAME, 3 * MAX_FRAME]


async def run(server: Server, what: str, size: int = 0, text: str = "x", **fields: Any) -> dict[str, Any]:
    reply = await server.predict({"what": what, "size": size, "text": text}, **fields)
    assert reply.status_code == 200, reply.text[:500]
    prediction = reply.json()
    assert isinstance(prediction, dict)
    return prediction


async def is_well(server: Server) -> None:
    assert (await run(server, "output", 2))["output"] == "xx"
    assert (await server.health())["status"] == "READY"


async def test_outputs(serve_model: ServeModel) -> None:
    """At the limit for inline values, one byte over it, at the frame's limit, and far over; escapes count."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            for size in SIZES:
                assert (await run(server, "output", size))["output"] == "x" * size
            for size in (MAX_INLINE // 6, MAX_FRAME // 6 + 1, 4 * MIB):
                assert (await run(server, "output", size, ESCAPED))["output"] == ESCAPED * size
            assert (await run(server, "yields", MAX_FRAME))["output"] == ["x" * MAX_FRAME] * 3
            await is_well(server)


async def test_inputs_and_contexts(serve_model: ServeModel) -> None:
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            for size in (MAX_INLINE - 2**16 - 60, MAX_INLINE - 2**16 + 60, MAX_INLINE, MAX_FRAME, 3 * MAX_FRAME):
                done = await run(server, "output", 1, "y" * size)
                assert done["output"] == "y" * size
                assert (await run(server, "context", context={"key": "y" * size}))["output"] == size
            assert (await run(server, "context", context={"key": ESCAPED * MAX_INLINE}))["output"] == MAX_INLINE
            await is_well(server)


async def test_errors(serve_model: ServeModel) -> None:
    """An error is cut to 64 KiB; its traceback is a log like any other."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            for text, size in product(("x", ESCAPED, "é", "\n"), (2**16 - 20, 2**16, 9 * MIB)):
                done = await run(server, "error", size, text)
                assert done["status"] == "failed"
                assert done["error"].startswith("ValueError")
                assert len(done["error"].encode()) <= 2**16
            await is_well(server)


@pytest.mark.parametrize("text", ["x", ESCAPED])
async def test_logs(serve_model: ServeModel, text: str) -> None:
    """A line is cut at 4 MiB and says so; text without a newline of any length, and what C code writes, too."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            for size in (MIB, MAX_LOG_LINE - 1, 9 * MIB):
                done = await run(server, "log", size, text)
                assert done["status"] == "succeeded", done["error"]
                assert "after\n" in done["logs"]
                assert len(done["logs"].encode()) <= 2 * MAX_LOG_LINE + 100
                assert ("TRUNCATED" in done["logs"]) is (size > MAX_LOG_LINE)
            done = await run(server, "raw", 9 * MIB, text)
            assert done["status"] == "succeeded", done["error"]
            await is_well(server)


async def test_metrics(serve_model: ServeModel) -> None:
    """A metric over 1 MiB is a ValueError in the model."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            assert (await run(server, "metric", MAX_METRIC - 2))["status"] == "succeeded"
            for size, text in ((MAX_METRIC + 1, "x"), (9 * MIB, "x"), (MAX_METRIC // 2, ESCAPED)):
                done = await run(server, "metric", size, text)
                assert done["status"] == "failed"
                assert done["error"].startswith("ValueError: ")
            await is_well(server)


async def test_ids(serve_model: ServeModel) -> None:
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            for id in ('"' * 256, "\\" * 256, "é" * 128, "\U0001f600" * 64):
                assert (await run(server, "output", 1, id=id))["id"] == id
            assert (await server.predict({"what": "output"}, id="x" * 257)).status_code == 422
            await is_well(server)


async def test_very_many_files_in_one_value(serve_model: ServeModel) -> None:
    """Each file travels in a frame of its own, so their number has no limit."""
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            files = (await run(server, "files", 3000))["output"]["files"]
            assert len(files) == 3000
            assert set(files) == {files[0]}
            await is_well(server)


async def test_depth(serve_model: ServeModel) -> None:
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            assert (await run(server, "deep", 100))["status"] == "succeeded"
            assert (await run(server, "deep", 100_000))["status"] == "failed"
            await is_well(server)


async def test_health_checks(serve_model: ServeModel) -> None:
    with trio.fail_after(60):
        async with serve_model(MODEL) as server:
            await run(server, "ill")
            health = await server.until("UNHEALTHY")
            assert len(health["user_healthcheck_error"]) <= 2**16 + 100
            assert (await run(server, "output", 2))["output"] == "xx"


@pytest.mark.parametrize(("variable", "error"), [("SETUP_ERROR", "RuntimeError"), ("DESCRIPTION", "FrameTooLarge")])
async def test_setup(serve_model: ServeModel, variable: str, error: str) -> None:
    """An error of 9 MiB, and a document of 9 MiB."""
    with trio.fail_after(60):
        async with serve_model(MODEL, env={variable: str(9 * MIB)}, status="SETUP_FAILED") as server:
            assert error in (await server.health())["setup"]["logs"]
