"""Large values and pictures: beyond what fits in one frame of 8 MiB, in both directions."""

from __future__ import annotations

import base64
import io
import random

import trio
from PIL import Image

from cog_trio.testing import ServeModel

MIB = 2**20


async def test_large_input_and_output(serve_model: ServeModel) -> None:
    """Given a text over 6 and over 8 MiB, when it is sent through a model, then it comes back unchanged, the next
    prediction is not disturbed, and no spill file stays."""
    with trio.fail_after(60):
        async with serve_model("echo.py") as server:
            for size in (5 * MIB, 7 * MIB, 9 * MIB, 40 * MIB):
                text = "0123456789abcdef" * (size // 16 - 1) + "é" * 8
                reply = await server.predict({"text": text})
                assert reply.status_code == 200
                assert reply.json()["output"] == text
                assert (await server.predict({"text": "small"})).json()["output"] == "small"


async def test_large_output_from_small_input(serve_model: ServeModel) -> None:
    """Given a model that makes 20 MiB out of a few bytes, when it runs, then all of it arrives."""
    with trio.fail_after(60):
        async with serve_model("echo.py") as server:
            reply = await server.predict({"text": "0123456789", "times": 2 * MIB})
    assert reply.json()["output"] == "0123456789" * (2 * MIB)


async def test_large_yields_stay_in_order(serve_model: ServeModel) -> None:
    """Given a generator whose items are small and large in turn, when it runs, then the output has its order."""
    with trio.fail_after(60):
        async with serve_model("large.py") as server:
            output = (await server.predict({"mebibytes": 7, "times": 4})).json()["output"]
    assert [(item[0], len(item)) for item in output] == [(str(number), 7 * MIB) for number in range(4)]


async def test_body_over_the_limit_is_413_and_the_server_goes_on(serve_model: ServeModel) -> None:
    """Given --body-limit 1MiB, when a larger body comes, then 413 as JSON, and the next request is served."""
    with trio.fail_after(60):
        async with serve_model("echo.py", "--body-limit", "1MiB") as server:
            reply = await server.predict({"text": "x" * (2 * MIB)})
            assert reply.status_code == 413
            assert "detail" in reply.json()
            assert (await server.predict({"text": "small"})).json()["output"] == "small"


async def test_picture_over_8_mib_goes_both_ways(serve_model: ServeModel) -> None:
    """Given a PNG of 10 MiB as a data URL, when the model turns it over, then a PNG of that size comes back and
    its pixels are the turned ones."""
    picture = Image.frombytes("RGB", (1920, 1820), random.Random(7).randbytes(1920 * 1820 * 3))
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=0)
    assert file.tell() > 8 * MIB
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    with trio.fail_after(60):
        async with serve_model("picture.py") as server:
            reply = (await server.predict({"image": url})).json()
    assert reply["status"] == "succeeded", reply["error"]
    kind, _, data = reply["output"].partition(",")
    assert kind == "data:image/png;base64"
    turned = Image.open(io.BytesIO(base64.b64decode(data)))
    assert turned.tobytes() == picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM).tobytes()
    assert "PNG 1920x1820" in reply["logs"]
