"""Trainings: their routes beside those of predictions, each with its own callable; and weights."""

from __future__ import annotations

import base64
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from cog_trio.testing import ServeModel, Server
from scenarios.places import MODELS

CONTAINER: Final = ("-m", "cog_trio.server.http")
SSE: Final = {"accept": "text/event-stream"}
ASYNC: Final = {"prefer": "respond-async"}


class Both:
    """``async with both(predict, train, *flags)``: the container entry with these references of trains.py."""

    def __init__(self, serve_model: ServeModel, folder: Path) -> None:
        self._serve = serve_model
        self._folder = folder
        shutil.copy(MODELS / "trains.py", folder)

    def __call__(
        self, predict: str | None, train: str | None, *flags: str, env: dict[str, str] | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Server]:
        variables = {"COG_PREDICT_TYPE_STUB": predict, "COG_TRAIN_TYPE_STUB": train}
        stubs = {name: f"trains.py:{value}" for name, value in variables.items() if value is not None}
        return self._serve(
            "-",
            *("--host", "127.0.0.1", *flags),
            command=CONTAINER,
            cwd=self._folder,
            env={"PORT": "0", **stubs, **(env or {})},
            **options,
        )


@pytest.fixture
def both(serve_model: ServeModel, tmp_path: Path) -> Both:
    folder = tmp_path / "model"
    folder.mkdir()
    return Both(serve_model, folder)


async def train(server: Server, input: Any = None, **fields: Any) -> httpx.Response:
    return await server.client.post("/trainings", json={"input": {} if input is None else input, **fields})


@pytest.mark.covers("http:W26")
async def test_W26_each_family_runs_its_own_callable_with_its_own_inputs(both: Both) -> None:
    """Given a runner and a trainer that is a class of its own, when both families are asked, then each runs its own
    callable, both were set up, inputs are checked by each one's own table, and a list stays a list."""
    with trio.fail_after(60):
        async with both("Runner", "Trainer") as server:
            logs = (await server.health())["setup"]["logs"]
            assert (await server.predict({"a": "y"})).json()["output"] == "ran y, trained 0"
            trained = (await train(server, {"a": 2})).json()
            assert (trained["status"], trained["output"]) == ("succeeded", [42])
            assert trained["logs"].startswith("training on 2\n")
            assert trained["metrics"]["loss"] == 0.5
            assert (await server.predict({"a": 2})).status_code == 422
            refused = await train(server, {"a": "y"})
            assert refused.status_code == 422
            assert refused.json()["detail"][0]["loc"] == ["body", "input", "a"]
            found = (await server.client.get("/")).json()
            assert found["trainings_url"] == "/trainings"
            assert found["trainings_idempotent_url"] == "/trainings/{training_id}"
            assert found["trainings_cancel_url"] == "/trainings/{training_id}/cancel"
            document = (await server.client.get("/openapi.json")).json()
    assert "setup of the runner" in logs
    assert "setup of the trainer" in logs
    assert {"/predictions", "/trainings", "/trainings/{training_id}/cancel"} <= set(document["paths"])
    assert document["components"]["schemas"]["TrainingOutput"]["type"] == "array"
    assert document["components"]["schemas"]["a"]["enum"] == ["x", "y"]  # row 61
    assert document["components"]["schemas"]["TrainingInput_a"]["enum"] == [1, 2]


async def test_one_class_that_runs_and_trains_is_set_up_once(both: Both) -> None:
    """Given one class with run and train, when it is trained, then the same instance runs."""
    with trio.fail_after(60):
        async with both("Runner", "Runner") as server:
            assert (await server.health())["setup"]["logs"].count("setup of the runner") == 1
            assert (await train(server, {"rounds": 3})).json()["output"] == 3
            assert (await train(server, {"rounds": 0})).status_code == 422
            assert (await server.predict()).json()["output"] == "ran x, trained 3"


@pytest.mark.covers("http:W26")
async def test_W26_without_a_train_function_the_routes_say_so(both: Both) -> None:
    """Given a model without training, when a training is asked for, then 404 with an error text, and / names none."""
    with trio.fail_after(60):
        async with both("Runner", None) as server:
            for reply in (await train(server), await server.client.put("/trainings/a", json={})):
                assert reply.status_code == 404
                assert "no train function" in reply.json()["error"]
            assert "trainings_url" not in (await server.client.get("/")).json()
            assert "/trainings" not in (await server.client.get("/openapi.json")).json()["paths"]


