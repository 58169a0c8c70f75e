"""The first screen of ``serve`` on a terminal: where it is, what it takes, and a curl line that works.

All of it comes from the OpenAPI document that the worker described, so it is shown once setup is over. After a failed
setup it says what still works: the log has said why.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import cog_trio

READY: Final = ("READY", "BUSY")
FAILED: Final = "SETUP_FAILED"
UNIX: Final = "unix:"  # before the path, where the server listens on a socket
MAX_WORDS: Final = 70  # characters of a description
PIXEL: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EXAMPLES: Final[Mapping[str, Any]] = {"string": "hello", "integer": 1, "number": 1.0, "boolean": True, "array": []}


async def first_screen(service: cog_trio.PredictionService, urls: Sequence[str], model: str) -> None:
    """Wait until setup is over, then print."""
    health = await service.wait_started()
    if health.status in READY and service.schema is not None:
        token = service.settings.auth_token is not None
        print(render(urls[0], model, json.loads(service.schema), token=token), file=sys.stderr, flush=True)
    elif health.status == FAILED:
        print(render_failed(urls[0], model), file=sys.stderr, flush=True)


def render_failed(url: str, model: str) -> str:
    """The text of the screen when setup has failed."""
    return f"\n  {model} can't be served; {url}/health-check goes on saying why\n\n  Ctrl-C stops it\n"


def render(url: str, model: str, document: Mapping[str, Any], *, token: bool = False) -> str:
    """The text of the screen; ``token``: requests must carry one, which is not shown."""
    schemas = document.get("components", {}).get("schemas", {})
    trains = "Input" not in schemas and "TrainingInput" in schemas
    component = schemas.get("TrainingInput" if trains else "Input", {})
    properties: dict[str, Any] = component.get("properties", {})
    required = component.get("required", [])
    ordered = sorted(properties, key=lambda name: properties[name].get("x-order", 0))
    lines = ["", f"  {model} is ready at {url}", ""]
    if ordered:
        width = max(map(len, ordered))
        lines.append("  Inputs")
        lines += [f"    {name:{width}}  {_describe(properties[name], name in required, schemas)}" for name in ordered]
        lines.append("")
    example = {name: _example(_resolved(properties[name], schemas)) for name in ordered if name in required}
    body = shlex.quote(json.dumps({"input": example}, ensure_ascii=False))
    path = "/trainings" if trains else "/predictions"
    address = shlex.quote(url + path)
    if url.startswith(UNIX):
        address = f"--unix-socket {shlex.quote(url.removeprefix(UNIX))} http://localhost{path}"
    bearer = ' -H "Authorization: Bearer $COG_TRIO_AUTH_TOKEN"' if token else ""
    lines += [
        "  Try it",
        f"    curl -s {address}{bearer} -H 'Content-Type: application/json' -d {body}",
        "",
        "  Ctrl-C stops it",
        "",
    ]
    return "\n".join(lines)


def _describe(field: Mapping[str, Any], required: bool, schemas: Mapping[str, Any]) -> str:
    resolved = _resolved(field, schemas)
    kind = "file" if resolved.get("format") == "uri" else str(resolved.get("type", "any"))
    if "enum" in resolved:
        kind = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in resolved["enum"])
    what = "required" if required else f"default {json.dumps(field.get('default'), ensure_ascii=False)}"
    words = " ".join(str(field.get("description", "")).split())[:MAX_WORDS]
    return f"{kind}, {what}" + (f": {words}" if words else "")


def _example(field: Mapping[str, Any]) -> Any:
    if "enum" in field:
        return field["enum"][0]
    if field.get("format") == "uri":
        return PIXEL
    if field.get("type") in ("integer", "number") and "minimum" in field:
        return field["minimum"]
    return EXAMPLES.get(field.get("type", "string"), {})


def _resolved(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The field with its reference followed: choices stand in a component of their own."""
    references = [field, *field.get("allOf", ())]
    for reference in references:
        name = str(reference.get("$ref", "")).rpartition("/")[2]
        if name in schemas:
            return {**field, **schemas[name]}
    return field
