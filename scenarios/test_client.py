"""The client against a real server: the same stories for plain code, asyncio and trio."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from cog_trio.client import (
    AsyncClient,
    Client,
    CompletedEvent,
    InputsRefused,
    LogEvent,
    MetricEvent,
    ModelError,
    NotFound,
    OutputEvent,
    RequestRefused,
    RunCanceled,
    RunTimedOut,
    ServerBusy,
    ServerUnreachable,
    StartEvent,
    TokenRefused,
)
from cog_trio.testing import ServeModel, Server
from scenarios.breaking_proxy import BreakingProxy

Story = Callable[[Any], Awaitable[None]]
FACES: Final = ("plain", "asyncio", "trio")


class Plain:
    """``Client`` in the shape of ``AsyncClient``, so that one story is that of both. It blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            return getattr(self._client, name)(*args, **options)

        return call

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        events: Generator[Any, None, None] = self._client.stream(*args, **options)
        try:
            for event in events:
                yield event
        finally:
            events.close()


def _drive(story: Story, url: str, options: dict[str, Any]) -> None:
    """Run a story with the blocking client, whose awaits never suspend."""
    with Client(url, **options) as client:
        try:
            story(Plain(client)).__await__().send(None)
        except StopIteration:
            return
    raise AssertionError("a blocking call was suspended")


async def tell(face: str, story: Story, url: str, **options: Any) -> None:
    """Run a story by one of the faces."""

    async def whole() -> None:
        async with AsyncClient(url, **options) as client:
            await story(client)

    if face == "plain":
        await trio.to_thread.run_sync(_drive, story, url, options)
    elif face == "asyncio":
        await trio.to_thread.run_sync(lambda: asyncio.run(whole()))
    else:
        await whole()


async def _runs(client: Any) -> None:
    await client.wait_ready(30)
    assert await client.run({"words": ["a", "b"]}) == ["a", "b"]
    with pytest.raises(ModelError, match="boom") as failed:
        await client.run({"fail": "boom"}, id="f")
    assert (failed.value.prediction.status, failed.value.prediction.logs[:7]) == ("failed", "begins\n")
    with pytest.raises(InputsRefused) as refused:
        await client.run({"wait": "x", "more": 1})
    assert [name for name, _ in refused.value.faults] == ["wait"]
    begun = time.monotonic()
    with pytest.raises(RunTimedOut, match=r"within 0\.3 s, and was cancelled"):
        await client.run({"wait": 100.0}, id="t", timeout=0.3)
    assert (await client.wait("t", timeout=30)).status == "canceled"
    assert time.monotonic() - begun < 30
    assert (await client.get("t")).status == "canceled"
    with pytest.raises(NotFound):
        await client.get("nobody")


async def _is_left_to_itself(client: Any) -> None:
    created = await client.create({"wait": 100.0}, id="c")
    assert (created.id, created.ended) == ("c", False)
    with pytest.raises(ServerBusy, match="At capacity"):
        await client.create({})
    with pytest.raises(RunTimedOut, match="it goes on"):
        await client.wait("c", timeout=0.2)
    await client.cancel("c")
    assert (await client.wait("c", timeout=30)).status == "canceled"


async def _streams(client: Any) -> None:
    found = [event async for event in client.stream({"words": ["x", "y"]}, id="s")]
    assert isinstance(found[0], StartEvent)
    assert [(event.output, event.index) for event in found if isinstance(event, OutputEvent)] == [("x", 0), ("y", 1)]
    assert "".join(event.data for event in found if isinstance(event, LogEvent)) == "begins\n"
    assert [(event.name, event.value) for event in found if isinstance(event, MetricEvent)] == [("words", 2)]
    assert isinstance(found[-1], CompletedEvent)
    assert (found[-1].prediction.status, found[-1].prediction.output) == ("succeeded", ["x", "y"])
    async with aclosing(client.stream({"words": ["x"], "wait": 100.0}, id="left")) as events:
        async for event in events:
            if isinstance(event, OutputEvent):
                break
    assert (await client.wait("left", timeout=30)).status == "canceled"
    with pytest.raises(RunTimedOut):
        async for _ in client.stream({"wait": 100.0}, timeout=0.3):
            pass


@pytest.mark.parametrize("face", FACES)
async def test_a_client_runs_streams_and_leaves(serve_model: ServeModel, face: str) -> None:
    """Given a server, when a client runs, follows, creates, cancels and times out, then each call says what came, and
    nothing runs on that nobody waits for."""
    with trio.fail_after(120):
        async with serve_model("client.py:Runner", "--stream-grace", "0") as server:
            for story in (_runs, _is_left_to_itself, _streams):
                await tell(face, story, server.url)
            await server.until("READY")