@pytest.mark.covers("sdk:W19")
@pytest.mark.parametrize("entry", ["container", "serve"])
async def test_W19_train_only(both: Both, serve_model: ServeModel, tmp_path: Path, entry: str) -> None:
    """Given --x-mode train and a class with only setup and train, when both families are asked, then only trainings
    run, and nothing else is named."""
    only: AbstractAsyncContextManager[Server]
    if entry == "container":
        only = both("Runner", "Trainer", "--x-mode", "train")
    else:
        only = serve_model(tmp_path / "model" / "trains.py:Trainer", "--x-mode", "train")
    with trio.fail_after(60):
        async with only as server:
            assert (await train(server)).json()["output"] == [41]
            refused = await server.predict()
            assert refused.status_code == 404
            assert "training alone" in refused.json()["error"]
            found = (await server.client.get("/")).json()
            assert "predictions_url" not in found
            assert "trainings_url" in found
            schemas = (await server.client.get("/openapi.json")).json()["components"]["schemas"]
            assert {"TrainingInput", "TrainingOutput"} <= set(schemas)
            assert "Input" not in schemas
            assert "setup of the runner" not in (await server.health())["setup"]["logs"]


@pytest.mark.covers("D18")
async def test_trainings_answer_as_predictions_do(both: Both) -> None:
    """Given a training function, when it is asked in every way, then sync, async, PUT, joins, reads, ids, refusals
    and failures are as with predictions, in one space of ids."""
    with trio.fail_after(60):
        async with both("Runner", "sync") as server:
            client = server.client
            mismatch = await client.put("/trainings/a", json={"id": "b"})
            assert mismatch.status_code == 422
            assert mismatch.json()["detail"][0]["msg"] == "training ID must match the ID supplied in the URL"
            for reply in (
                await client.post("/trainings", json={}, headers=SSE),
                await client.put("/trainings/s", json={}, headers=SSE),
            ):
                assert reply.status_code == 406
                assert reply.json()["error"] == "Training endpoints do not support streaming responses."
            failed = (await train(server, {"fail": True}, id="f")).json()
            assert (failed["status"], failed["error"]) == ("failed", "ValueError: no convergence")
            started = await client.put("/trainings/t", json={"input": {"seconds": 30}}, headers=ASYNC)
            assert (started.status_code, started.json()) == (202, {"id": "t", "status": "starting"})
            await server.until_logs("t", "training")
            assert (await server.predict()).status_code == 409  # one slot for both
            assert (await client.post("/trainings", json={"id": "t"})).status_code == 409
            joined = await client.put("/trainings/t", json={}, headers=ASYNC)
            assert (joined.status_code, joined.json()["status"]) == (202, "processing")
            assert (await client.get("/trainings/t")).json()["input"]["seconds"] == 30
            assert (await client.post("/predictions/t/cancel")).status_code == 200  # either family cancels either kind
            end = await server.finished("t")
            assert (end["status"], end["logs"]) == ("canceled", "training\ncleaned up\n")
            await server.start("p", {"seconds": 30})
            assert (await client.post("/trainings/p/cancel")).status_code == 200
            assert (await server.finished("p"))["status"] == "canceled"
            assert (await client.get("/trainings/p")).json()["id"] == "p"
            gone = await client.post("/trainings/nobody/cancel")
            assert (gone.status_code, gone.json()) == (404, {})
            assert (await train(server)).json()["output"] == "trained"


async def test_a_client_that_leaves_ends_its_sync_training(both: Both) -> None:
    """Given a sync training, when its client leaves, then it is cancelled (D4)."""
    with trio.fail_after(60):
        async with both("Runner", "sync") as server:
            with pytest.raises(httpx.ReadTimeout):
                await server.client.post("/trainings", json={"id": "t", "input": {"seconds": 30}}, timeout=0.5)
            assert (await server.finished("t"))["status"] == "canceled"


@pytest.mark.parametrize(
    ("name", "input", "output"),
    [
        ("epochs", {"count": 3}, ["epoch 0", "epoch 1", "epoch 2"]),
        ("epochs", {"count": 0}, []),
        ("coroutine", {"x": "a"}, "trained on a"),
    ],
)
async def test_training_functions_of_every_kind_stand_alone(both: Both, name: str, input: Any, output: Any) -> None:
    """Given a train function that is a generator or a coroutine, when it is served alone, then it runs."""
    with trio.fail_after(60):
        async with both(None, name, "--x-mode", "train") as server:
            reply = (await train(server, input)).json()
            assert (reply["status"], reply["output"]) == ("succeeded", output)


