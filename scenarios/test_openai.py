"""OpenAI's API, spoken by OpenAI's own clients and by an agent library that uses one."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import trio

from cog_trio.testing import ServeModel
from cog_trio.testing.server_process import Server

HELLO = [{"role": "user", "content": "hello there"}]


def library() -> Any:
    """OpenAI's package. Its import takes seconds, which the collection of all tests need not wait for."""
    return import_module("openai")


def client_of(server: Server, **more: Any) -> Any:
    return library().OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0, timeout=30, **more)


def ask(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "any", "messages": HELLO, **more})


def speak(server: Server) -> None:
    """Everything that the plain client does."""
    client = client_of(server)
    assert [model.id for model in client.models.list()] == ["cog-trio"]
    assert client.models.retrieve("cog-trio").owned_by == "cog-trio"

    whole = ask(client, max_tokens=3, temperature=0.5, stop="never")
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (" word0 word1 word2", "length")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.model) == (2, 3, "any")
    assert whole.id.startswith("chatcmpl-")

    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, max_tokens=4, stop=["ord2"]))
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == " word0 word1 w"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == 2

    text = client.completions.create(model="any", prompt="hello", max_tokens=6, stop=" word1")
    assert (text.choices[0].text, text.choices[0].finish_reason) == (" word0", "stop")
    pieces = client.completions.create(model="any", prompt="hello", max_tokens=2, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == " word0 word1"


def refuse(server: Server) -> None:
    """Everything that is refused, and how."""
    openai = library()
    client = client_of(server)
    for more, param in (
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": "hot"}}, "temperature"),
        ({"messages": []}, "messages"),
    ):
        with pytest.raises(openai.BadRequestError) as bad:
            ask(client, **more)
        assert bad.value.param == param
    with pytest.raises(openai.InternalServerError, match="no words left") as failed:
        ask(client_of(server).with_options(max_retries=2), extra_body={"fail": True})
    assert failed.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.APIError, match="no words left"):
        list(ask(client, stream=True, extra_body={"fail": True}))


def leave(server: Server) -> None:
    """A stream that is left in the middle; while it runs, there is no slot for another."""
    with ask(client_of(server), stream=True, max_tokens=1000, extra_body={"seconds": 0.05}) as stream:
        assert next(iter(stream)).choices[0].delta.content
        with pytest.raises(library().RateLimitError) as busy:
            ask(client_of(server))
        assert busy.value.response.headers["retry-after"] == "1"


async def newest(server: Server) -> dict[str, Any]:
    listed: list[dict[str, Any]] = json.loads((await server.client.get("/predictions")).text)["results"]
    return listed[0]


async def test_the_clients_of_openai(serve_model: ServeModel) -> None:
    """Given a text model of one slot, when OpenAI's client asks for completions, whole and in pieces, then it gets the
    text up to a stop text, the usage and the reason of the end; errors name the parameter; a failed prediction is not
    asked for again; a client that leaves cancels, and a stop text ends the prediction."""
    with trio.fail_after(100):
        async with serve_model("writes.py", "--openai") as server:
            await trio.to_thread.run_sync(speak, server)
            await trio.to_thread.run_sync(refuse, server)
            await trio.to_thread.run_sync(leave, server)
            while (await newest(server))["status"] not in ("canceled", "succeeded", "failed"):
                await trio.sleep(0.02)
            assert (await newest(server))["status"] == "canceled"
            assert (await server.client.get("/v1/models")).status_code == 200
        async with serve_model("writes.py") as server:
            assert (await server.client.get("/v1/models")).status_code == 404  # it was not asked for


def converse(server: Server) -> None:
    """The asyncio client, and an agent on it."""

    openai, agents = library(), import_module("agents")

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret", timeout=30) as client:
            create: Any = client.chat.completions.create
            messages = [{"role": "system", "content": "be short"}, *HELLO]
            replies = await asyncio.gather(*(create(model="any", messages=messages) for _ in range(2)))
            for reply in replies:
                assert reply.choices[0].message.content == "system said be short. user said hello there. 0 tools"
            pieces = [chunk async for chunk in await create(model="any", messages=HELLO, stream=True)]
            assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "user said hello there. 0 tools"
            agents.set_tracing_disabled(disabled=True)
            agent = agents.Agent(
                name="echo",
                instructions="repeat",
                model=agents.OpenAIChatCompletionsModel(model="any", openai_client=client),
            )
            result = await agents.Runner.run(agent, "who is there?")
            assert result.final_output == "system said repeat. user said who is there?. 0 tools"

    asyncio.run(main())


async def test_messages_tools_and_an_agent(serve_model: ServeModel) -> None:
    """Given an async model that takes messages, below a root path and behind a token, when the asyncio client and an
    agent library ask it, then it sees the messages as they are."""
    with trio.fail_after(100):
        async with serve_model("writes.py:Chat", "--openai", "--auth-token", "secret") as server:
            await trio.to_thread.run_sync(converse, server)
            openai = await trio.to_thread.run_sync(library)
            bare = partial(openai.OpenAI, base_url=f"{server.url}/v1", max_retries=0)
            with pytest.raises(openai.AuthenticationError):
                await trio.to_thread.run_sync(lambda: bare(api_key="wrong").models.list())


async def test_models_that_write_no_text(serve_model: ServeModel) -> None:
    """Given a model whose output is one text, and one whose output is a number, when they are asked, then the first
    answers and the second says why it can't."""
    with trio.fail_after(100):
        async with serve_model("writes.py:Whole", "--openai", "--root-path", "/below") as server:
            for path in ("/v1/chat/completions", "/below/v1/chat/completions"):
                reply = await server.client.post(path, json={"messages": HELLO, "model": "any"})
                assert reply.json()["choices"][0]["message"]["content"] == "<hello there>"
            for body, status in ((b"{", 400), (b"[]", 400), (b"x" * 2**20, 400)):
                headers = {"content-type": "application/json"}
                reply = await server.client.post("/v1/completions", content=body, headers=headers)
                assert (reply.status_code, reply.json()["error"]["type"]) == (status, "invalid_request_error")
        async with serve_model("writes.py:Number", "--openai") as server:
            reply = await server.client.post("/v1/completions", json={"prompt": "x"})
            assert reply.status_code == 501
            assert "its output is not a text" in reply.json()["error"]["message"]
