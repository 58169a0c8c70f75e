"""One prediction after the other: results, state that stays, state that must not leak, back to back and at capacity."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest
import trio

from cog_trio.testing import ServeModel


async def test_state_on_self_stays_and_nothing_else_does(serve_model: ServeModel) -> None:
    """Given a model that counts on self, when three predictions run, the second failing,
    then setup ran once, the count goes on, and no log, metric or default of one shows up in another."""
    with trio.fail_after(60):
        async with serve_model("state.py") as server:
            first = (await server.predict({"name": "one"})).json()
            failed = (await server.predict({"name": "two", "fail": True})).json()
            third = (await server.predict({"name": "three"})).json()
    assert first["output"] == {"setups": 1, "runs": 1, "items": ["one"]}
    assert failed["status"] == "failed"
    assert failed["error"] == "ValueError: two fails"
    assert "run of two" in failed["logs"]
    assert "Traceback" in failed["logs"]
    assert third["output"] == {"setups": 1, "runs": 3, "items": ["three"]}
    assert third["logs"] == "run of three\n"
    assert [reply["metrics"]["name"] for reply in (first, failed, third)] == ["one", "two", "three"]


@pytest.mark.parametrize("descriptor", [1, 2])
async def test_c_code_that_holds_the_interpreter_may_write_more_than_a_pipe_holds(
    serve_model: ServeModel, descriptor: int
) -> None:
    """Given a call into C that keeps the interpreter, when it writes 5 MB to stdout or stderr, then the run succeeds,
    its logs hold all of it, and the next prediction is served."""
    with trio.fail_after(60):
        async with serve_model("holds_pipe.py") as server:
            reply = (await server.predict({"descriptor": descriptor})).json()
            assert (await server.predict({"lines": 1})).json()["logs"] == "before\na line of C code\nafter\n"
    assert (reply["status"], reply["output"]) == ("succeeded", "done")
    assert reply["logs"].startswith("before\n")
    assert reply["logs"].endswith("\nafter\n")
    assert reply["logs"].count("a line of C code\n") == 300_000


@pytest.mark.covers("http:W1")
async def test_W1_500_back_to_back_on_one_connection_are_500_times_200(serve_model: ServeModel) -> None:
    """Given one slot, when 500 predictions follow each other on one connection, then each gets 200."""
    with trio.fail_after(60):
        async with serve_model("echo.py") as server:
            seen = Counter([(await server.predict({"text": str(n)})).status_code for n in range(500)])
            assert (await server.health())["status"] == "READY"
    assert seen == {200: 500}


async def test_20_parallel_on_one_slot_are_one_200_and_19_times_409(serve_model: ServeModel) -> None:
    """Given a prediction that holds the only slot, when 19 more come while it runs, then they get 409 and it 200."""
    replies: list[httpx.Response] = []
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server, trio.open_nursery() as nursery:

            async def ask() -> None:
                replies.append(await server.predict({"seconds": 2.0}))

            for _ in range(20):
                nursery.start_soon(ask)
    assert Counter(reply.status_code for reply in replies) == {200: 1, 409: 19}
    for reply in replies:
        if reply.status_code == 409:
            assert reply.json() == {"error": "At capacity - all prediction slots busy", "status": "failed"}


async def test_logs_hold_every_way_of_writing_and_stay_with_their_run(serve_model: ServeModel) -> None:
    """Given a model that prints, writes to descriptors, has a child and a thread that write, when it runs twice,
    then each run has all of its own text and none of the other's."""
    with trio.fail_after(60):
        async with serve_model("noisy.py") as server:
            for name in ("one", "two"):
                logs = (await server.predict({"name": name})).json()["logs"]
                assert sorted(logs.split("\n")) == sorted(
                    [f"{name} {way}" for way in ("print", "error", "descriptor", "child", "thread", "unfinished")]
                    + ([""] if logs.endswith("\n") else [])
                )


@pytest.mark.covers("http:W3")
async def test_W3_a_second_post_with_a_running_id_is_refused_and_the_first_is_untouched(
    serve_model: ServeModel,
) -> None:
    """Given two slots and a running prediction, when a POST names its id, then 409, and the first one goes on."""
    with trio.fail_after(60):
        async with serve_model("waits.py") as server:
            await server.start("same", {"name": "first", "seconds": 1})
            await server.until_logs("same", "first started")
            reply = await server.predict({"name": "second"}, id="same")
            assert reply.status_code == 409
            assert reply.json()["id"] == "same"
            seen = await server.finished("same")
    assert seen["status"] == "succeeded"
    assert seen["output"] == ["first ends, at most 1 at once"]


@pytest.mark.covers("http:W3")
async def test_W3_two_puts_of_one_id_at_once_are_one_run(serve_model: ServeModel) -> None:
    """Given three slots, when two clients put one new id at the same moment, 25 times, then both get the same run."""
    with trio.fail_after(60):
        async with serve_model("waits.py") as server:
            for number in range(25):
                replies: list[httpx.Response] = []

                async def put(id: str, name: str, replies: list[httpx.Response] = replies) -> None:
                    input = {"name": name, "seconds": 0.05}
                    replies.append(await server.client.put(f"/predictions/{id}", json={"input": input}))

                async with trio.open_nursery() as nursery:
                    for name in ("one", "other"):
                        nursery.start_soon(put, f"p{number}", name)
                assert [reply.status_code for reply in replies] == [200, 200]
                assert replies[0].content == replies[1].content
                assert replies[0].json()["logs"].count("started") == 1


@pytest.mark.covers("D2")
async def test_a_put_of_a_running_id_joins_it(serve_model: ServeModel) -> None:
    """Given a running async prediction, when a sync PUT names its id, then it waits and gets the same result."""
    with trio.fail_after(60):
        async with serve_model("fragile.py") as server:
            await server.start("joined", {"seconds": 1})
            reply = await server.client.put("/predictions/joined", json={"input": {"how": "raise"}})
    assert reply.status_code == 200
    assert reply.json()["output"] == "return"
