"""Inputs read from a ready-made document, for a model whose signature can't be described.

Such a document was bundled by Cog's build (``.cog/openapi_schema.json``) or named by ``COG_OPENAPI_SCHEMA``. It tells
kinds and what is required; defaults still come from the function, whose `Input` objects never reach user code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ._annotations import signature
from ._document import REF
from ._input_types import InputKind
from ._parameters import MISSING, Parameter, Parameters, field_info

KINDS: dict[str, InputKind] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict",
}


def component_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A component of a document.

    Raises:
      ValueError: if the document has no such component.
    """
    schemas = document.get("components", {}).get("schemas", {})
    found = schemas.get(name)
    if not isinstance(found, Mapping):
        raise ValueError(f"the OpenAPI document has no component {name!r}")
    return found


def driven_by(inputs: Parameters, component: Mapping[str, Any]) -> Parameters:
    """The same inputs, with what the document says of required and nullable."""
    listed = set(component.get("required", ()))
    properties = component.get("properties", {})

    def change(parameter: Parameter) -> Parameter:
        is_listed = parameter.name in listed
        nullable = bool(properties.get(parameter.name, {}).get("nullable", False))
        return replace(
            parameter,
            listed=is_listed,
            required=is_listed and parameter.default is not None,
            nullable=nullable,
            accepts_null=nullable or parameter.accepts_null,
            inject_null=nullable and parameter.inject_null and not is_listed,
        )

    return Parameters(tuple(change(parameter) for parameter in inputs.parameters), inputs.extra)


def read_document(function: Callable[..., Any], document: Mapping[str, Any], name: str) -> Parameters:
    """The inputs by the document alone; the order and the defaults are the function's.

    Raises:
      ValueError: if the document has no component ``name``.
    """
    component = component_of(document, name)
    schemas = document.get("components", {}).get("schemas", {})
    properties = dict(component.get("properties", {}))
    found: list[Parameter] = []
    extra = False
    for raw in signature(function).parameters.values():
        if raw.kind is raw.VAR_KEYWORD:
            extra = True
        elif raw.kind is not raw.VAR_POSITIONAL:
            found.append(_parameter(raw, properties.pop(raw.name, {}), schemas))
    inputs = driven_by(Parameters(tuple(found), extra), component)
    return Parameters(inputs.parameters, extra)


def _parameter(raw: inspect.Parameter, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Parameter:
    many = schema.get("type") == "array"
    info = field_info(raw.default)
    return Parameter(
        name=raw.name,
        kind=_kind(_resolved(schema.get("items", {}) if many else schema, schemas)),
        many=many,
        accepts_null=info.has_default and info.default is None,
        default=info.default if info.has_default else MISSING,
        inject_null="default" not in schema,
        positional=raw.kind is raw.POSITIONAL_ONLY,
        fragment=schema,
    )


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    for reference in schema.get("allOf", ()):
        target: Mapping[str, Any] = schemas.get(str(reference.get("$ref", "")).removeprefix(REF), {})
        return target
    return schema


def _kind(schema: Mapping[str, Any]) -> InputKind:
    if "anyOf" in schema:
        return "union"
    if schema.get("format") == "uri":
        return "path"
    if schema.get("format") == "password":
        return "secret"
    return KINDS.get(schema.get("type", ""), "any")