async def test_async_run_and_async_train_share_a_loop(both: Both) -> None:
    """Given an async runner and an async trainer, when both run, then on the loop of their setups, with cancel."""
    with trio.fail_after(60):
        async with both("AsyncRunner", "AsyncTrainer") as server:
            assert (await server.predict()).json()["output"] == "same loop: True"
            assert (await train(server)).json()["output"] == ["same loop: True", "trained"]
            await server.client.put("/trainings/t", json={"input": {"seconds": 30}}, headers=ASYNC)
            await server.until_logs("t", "training")
            assert await server.cancel("t") == 200
            end = await server.finished("t")
            assert (end["status"], end["logs"]) == ("canceled", "training\ncleaned up\n")


async def test_sync_run_beside_async_train(both: Both) -> None:
    """Given a sync runner and an async trainer, when they take turns and are cancelled, then each is what it would be
    alone: a prediction is interrupted where it sleeps, a training at its await, and the slot goes on."""
    with trio.fail_after(60):
        async with both("Runner", "AsyncTrainer") as server:
            for _ in range(2):
                assert (await server.predict()).json()["output"] == "ran x, trained 0"
                assert (await train(server)).json()["output"] == ["same loop: True", "trained"]
                await server.client.put("/trainings/t", json={"input": {"seconds": 30}}, headers=ASYNC)
                await server.until_logs("t", "training")
                assert await server.cancel("t") == 200
                assert (await server.finished("t"))["logs"] == "training\ncleaned up\n"
                await server.start("p", {"seconds": 30})
                await server.cancel("p")
                assert (await server.finished("p"))["status"] == "canceled"


@pytest.mark.covers("D18")
async def test_D18_a_sync_train_beside_an_async_run(both: Both) -> None:
    """Given an async runner and a sync train function, when a training runs, then predictions are served beside it, the
    next training waits for its end, and each of them is cancelled alone."""
    with trio.fail_after(60):
        async with both("AsyncRunner", "sync", env={"COG_MAX_CONCURRENCY": "3"}) as server:
            assert (await train(server)).json()["output"] == "trained"
            for id in ("t", "next"):
                await server.client.put(f"/trainings/{id}", json={"input": {"naps": 6000}}, headers=ASYNC)
            await server.until_logs("t", "training")
            assert (await server.predict()).json()["output"] == "same loop: True"
            assert await server.cancel("t") == 200
            end = await server.finished("t")
            assert (end["status"], end["logs"]) == ("canceled", "training\ncleaned up\n")
            await server.until_logs("next", "training")
            assert await server.cancel("next") == 200
            assert (await server.finished("next"))["status"] == "canceled"
            assert (await train(server)).json()["output"] == "trained"


@pytest.mark.covers("D18")
async def test_D18_a_train_on_another_event_loop_is_refused_alone(both: Both) -> None:
    """Given an asyncio runner and a trio trainer, when the server starts, then predictions are served, and trainings
    are refused with the reason that the setup logs have."""
    why = "Trainings can't run: in_trio() is marked @cog.trio, so run() must be async def and marked too"
    with trio.fail_after(60):
        async with both("AsyncRunner", "in_trio") as server:
            assert (await server.predict()).json()["output"] == "same loop: True"
            refused = await train(server)
            assert (refused.status_code, refused.json()["error"].startswith(why)) == (404, True)
            assert "trainings_url" not in (await server.client.get("/")).json()
            assert why in (await server.health())["setup"]["logs"]


async def test_files_in_and_out_of_a_training(both: Both, tmp_path: Path) -> None:
    """Given a training that reads a file and returns a model with one, when it runs, then the file's content is in
    the reply."""
    url = "data:text/plain;base64," + base64.b64encode(b"abc").decode()
    out = tmp_path / "out"
    out.mkdir()
    with trio.fail_after(60):
        async with both("Runner", "to_files") as server:
            reply = (await train(server, {"text": url, "folder": str(out)})).json()
    assert reply["status"] == "succeeded", reply["error"]
    assert reply["output"]["note"] == "reversed"
    assert base64.b64decode(reply["output"]["weights"].partition(",")[2]) == b"cba"


@pytest.mark.covers("sdk:59")
@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (None, "cpu NoneType None"),
        ("", "cpu NoneType None"),
        ("https://host.invalid/w.tar", "cpu URLPath https://host.invalid/w.tar"),
        ("weights.txt", "learned"),
    ],
)
async def test_row_59_weights_reach_setup(both: Both, tmp_path: Path, weights: str | None, said: str) -> None:
    """Given setup(device, weights) and COG_WEIGHTS, when the model is set up, then weights gets it, by annotation."""
    (tmp_path / "model" / "weights.txt").write_text("learned")
    env = {} if weights is None else {"COG_WEIGHTS": weights}
    with trio.fail_after(60):
        async with both("Weighted", None, env=env) as server:
            assert (await server.predict()).json()["output"] == said
