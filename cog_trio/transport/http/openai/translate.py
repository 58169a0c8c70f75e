"""Requests of OpenAI's API as inputs of a model, and a prediction as its replies. No I/O, and no service.

A model fits if it has an input ``prompt`` (a text) or ``messages`` (a list of objects), and its output is a text, whole
or in pieces. Parameters go to the inputs of their names. What a model has no input for is ignored where it only tunes
the answer, and refused where the answer would be another one than was asked for: ``NEEDED`` lists those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cog_trio.bridge.protocol import Json
from cog_trio.transport.http.api.bodies import encode

CHAT: Final = "chat.completion"
TEXT: Final = "text_completion"
PREFIXES: Final = {CHAT: "chatcmpl-", TEXT: "cmpl-"}  # of ids

# Other names that models give to a parameter; its own name comes first.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "max_tokens": ("max_new_tokens", "max_completion_tokens"),
    "max_completion_tokens": ("max_tokens", "max_new_tokens"),
    "stop": ("stop_sequences",),
}
# Members of a body that are not parameters of the model.
OURS: Final = frozenset(("messages", "prompt", "model", "stream", "stream_options"))
# Without an input of the model's: the value that changes nothing; any other one is refused.
NEEDED: Final[Mapping[str, tuple[Json, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
}
MAX_STOPS: Final = 64
SERVED: Final = "cog-trio"  # the name of the model in the list
INPUT_TOKENS: Final = ("input_token_count", "prompt_tokens")  # metrics that a model may record
OUTPUT_TOKENS: Final = ("output_token_count", "completion_tokens")
FINISH: Final = "finish_reason"  # a metric as well
FINISHES: Final = ("stop", "length", "tool_calls", "content_filter")
_SPEAKERS: Final = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}


class ApiError(Exception):
    """The request is answered with an error of OpenAI's form.

    Args:
      retry: whether the client may send the request again; OpenAI's clients do so by themselves for some statuses.
    """

    def __init__(
        self, status: int, text: str, *, param: str | None = None, code: str | None = None, retry: bool | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.param = param
        self.code = code
        self.retry = retry

    def body(self) -> bytes:
        """The reply, or the data of an event in a stream that has begun."""
        kind = "invalid_request_error" if self.status < 429 else "server_error"
        return encode({"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}})


class Misfit(Exception):
    """The model is not one that OpenAI's API can speak to; the text says what it lacks."""


@dataclass(frozen=True)
class TextModel:
    """What of a model's document matters here."""

    inputs: Mapping[str, Mapping[str, Json]]  # schemas by their names

    @property
    def takes_messages(self) -> bool:
        return "messages" in self.inputs


@dataclass(frozen=True)
class Completion:
    """A request, translated."""

    kind: str  # CHAT or TEXT
    model: str
    input: dict[str, Json]
    stream: bool
    include_usage: bool
    stops: tuple[str, ...]
    max_tokens: int | None


def read_document(document: Mapping[str, Any]) -> TextModel:
    """Look whether a model fits.

    Raises:
      Misfit: if it doesn't.
    """
    schemas = document.get("components", {}).get("schemas", {})
    output, inputs = schemas.get("Output", {}), schemas.get("Input", {}).get("properties", {})
    pieces = output.get("x-cog-array-type") == "iterator" and output.get("items", {}).get("type") == "string"
    if output.get("type") != "string" and not pieces:
        raise Misfit("its output is not a text (str, or an iterator of str)")
    if output.get("format") is not None or output.get("items", {}).get("format") is not None:
        raise Misfit("its output is a file")
    if inputs.get("messages", {}).get("type") != "array" and inputs.get("prompt", {}).get("type") != "string":
        raise Misfit("it has neither an input prompt: str nor messages: list[dict]")
    return TextModel(inputs)


