"""The OpenAPI document of a model, equal to what Cog's build makes of its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ._input_types import Fragment
from ._outputs import title
from ._parameters import Parameter, Parameters
from ._version import __version__

REF: Final = "#/components/schemas/"


@dataclass(frozen=True)
class SchemaMode:
    """Everything in which the two halves of a document differ."""

    input: str
    output: str
    request: str
    response: str
    path: str
    id: str
    verb: str
    noun: str


PREDICT: Final = SchemaMode(
    "Input",
    "Output",
    "PredictionRequest",
    "PredictionResponse",
    "/predictions",
    "prediction_id",
    "predict",
    "prediction",
)
TRAIN: Final = SchemaMode(
    "TrainingInput",
    "TrainingOutput",
    "TrainingRequest",
    "TrainingResponse",
    "/trainings",
    "training_id",
    "train",
    "training",
)
FIXED: Final = ("Status", "HTTPValidationError", "ValidationError")


@dataclass(frozen=True)
class Signature:
    """A callable, described: its inputs, the form of its output, and whether it streams to clients."""

    inputs: Parameters
    output: Fragment = field(default_factory=dict)
    streaming: bool = False


def document(predict: Signature | None, train: Signature | None = None) -> dict[str, Any]:
    """The document for one callable, or for both."""
    modes = [(mode, signature) for mode, signature in ((PREDICT, predict), (TRAIN, train)) if signature is not None]
    taken = {name for mode, _ in modes for name in (mode.input, mode.output, mode.request, mode.response)}
    schemas: dict[str, Any] = dict.fromkeys((*taken, *FIXED))
    paths: dict[str, Any] = {
        "/": {"get": _get("root__get", "Root")},
        "/health-check": {"get": _get("healthcheck_health_check_get", "Healthcheck")},
    }
    for mode, signature in modes:
        schemas[mode.input] = _input(mode, signature.inputs, schemas)
        schemas[mode.output] = {**signature.output, "title": mode.output}
        schemas[mode.request] = _request(mode)
        schemas[mode.response] = _response(mode)
        paths[mode.path] = {"post": _run(mode, signature.streaming and mode is PREDICT)}
        paths[f"{mode.path}/{{{mode.id}}}/cancel"] = {"post": _cancel(mode)}
    schemas.update(_fixed())
    return {
        "openapi": "3.0.2",
        "info": {"title": "Cog", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _input(mode: SchemaMode, inputs: Parameters, schemas: dict[str, Any]) -> dict[str, Any]:
    """The input component; puts the components of its choices into ``schemas``."""
    properties = {
        parameter.name: _property(mode, order, parameter, schemas) for order, parameter in enumerate(inputs.parameters)
    }
    component: dict[str, Any] = {"title": mode.input, "type": "object", "properties": properties}
    if required := [parameter.name for parameter in inputs.parameters if parameter.listed]:
        component["required"] = required
    if inputs.extra:
        component["additionalProperties"] = True
    return component


def _property(mode: SchemaMode, order: int, parameter: Parameter, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"x-order": order, **parameter.fragment}
    if parameter.choices is None:
        return {**found, "title": title(parameter.name)}
    reference = {"allOf": [{"$ref": REF + _enumeration(mode, parameter, schemas)}]}
    if parameter.many:
        return {**found, "items": {**found["items"], **reference}, "title": title(parameter.name)}
    return {**found, **reference}


def _enumeration(mode: SchemaMode, parameter: Parameter, schemas: dict[str, Any]) -> str:
    """The name of the component of a parameter's choices. A name that means something else is never taken."""
    component: dict[str, Any] = {
        "title": parameter.name,
        "description": "An enumeration.",
        "enum": list(parameter.choices or ()),
    }
    if parameter.choice_type is not None:
        component["type"] = parameter.choice_type
    name = parameter.name
    while name in schemas and not _equal(schemas[name], component):
        name = f"{mode.input}_{name}"
    schemas[name] = component
    return name


def _equal(left: Any, right: Any) -> bool:
    """Equal as JSON: unlike in Python, true is not 1."""
    return bool(left == right) and repr(left) == repr(right)


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": REF + name}


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _success(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": _content(schema), "description": "Successful Response"}


def _invalid() -> dict[str, Any]:
    return {"content": _content(_reference("HTTPValidationError")), "description": "Validation Error"}


def _get(operation: str, summary: str) -> dict[str, Any]:
    return {"operationId": operation, "responses": {"200": _success({})}, "summary": summary}


def _run(mode: SchemaMode, streaming: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "description": f"Run a single {mode.noun} on the model",
        "operationId": f"{mode.verb}_{mode.path[1:]}_post",
        "requestBody": {"content": _content(_reference(mode.request))},
        "responses": {"200": _success(_reference(mode.response)), "422": _invalid()},
        "summary": mode.verb.capitalize(),
    }
    return {**operation, "x-cog-streaming": True} if streaming else operation


def _cancel(mode: SchemaMode) -> dict[str, Any]:
    schema = {"title": title(mode.id), "type": "string"}
    return {
        "operationId": f"cancel_{mode.path[1:]}__{mode.id}__cancel_post",
        "parameters": [{"in": "path", "name": mode.id, "required": True, "schema": schema}],
        "responses": {"200": _success({}), "422": _invalid()},
        "summary": "Cancel",
    }


def _object(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"title": name, "type": "object", "properties": properties}


def _texts(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"title": title(name), "type": "string"} for name in names}


def _request(mode: SchemaMode) -> dict[str, Any]:
    return _object(mode.request, {**_texts(["id"]), "input": _reference(mode.input)})


def _response(mode: SchemaMode) -> dict[str, Any]:
    times = {
        name: {"format": "date-time", **schema}
        for name, schema in _texts(["completed_at", "created_at", "started_at"]).items()
    }
    return _object(
        mode.response,
        {
            **times,
            **_texts(["error", "id", "logs", "status", "version"]),
            "input": _reference(mode.input),
            "metrics": {"title": "Metrics", "type": "object"},
            "output": _reference(mode.output),
        },
    )


def _fixed() -> dict[str, Any]:
    return {
        "Status": {
            "description": "An enumeration.",
            "enum": ["starting", "processing", "succeeded", "canceled", "failed"],
            "title": "Status",
            "type": "string",
        },
        "HTTPValidationError": _object(
            "HTTPValidationError",
            {"detail": {"items": _reference("ValidationError"), "title": "Detail", "type": "array"}},
        ),
        "ValidationError": {
            **_object(
                "ValidationError",
                {
                    "loc": {
                        "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                        "title": "Location",
                        "type": "array",
                    },
                    "msg": {"title": "Message", "type": "string"},
                    "type": {"title": "Error Type", "type": "string"},
                },
            ),
            "required": ["loc", "msg", "type"],
        },
    }
