"""The examples of the documentation, served as the README says."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
import trio
from PIL import Image, ImageChops, ImageFilter

from cog_trio.testing import ServeModel
from scenarios.places import EXAMPLES


async def test_hello(serve_model: ServeModel) -> None:
    """Given the hello example, when a name is sent, then it is greeted."""
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "hello") as server:
            assert (await server.predict({"name": "you"})).json()["output"] == "hello you"
            assert (await server.predict()).json()["output"] == "hello world"


@pytest.mark.parametrize(("name", "kind"), [("boat.png", "png"), ("boat.jpg", "jpeg")])
async def test_image_comes_back_blurred(serve_model: ServeModel, name: str, kind: str) -> None:
    """Given the image example and the picture beside it, when it is sent as a data URL, then it comes back as the
    same kind of file, blurred."""
    data = (EXAMPLES / "image" / name).read_bytes()
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "image") as server:
            reply = (await server.predict({"image": url, "radius": 2})).json()
    assert reply["status"] == "succeeded", reply["error"]
    head, _, body = reply["output"].partition(",")
    assert head == f"data:image/{kind};base64"
    blurred = Image.open(io.BytesIO(base64.b64decode(body)))
    wanted = Image.open(io.BytesIO(data)).filter(ImageFilter.GaussianBlur(2))
    assert blurred.size == wanted.size
    difference = ImageChops.difference(blurred.convert("L"), wanted.convert("L"))
    assert max(difference.tobytes()) <= (0 if kind == "png" else 24)  # JPEG is encoded once more


async def test_text_yields_tokens(serve_model: ServeModel) -> None:
    """Given the text example, when it is asked twice with one seed, then the same list of tokens comes."""
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "text") as server:
            outputs = [(await server.predict({"tokens": 12, "seed": 3})).json()["output"] for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 12


async def test_concurrent_runs_four_at_once(serve_model: ServeModel) -> None:
    """Given the concurrent example, when four predictions of 2 s come together, then they run side by side."""
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "concurrent") as server:
            for number in range(4):
                await server.start(f"p{number}", {"name": str(number), "seconds": 2})
            assert (await server.health())["status"] == "BUSY"
            ends = [await server.finished(f"p{number}") for number in range(4)]
    assert [seen["output"] for seen in ends] == [f"hello {number}" for number in range(4)]
    assert "4 at once" in "".join(seen["logs"] for seen in ends)


async def test_pipeline_answers_in_batches(serve_model: ServeModel) -> None:
    """Given the pipeline example, when a text is sent, then each of its words is answered, all in one batch."""
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "pipeline") as server:
            reply = (await server.predict({"text": "a small boat"})).json()
    assert reply["status"] == "succeeded", reply["error"]
    assert sorted(reply["output"]) == [f"{word} (one of 3)" for word in ("A", "BOAT", "SMALL")]
    assert sorted(reply["logs"].splitlines()) == [f"asking for {word}" for word in ("a", "boat", "small")]


async def test_train_learns_and_runs_on_its_weights(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given the train example, when it is trained on a text and served again with the weights, then it says what it
    has learned."""
    url = f"data:text/plain;base64,{base64.b64encode(b'the cat sat').decode()}"
    weights = tmp_path / "weights.json"
    with trio.fail_after(60):
        async with serve_model(EXAMPLES / "train") as server:
            assert (await server.predict()).json()["output"] == "hello world"
            body = {"input": {"text": url, "epochs": 2}}
            reply = (await server.client.post("/trainings", json=body)).json()
        assert reply["status"] == "succeeded", reply["error"]
        assert reply["output"]["words"] == 3
        assert reply["metrics"]["epochs"] == 2
        assert reply["logs"] == "epoch 1 of 2\nepoch 2 of 2\n"
        weights.write_bytes(base64.b64decode(reply["output"]["weights"].partition(",")[2]))
        async with serve_model(EXAMPLES / "train", env={"COG_WEIGHTS": str(weights)}) as server:
            assert (await server.predict({"word": "the"})).json()["output"] == "the cat sat"
