"""Predictions that share calls of a helper: each keeps its own result, error, cancel and logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.server_process import SOON, Server


async def start_all(server: Server, helper: str, texts: list[str], gate: Path | str = "") -> list[str]:
    """Start predictions that fill one batch; their ids."""
    ids = [f"{helper}-{text.replace(' ', '-')}-{number}-{Path(gate).name}" for number, text in enumerate(texts)]
    for id, text in zip(ids, texts, strict=True):
        await server.start(id, {"text": text, "gate": str(gate), "helper": helper})
        await server.until_logs(id, f"own line of {text}")  # so its item is in the line before the next one's
    return ids


async def ends(server: Server, ids: list[str]) -> list[dict[str, Any]]:
    return [await server.finished(id) for id in ids]


@pytest.mark.covers("D54")
@pytest.mark.parametrize("model", ["batched.py", "batched.py:Trio"])
async def test_predictions_share_a_call_and_nothing_else(serve_model: ServeModel, tmp_path: Path, model: str) -> None:
    """Given a model of eight slots with a plain and an async helper that take four items a call, when four predictions
    come at once, then they share one call: each has its own line in its logs and the shared one marked, an exception in
    the list is the failure of one, an exception of the call that of all, and a cancelled one ends at once while the
    others go on."""
    with trio.fail_after(100):
        async with serve_model(model) as server:
            for helper in ("plain", "awaited"):
                seen = await ends(server, await start_all(server, helper, ["a", "b", "fails", "d"]))
                assert [one.get("output") for one in seen] == [
                    "a of a b fails d; ",
                    "b of a b fails d; ",
                    None,
                    "d of a b fails d; ",
                ]
                assert [one["logs"].splitlines()[:3] for one in seen] == [
                    [f"own line of {text}", f"[batch] {helper} call of 4", "[batch] answers of 4"]
                    for text in ("a", "b", "fails", "d")
                ]
                assert seen[2]["error"] == "ValueError: this one failed"
                seen = await ends(server, await start_all(server, helper, ["all fail", "b", "c", "d"]))
                assert {one["error"] for one in seen} == {"RuntimeError: the whole call failed"}

                gate = tmp_path / helper
                ids = await start_all(server, helper, ["a", "b", "c", "d"], gate)
                await server.until_logs(ids[3], f"{helper} call of 4")
                began = trio.current_time()
                assert await server.cancel(ids[1]) == 200
                assert (await server.finished(ids[1]))["status"] == "canceled"
                assert trio.current_time() - began < SOON
                waiting = await start_all(server, helper, ["gone", "e", "f", "g"])
                assert await server.cancel(waiting[0]) == 200
                assert (await server.finished(waiting[0]))["status"] == "canceled"
                gate.touch()
                others = await ends(server, [ids[0], *ids[2:]])
                assert [one["output"] for one in others] == [f"{text} of a b c d; " for text in "acd"]
                waiting += await start_all(server, helper, ["h"])
                assert {one["output"][1:] for one in await ends(server, waiting[1:])} == {" of e f g h; "}

            ids = await start_all(server, "awaited", ["a", "b", "c", "d"], tmp_path / "never")
            await server.until_logs(ids[0], "awaited call of 4")
            for id in ids:
                assert await server.cancel(id) == 200
            assert {one["status"] for one in await ends(server, ids)} == {"canceled"}
            last = (await server.predict({"text": "last", "helper": "single"})).json()
            assert last["output"] == "last of last; cancelled "
            assert (
                last["logs"] == "own line of last\nsingle call of 1\nanswers of 1"
            )  # one prediction's own text has no mark
            assert (await server.health())["status"] == "READY"
