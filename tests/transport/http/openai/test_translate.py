"""Requests of OpenAI's API as inputs of models, and predictions as its replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cog_trio.transport.http.openai.translate import (
    CHAT,
    TEXT,
    ApiError,
    Completion,
    Misfit,
    TextModel,
    finish_reason,
    piece,
    read_completion,
    read_document,
    usage,
    usage_piece,
    whole,
)

TEXT_INPUT = {"type": "string"}
PLAIN = TextModel({"prompt": TEXT_INPUT})
RICH = TextModel(
    {
        "prompt": TEXT_INPUT,
        "system_prompt": TEXT_INPUT,
        "max_new_tokens": {"type": "integer"},
        "temperature": {"type": "number"},
        "stop_sequences": {"type": "array"},
        "tools": {"type": "array"},
    }
)
CHATTING = TextModel({"messages": {"type": "array"}})
PIECES = {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"}


def document(output: dict[str, Any], **inputs: dict[str, Any]) -> dict[str, Any]:
    return {"components": {"schemas": {"Output": output, "Input": {"properties": inputs}}}}


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("output", [TEXT_INPUT, PIECES])
def test_models_that_fit(output: dict[str, Any]) -> None:
    assert not read_document(document(output, prompt=TEXT_INPUT)).takes_messages
    assert read_document(document(output, messages={"type": "array"})).takes_messages


@pytest.mark.parametrize(
    ("output", "inputs", "text"),
    [
        ({"type": "integer"}, {"prompt": TEXT_INPUT}, "output is not a text"),
        ({"type": "array", "items": TEXT_INPUT}, {"prompt": TEXT_INPUT}, "output is not a text"),
        ({"type": "string", "format": "uri"}, {"prompt": TEXT_INPUT}, "output is a file"),
        ({**PIECES, "items": {"type": "string", "format": "uri"}}, {"prompt": TEXT_INPUT}, "output is a file"),
        (TEXT_INPUT, {}, "neither an input prompt"),
        (TEXT_INPUT, {"prompt": {"type": "integer"}}, "neither an input prompt"),
    ],
)
def test_models_that_do_not_fit(output: dict[str, Any], inputs: dict[str, Any], text: str) -> None:
    with pytest.raises(Misfit, match=text):
        read_document(document(output, **inputs))


@pytest.mark.parametrize(
    ("model", "messages", "inputs"),
    [
        (PLAIN, [user()], {"prompt": "hi"}),
        (PLAIN, [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], {"prompt": "ab"}),
        (
            PLAIN,
            [{"role": "system", "content": "be short"}, user(), {"role": "assistant", "content": "yes?"}, user("go")],
            {"prompt": "System: be short\n\nUser: hi\n\nAssistant: yes?\n\nUser: go\n\nAssistant:"},
        ),
        (RICH, [{"role": "developer", "content": "be short"}, user()], {"system_prompt": "be short", "prompt": "hi"}),
        (CHATTING, [user()], {"messages": [user()]}),
        (
            CHATTING,
            [{"role": "assistant", "content": None, "tool_calls": [1]}, {**user([]), "name": "Ada"}],
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}, {**user(""), "name": "Ada"}]},
        ),
    ],
)
def test_messages(model: TextModel, messages: list[Any], inputs: dict[str, Any]) -> None:
    assert read_completion(CHAT, {"model": "m", "messages": messages}, model).input == inputs


def test_a_prompt_becomes_what_the_model_takes() -> None:
    assert read_completion(TEXT, {"prompt": ["hi"]}, PLAIN).input == {"prompt": "hi"}
    assert read_completion(TEXT, {"prompt": "hi"}, CHATTING).input == {"messages": [user()]}


def test_parameters_go_to_the_inputs_of_their_names() -> None:
    body = {"messages": [user()], "max_tokens": 5, "temperature": 0.5, "stop": "end", "tools": [{}], "top_p": 1, "n": 1}
    completion = read_completion(CHAT, body, RICH)
    assert completion.input == {
        "prompt": "hi",
        "max_new_tokens": 5,
        "temperature": 0.5,
        "stop_sequences": ["end"],
        "tools": [{}],
    }
    assert (completion.stops, completion.max_tokens, completion.model) == (("end",), 5, "cog-trio")
    assert read_completion(CHAT, {**body, "tools": []}, PLAIN).input == {"prompt": "hi"}


@pytest.mark.parametrize(
    ("kind", "change", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [3]}, "messages[0]"),
        (CHAT, {"messages": [user(3)]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        (CHAT, {"messages": [user(), user([{"type": "image_url", "image_url": {}}])]}, "messages[1].content[0]"),
        (CHAT, {"model": 3}, "model"),
        (CHAT, {"stream": "yes"}, "stream"),
        (CHAT, {"stream_options": 3}, "stream_options"),
        (CHAT, {"stop": [1]}, "stop"),
        (CHAT, {"stop": {}}, None),
        (CHAT, {"stop": ["x"] * 65}, "stop"),
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"tools": [{}]}, "tools"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 1.5}, "max_completion_tokens"),
        (TEXT, {"prompt": ["a", "b"]}, "prompt"),
        (TEXT, {"prompt": [1, 2]}, "prompt"),
        (TEXT, {"prompt": None}, "prompt"),
        (TEXT, {"echo": True}, "echo"),
    ],
)
def test_requests_that_are_refused_name_the_parameter(kind: str, change: dict[str, Any], param: str | None) -> None:
    body = {"messages": [user()], "prompt": "hi", **change}
    if param is None:
        assert read_completion(kind, body, PLAIN).stops == ()
        return
    with pytest.raises(ApiError) as caught:
        read_completion(kind, body, PLAIN)
    error = json.loads(caught.value.body())["error"]
    assert (caught.value.status, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_a_body_that_is_not_an_object() -> None:
    with pytest.raises(ApiError, match="JSON object"):
        read_completion(CHAT, [], PLAIN)


def made(kind: str = CHAT, **more: Any) -> Completion:
    return read_completion(kind, {"model": "m", "messages": [user()], "prompt": "hi", **more}, PLAIN)


@pytest.mark.parametrize(
    ("metrics", "stopped", "reason"),
    [
        ({}, False, "stop"),
        ({"finish_reason": "length"}, False, "length"),
        ({"finish_reason": "odd"}, False, "stop"),
        ({"finish_reason": "length"}, True, "stop"),
        ({"input_token_count": 1, "output_token_count": 5}, False, "length"),
        ({"prompt_tokens": 1, "completion_tokens": 4}, False, "stop"),
    ],
)
def test_finish_reasons(metrics: dict[str, Any], stopped: bool, reason: str) -> None:
    assert finish_reason(made(max_tokens=5), metrics, stopped) == reason


def test_usage_is_what_the_model_has_counted() -> None:
    assert usage({"input_token_count": 2, "output_token_count": 3.0}) == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
    }
    assert usage({"input_token_count": 2}) is None
    assert usage({"input_token_count": "2", "output_token_count": 3}) is None


def test_replies() -> None:
    chat = json.loads(whole(made(), "p", 7, "hello", {"prompt_tokens": 1, "completion_tokens": 1}, False))
    assert (chat["id"], chat["object"], chat["created"], chat["model"]) == ("chatcmpl-p", "chat.completion", 7, "m")
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert chat["usage"]["total_tokens"] == 2
    text = json.loads(whole(made(TEXT), "p", 7, "hello", {}, False))
    assert (text["object"], text["choices"][0]["text"], "usage" in text) == ("text_completion", "hello", False)


def test_pieces_of_a_stream() -> None:
    completion = made(stream=True, stream_options={"include_usage": True})
    assert completion.stream
    events = [
        piece(completion, "p", 7, "a", None, first=True),
        piece(completion, "p", 7, None, "stop", first=False),
        usage_piece(completion, "p", 7, {}),
    ]
    data = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert [each["object"] for each in data] == ["chat.completion.chunk"] * 3
    assert [each["choices"][0]["delta"] for each in data[:2]] == [{"role": "assistant", "content": "a"}, {}]
    assert [each["usage"] for each in data] == [None] * 3
    assert data[2]["choices"] == []
    text = json.loads(piece(made(TEXT), "p", 7, "a", None, first=True).removeprefix(b"data: "))
    assert (text["object"], text["choices"][0]["text"], "usage" in text) == ("text_completion", "a", False)
