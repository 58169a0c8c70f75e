"""Models as people have written them for Cog, over the years, on a real server."""

from __future__ import annotations

import base64

import pytest
import trio

from cog_trio.testing import ServeModel


def _data(text: str) -> str:
    return f"data:text/plain;base64,{base64.b64encode(text.encode()).decode()}"


async def test_pydantic_output_class_with_files(serve_model: ServeModel) -> None:
    """Given a Predictor whose output is a pydantic class with cog.Path fields, when it predicts, then files are data
    URLs, a secret is masked, and the document has the class inlined."""
    with trio.fail_after(60):
        async with serve_model("style_pydantic.py") as server:
            reply = (await server.predict({"text": "hi"})).json()
            schemas = (await server.client.get("/openapi.json")).json()["components"]["schemas"]
            logs = (await server.health())["setup"]["logs"]
    assert reply["output"] == {
        "image": _data("hi"),
        "scores": [{"name": "a", "value": 0.5}],
        "mask": None,
        "token": "**********",
    }
    assert schemas["Output"]["required"] == ["image", "scores"]
    assert schemas["Output"]["properties"]["image"] == {"title": "Image", "type": "string", "format": "uri"}
    assert schemas["Output"]["properties"]["mask"]["nullable"] is True
    assert "DeprecationWarning" in logs


@pytest.mark.covers("sdk:W4")
async def test_W4_annotations_as_text_and_a_type_that_is_not_there(serve_model: ServeModel) -> None:
    """Given postponed annotations, one of a type that can't be imported, when it predicts, then the opaque input
    passes and the file input is still a file."""
    talk = {"turns": [{"who": "me", "n": 10**20}]}
    with trio.fail_after(60):
        async with serve_model("style_future.py") as server:
            reply = (await server.predict({"talk": talk, "picture": _data("boat")})).json()
            short = (await server.predict({"talk": {}, "picture": None})).json()
            wrong = await server.predict({"talk": []})
    assert reply["output"] == {"talk": talk, "picture": ["Path", "boat"], "count": 2}
    assert short["output"] == {"talk": {}, "picture": None, "count": 2}
    assert wrong.status_code == 422


@pytest.mark.covers("sdk:W1", "sdk:W2")
async def test_W1_W2_inherited_run_under_wraps(serve_model: ServeModel) -> None:
    """Given a run that is inherited from another file and wrapped, when it is called without inputs twice, then it
    gets its defaults, each time fresh ones."""
    with trio.fail_after(60):
        async with serve_model("style_wrapped.py") as server:
            first = (await server.predict()).json()
            second = (await server.predict({"prompt": "x"})).json()
            wrong = await server.predict({"prompt": ""})
    assert first["output"] == {"calls": 1, "tags": ["a", "sea"], "name": "child"}
    assert second["output"] == {"calls": 2, "tags": ["a", "x"], "name": "child"}
    assert wrong.status_code == 422


async def test_types_that_say_what_may_come(serve_model: ServeModel) -> None:
    """Given Enum, Literal, TypedDict, unions and secrets, when inputs come, then run sees the annotated types, and
    wrong ones are told all at once, in the order of the signature, without a secret."""
    with trio.fail_after(60):
        async with serve_model("style_types.py") as server:
            least = (await server.predict({"messages": [{"role": "me", "more": 1}]})).json()
            most = (
                await server.predict(
                    {
                        "messages": [],
                        "color": "blue",
                        "sizes": [2, 1.0],
                        "mode": "slow",
                        "either": 1,
                        "keys": ["k-1", "k-2"],
                        "seed": 3.0,
                        "scale": 2,
                    }
                )
            ).json()
            wrong = await server.predict(
                {"scale": -1, "seed": "1", "keys": ["k-3", 77], "sizes": [1, 3], "color": "pink", "mode": "", "zz": 1}
            )
    assert least["output"]["types"] == {
        "messages": "list",
        "color": "Color",
        "sizes": "list",
        "mode": "str",
        "either": "NoneType",
        "keys": "list",
        "seed": "NoneType",
        "scale": "float",
    }
    assert least["output"]["values"]["messages"] == [{"role": "me", "more": 1}]
    assert least["output"]["values"]["sizes"] == [1]
    assert most["output"]["types"]["seed"] == "int"
    assert most["output"]["types"]["either"] == "int"
    assert most["output"]["values"]["keys"] == ["**********", "**********"]
    assert most["output"]["values"]["sizes"] == [2, 1]
    assert most["output"]["color"] == "blue"
    assert "k-1" not in str(most)
    assert wrong.status_code == 422
    places = [fault["loc"][2:] for fault in wrong.json()["detail"]]
    assert places == [["messages"], ["color"], ["sizes/1"], ["mode"], ["keys/1"], ["seed"], ["scale"]]
    assert all(set(fault) == {"loc", "msg", "type"} for fault in wrong.json()["detail"])
    assert "k-3" not in wrong.text
    assert "77" not in wrong.text


@pytest.mark.covers("sdk:W23", "sdk:W24")
async def test_W23_W24_scope_under_its_older_name(serve_model: ServeModel) -> None:
    """Given a model that imports cog.server.scope, when it records metrics, then they add up as documented."""
    with trio.fail_after(60):
        async with serve_model("style_scope.py") as server:
            reply = (await server.predict({"n": 3}, context={"user": "u"})).json()
    assert reply["status"] == "succeeded", reply
    assert reply["output"] == {
        "context": {"user": "u"},
        "refused": ["ValueError", "ValueError", "ValueError", "TypeError"],
    }
    metrics = {name: value for name, value in reply["metrics"].items() if not name.endswith("_time")}
    assert metrics == {"tokens": {"in": 3}, "count": 2.5, "steps": ["a", 2]}


async def test_bad_signatures_are_told_a_line_each(serve_model: ServeModel) -> None:
    """Given ten parameters that can't be inputs, when the server starts, then SETUP_FAILED names each of them, and
    what to write instead, in the logs of setup and in the refusal of a prediction."""
    with trio.fail_after(60):
        async with serve_model("bad_signature.py", status="SETUP_FAILED") as server:
            logs = (await server.health())["setup"]["logs"]
            refused = await server.predict({})
    names = ["raw", "plain", "thing", "mixed", "nested", "lost", "word", "few", "either", "what"]
    for text in (logs, refused.json()["error"]):
        assert [name for name in names if f"'{name}'" not in text] == []
        assert "'good'" not in text
        for words in (
            "write for example plain: str",
            "supported: str, int",
            "Opaque",
            "accept is only valid on",
            "tuple",
        ):
            assert words in text
    assert refused.status_code == 503
    *faults, _ = logs.splitlines()  # the last line is the cause as health tells it
    assert [sum(f"'{name}'" in line for line in faults) for name in names] == [1] * len(names)