@pytest.mark.parametrize("face", FACES)
async def test_files_go_up_and_down(serve_model: ServeModel, tmp_path: Path, face: str) -> None:
    """Given files as paths, open files and bytes, when they are inputs, then the model has them, and its files come as
    URLs or as files."""
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(range(256)) * 4_000)
    text = tmp_path / "note.txt"
    text.write_text("a note")
    out = tmp_path / "out"
    out.mkdir()

    async def story(client: Any) -> None:
        with text.open("rb") as opened:
            given = {"file": large, "files": [opened, b"raw"]}
            output = await client.run(given)
        assert output["size"] == 1_024_000 + 6 + 3
        assert output["files"][1] == "data:text/plain;base64," + base64.b64encode(b"a note").decode()
        assert await client.read(output["files"][0]) == large.read_bytes()
        assert (await client.save(output["files"][1], out / "again.txt")).read_text() == "a note"
        saved = await client.run({"file": large, "files": [text]}, output_folder=out)
        assert [path.read_bytes() for path in saved["files"]] == [large.read_bytes(), b"a note"]
        assert {path.parent for path in saved["files"]} == {out}
        with pytest.raises(InputsRefused):
            await client.run({})
        with pytest.raises(FileNotFoundError):
            await client.run({"file": tmp_path / "nowhere"})

    with trio.fail_after(60):
        async with serve_model("client.py:Files") as server:
            await tell(face, story, server.url)


@pytest.mark.parametrize("face", FACES)
async def test_token_and_servers_that_are_not_there(serve_model: ServeModel, face: str) -> None:
    """Given a token, when it is missing or wrong, then that is told; a server that is gone is told, too. Nothing of a
    model that does not stream is lost to who follows it."""

    async def stranger(client: Any) -> None:
        with pytest.raises(TokenRefused):
            await client.run({})

    async def guest(client: Any) -> None:
        events = [event async for event in client.stream({"text": "hi"})]
        assert [event.output for event in events if isinstance(event, OutputEvent)] == ["hi"]

    async def nobody(client: Any) -> None:
        for call in (client.run({}), client.get("x"), client.wait_ready(0.5)):
            with pytest.raises((ServerUnreachable, RunTimedOut), match="can't be reached"):
                await call

    with trio.fail_after(60):
        async with serve_model("../bench/model.py", env={"COG_TRIO_AUTH_TOKEN": "secret"}) as server:
            await tell(face, stranger, server.url, token="wrong")
            await tell(face, guest, server.url, token="secret")
            url = server.url
        await tell(face, nobody, url, retries=1)


async def test_a_cancelled_task_ends_the_prediction(serve_model: ServeModel) -> None:
    """Given a run that waits, when the task of asyncio is cancelled, or a scope of trio, then it is cancelled."""

    async def by_asyncio(server: Server) -> None:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.run({"wait": 100.0}, id="a"))
            while (await _status(client, "a")) != "processing":
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.wait("a", timeout=30)).status == "canceled"

    with trio.fail_after(60):
        async with serve_model("client.py:Runner") as server:
            await trio.to_thread.run_sync(lambda: asyncio.run(by_asyncio(server)))
            async with AsyncClient(server.url) as client, trio.open_nursery() as nursery:
                nursery.start_soon(lambda: client.run({"wait": 100.0}, id="b"))
                while (await _status(client, "b")) != "processing":
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            async with AsyncClient(server.url) as client:
                assert (await client.wait("b", timeout=30)).status == "canceled"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_when_it_runs, client, "c")
                    with pytest.raises(RunCanceled) as canceled:
                        await client.run({"wait": 100.0}, id="c")
                assert canceled.value.prediction.logs == "begins\n"


@pytest.mark.parametrize("face", FACES)
async def test_a_broken_stream_is_resumed(serve_model: ServeModel, face: str) -> None:
    """Given a server that waits for clients to come back, when the connection of a stream breaks, then the client has
    every event once, in order."""

    async def story(client: Any) -> None:
        events = [event async for event in client.stream({"count": 20, "delay": 0.02})]
        assert [event.index for event in events if isinstance(event, OutputEvent)] == [*range(20)]
        assert isinstance(events[-1], CompletedEvent)

    with trio.fail_after(60):
        async with serve_model("tokens.py", "--stream-grace", "30") as server, trio.open_nursery() as nursery:
            proxy = BreakingProxy(int(server.url.rpartition(":")[2]), b"event: output")
            port = await nursery.start(proxy.serve)
            await tell(face, story, f"http://127.0.0.1:{port}")
            assert proxy.broken == 1
            nursery.cancel_scope.cancel()


async def _cancel_when_it_runs(client: AsyncClient, id: str) -> None:
    while (await _status(client, id)) != "processing" or not (await client.get(id)).logs:
        await trio.sleep(0.01)
    await client.cancel(id)


async def _status(client: AsyncClient, id: str) -> str:
    try:
        return (await client.get(id)).status
    except RequestRefused:
        return ""


@pytest.mark.parametrize("face", FACES)
async def test_the_list_is_read_page_by_page(serve_model: ServeModel, face: str) -> None:
    """Given more predictions than a page has, when they are listed, then each is there once, newest first."""

    async def story(client: Any) -> None:
        for number in range(120):
            await client.run({"words": [str(number)]}, id=f"n{number}")
        first = await client.list()
        second = await client.list(cursor=first.next)
        assert [one.id for one in (*first.results, *second.results)] == [f"n{number}" for number in range(119, -1, -1)]
        assert second.next is None
        assert (await client.list(cursor=second.previous)).results == first.results
        assert (await client.list(status="failed")).results == ()
        with pytest.raises(InputsRefused):
            await client.list(status="wrong")
        with pytest.raises(ValueError, match="not of this server"):
            await client.list(cursor="http://elsewhere.example/predictions")

    with trio.fail_after(60):
        async with serve_model("client.py:Runner") as server:
            await tell(face, story, server.url)