def read_completion(kind: str, body: Json, model: TextModel) -> Completion:
    """Translate the body of a request.

    A server has one model: any name of it is taken, and said again in the reply.

    Raises:
      ApiError: if it makes no sense, or asks for what the model can't do.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    named = body.get("model", SERVED)
    if not isinstance(named, str):
        raise ApiError(400, "model must be a text", param="model")
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    inputs = _said(kind, body, model)
    for name, value in body.items():
        if name in OURS or value is None:
            continue
        place = next((other for other in (name, *ALIASES.get(name, ())) if other in model.inputs), None)
        if place is not None:
            listed = model.inputs[place].get("type") == "array"
            inputs.setdefault(place, [value] if listed and not isinstance(value, list) else value)
        elif name in NEEDED and value not in NEEDED[name]:
            raise ApiError(400, f"this model has no input for {name}", param=name, code="unsupported_parameter")
    return Completion(
        kind=kind,
        model=named,
        input=inputs,
        stream=stream,
        include_usage=bool((options or {}).get("include_usage")),
        stops=_stops(body.get("stop")),
        max_tokens=_count(body, "max_completion_tokens") or _count(body, "max_tokens"),
    )


def usage(metrics: Mapping[str, Json]) -> dict[str, int] | None:
    """The tokens that a model has counted; None if it has not counted both kinds."""
    counts = [
        next((metrics[name] for name in names if name in metrics), None) for names in (INPUT_TOKENS, OUTPUT_TOKENS)
    ]
    if not all(isinstance(count, (int, float)) for count in counts):
        return None
    taken, made = (int(count) for count in counts)  # type: ignore[arg-type]
    return {"prompt_tokens": taken, "completion_tokens": made, "total_tokens": taken + made}


def finish_reason(completion: Completion, metrics: Mapping[str, Json], stopped: bool) -> str:
    """Why the text ended: a stop text, what the model says, the limit that its count has reached, or by itself."""
    said = metrics.get(FINISH)
    if stopped or said in FINISHES:
        return "stop" if stopped else str(said)
    counted = usage(metrics)
    limit = completion.max_tokens
    return "length" if limit is not None and counted is not None and counted["completion_tokens"] >= limit else "stop"


def whole(
    completion: Completion, id: str, created: int, text: str, metrics: Mapping[str, Json], stopped: bool
) -> bytes:
    """The reply that is not a stream."""
    finish = finish_reason(completion, metrics, stopped)
    choice: dict[str, Json] = {"index": 0, "finish_reason": finish, "logprobs": None}
    if completion.kind == CHAT:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    reply = {**_head(completion, id, created, completion.kind), "choices": [choice]}
    counted = usage(metrics)
    return encode(reply if counted is None else {**reply, "usage": counted})


def piece(completion: Completion, id: str, created: int, text: str | None, finish: str | None, *, first: bool) -> bytes:
    """One piece of a stream; ``text`` None: the end alone."""
    choice: dict[str, Json] = {"index": 0, "finish_reason": finish, "logprobs": None}
    if completion.kind == CHAT:
        delta: dict[str, Json] = {"role": "assistant"} if first else {}
        choice["delta"] = delta if text is None else {**delta, "content": text}
    else:
        choice["text"] = text or ""
    reply = {**_head(completion, id, created, _streamed(completion.kind)), "choices": [choice]}
    return _event(encode({**reply, "usage": None} if completion.include_usage else reply))


def usage_piece(completion: Completion, id: str, created: int, metrics: Mapping[str, Json]) -> bytes:
    """The piece behind the last, for a client that asked for it; its usage is null if the model has counted nothing."""
    head = _head(completion, id, created, _streamed(completion.kind))
    return _event(encode({**head, "choices": [], "usage": usage(metrics)}))


def error_piece(error: ApiError) -> bytes:
    return _event(error.body())


DONE: Final = b"data: [DONE]\n\n"


def model_list(created: int) -> bytes:
    """The list of the only model."""
    return b'{"object":"list","data":[%b]}' % model_entry(created)


def model_entry(created: int) -> bytes:
    return encode({"id": SERVED, "object": "model", "created": created, "owned_by": "cog-trio"})


def _event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def _streamed(kind: str) -> str:
    return "chat.completion.chunk" if kind == CHAT else kind


def _head(completion: Completion, id: str, created: int, form: str) -> dict[str, Json]:
    return {"id": PREFIXES[completion.kind] + id, "object": form, "created": created, "model": completion.model}


def _said(kind: str, body: Mapping[str, Json], model: TextModel) -> dict[str, Json]:
    """The messages or the prompt, as the inputs that the model has for them."""
    if kind == TEXT:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise ApiError(400, "prompt must be one text", param="prompt")
        return {"prompt": prompt} if "prompt" in model.inputs else {"messages": [{"role": "user", "content": prompt}]}
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list that is not empty", param="messages")
    said = [_message(message, number) for number, message in enumerate(messages)]
    if model.takes_messages:
        return {"messages": said}
    inputs: dict[str, Json] = {}
    if "system_prompt" in model.inputs:
        system = [message["content"] for message in said if _SPEAKERS.get(message["role"]) == "System"]
        if system:
            inputs["system_prompt"] = "\n\n".join(system)
            said = [message for message in said if _SPEAKERS.get(message["role"]) != "System"]
    inputs["prompt"] = _prompt(said)
    return inputs


def _message(message: Json, number: int) -> dict[str, Any]:
    """A message whose content is a text; its other members stay."""
    place = f"messages[{number}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(400, f"{place} must be an object with a role", param=place)
    if message["role"] not in _SPEAKERS:
        raise ApiError(400, f"{place}.role must be one of {', '.join(_SPEAKERS)}", param=f"{place}.role")
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        content = ""  # it has called a tool
    if isinstance(content, list):
        content = "".join(_parts(content, place))
    if not isinstance(content, str):
        raise ApiError(400, f"{place}.content must be a text or a list of parts", param=f"{place}.content")
    return {**message, "content": content}


def _parts(parts: Sequence[Json], place: str) -> Iterable[str]:
    for number, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ApiError(
                400, f"{place}.content[{number}] must be a part of the type text", param=f"{place}.content[{number}]"
            )
        yield text


def _prompt(said: Sequence[Mapping[str, Any]]) -> str:
    """A conversation as one text. A single message of the user's is the prompt as it stands."""
    if len(said) == 1 and said[0]["role"] == "user":
        return str(said[0]["content"])
    lines = [f"{_SPEAKERS[message['role']]}: {message['content']}" for message in said]
    return "\n\n".join([*lines, "Assistant:"])


def _flag(body: Mapping[str, Json], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", param=name)
    return bool(value)


def _count(body: Mapping[str, Json], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ApiError(400, f"{name} must be a whole number, 1 or more", param=name)
    return value


def _stops(stop: Json) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(text, str) for text in stops):
        raise ApiError(400, f"stop must be a text or a list of at most {MAX_STOPS} texts", param="stop")
    return tuple(stops)
