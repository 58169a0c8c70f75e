"""The complete document of a server: docs/reference/openapi.yaml with the schemas of the model that it serves.

``complete`` is what a client generator needs. ``pointed`` is the same for a fuzzer, which draws texts at random and so
would hardly ever find ``text/event-stream``, nor the same id twice: where a text has a meaning, those that have it are
drawn too. It is of a server that asks for a token. What would lead out of the machine is taken away: files are data
URLs, and webhooks go where nobody listens.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import yaml

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "reference" / "openapi.yaml"
OF_THE_MODEL: Final = ("Input", "Output", "TrainingInput", "TrainingOutput")
REQUESTS: Final = {"Prediction": ("PredictionRequest", "Input"), "Training": ("TrainingRequest", "TrainingInput")}

NOWHERE: Final = "http://127.0.0.1:9/"  # the port of discard, which no machine serves any more
FILES: Final = ["data:text/plain,hello", "data:;base64,aGk="]
IDS: Final = ["a", "b", "ws", "../../x", "a/cancel", "%41", "é", ".."]
ID: Final = r"^([ -~]{1,256}|[^\x00-\x1f\x7f-\x9f]{1,64})$"  # the limit is one of bytes, which no schema can say
TELLING: Final = {
    "Prefer": ["respond-async", "respond-async, wait=5", "RESPOND-ASYNC;foo", "wait=1"],
    "Wait": ["wait=0", "wait=1", 'wait="1"', "respond-async, wait=01"],
    "Accept": ["text/event-stream", "text/event-stream;q=0.5, */*", "application/json", "text/html"],
    "LastEventId": ["1-1", "0-0", "1"],
}


def read() -> dict[str, Any]:
    """The document as it is shipped."""
    document = yaml.safe_load(PAGE.read_text())
    assert isinstance(document, dict)
    return document


def complete(model: dict[str, Any]) -> dict[str, Any]:
    """The shipped document with the inputs and outputs of a model; ``model`` is what its ``/openapi.json`` says."""
    document = read()
    components = document["components"]
    ours, theirs = components["schemas"], model["components"]["schemas"]
    schemas = {**theirs, **ours, **{name: theirs[name] for name in OF_THE_MODEL if name in theirs}}
    components["schemas"] = schemas
    for body, (request, inputs) in REQUESTS.items():
        if schemas[inputs].get("required"):  # then a body without an input will not do, nor will none
            schemas[request]["properties"]["input"] = {"$ref": f"#/components/schemas/{inputs}"}
            schemas[request]["required"] = ["input"]
            components["requestBodies"][body]["required"] = True
    return document


def pointed(document: dict[str, Any]) -> dict[str, Any]:
    """A complete document that leads a fuzzer to what texts mean."""
    document = copy.deepcopy(document)
    parameters, schemas = document["components"]["parameters"], document["components"]["schemas"]
    for name, texts in TELLING.items():
        parameters[name]["schema"] = {"anyOf": [{"type": "string", "enum": texts}, parameters[name]["schema"]]}
    schemas["Id"] = {"anyOf": [{"type": "string", "enum": IDS}, {"type": "string", "pattern": ID}]}
    schemas["Webhook"] = {"type": "string", "nullable": True, "enum": [NOWHERE, None]}
    for input in schemas["Input"]["properties"].values():
        if input.get("format") == "uri":
            input["enum"] = [*FILES, None] if input.get("nullable") else FILES
    document["security"] = [{"token": []}]  # a server with a token
    del document["paths"]["/predictions/ws"]  # without an upgrade it is the id ws, which is one of IDS
    return document
