"""The first screen of ``serve`` on a terminal: where it is, what it takes, and a curl line that works.

All of it comes from the OpenAPI document that the worker described, so it is shown once setup is over. After a failed
setup it says what still works: the log has said why.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cog_trio.cli.run.input_parser import resolved, takes_file
from cog_trio.cli.run.input_table import input_lines, input_rows

if TYPE_CHECKING:
    import cog_trio

READY: Final = ("READY", "BUSY")
FAILED: Final = "SETUP_FAILED"
UNIX: Final = "unix:"  # before the path, where the server listens on a socket
PIXEL: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EXAMPLES: Final[Mapping[str, Any]] = {"string": "hello", "integer": 1, "number": 1.0, "boolean": True, "array": []}


async def print_welcome(service: cog_trio.PredictionService, urls: Sequence[str], model: str) -> None:
    """Wait until setup is over, then print."""
    from cog_trio import Mode

    health = await service.wait_started()
    if health.status in READY and service.schema is not None:
        token = service.settings.auth_token is not None
        document = json.loads(service.schema)
        needed = service.required(Mode.TRAIN if _trains(document) else Mode.PREDICT)
        print(render_welcome(urls[0], model, document, needed, token=token), file=sys.stderr, flush=True)
    elif health.status == FAILED:
        print(render_failed(urls[0], model), file=sys.stderr, flush=True)


def render_failed(url: str, model: str) -> str:
    """The text of the screen when setup has failed."""
    return f"\n  {model} can't be served; {url}/health-check goes on saying why\n\n  Ctrl-C stops it\n"


def render_welcome(
    url: str, model: str, document: Mapping[str, Any], needed: Collection[str] | None = None, *, token: bool = False
) -> str:
    """The text of the screen.

    Args:
      needed: the inputs that can't be left out, where more is known than the document says.
      token: requests must carry one, which is not shown.
    """
    schemas = document.get("components", {}).get("schemas", {})
    trains = _trains(document)
    component = schemas.get("TrainingInput" if trains else "Input", {})
    properties: dict[str, Any] = component.get("properties", {})
    required = component.get("required", []) if needed is None else needed
    ordered = sorted(properties, key=lambda name: properties[name].get("x-order", 0))
    lines = ["", f"  {model} is ready at {url}", ""]
    if rows := input_rows(document, "train" if trains else "predict", needed):
        lines += ["  Inputs", *(f"    {line}" for line in input_lines(rows)), ""]
    example = {name: _example(resolved(properties[name], schemas)) for name in ordered if name in required}
    if not example:  # show how an input is written
        given = [name for name in ordered if properties[name].get("default") is not None]
        example = {name: properties[name]["default"] for name in given[:1]}
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


def _trains(document: Mapping[str, Any]) -> bool:
    """Whether trainings alone are served."""
    schemas = document.get("components", {}).get("schemas", {})
    return "Input" not in schemas and "TrainingInput" in schemas


def _example(field: Mapping[str, Any]) -> Any:
    if "enum" in field:
        return field["enum"][0]
    if takes_file(field):
        return PIXEL
    if field.get("type") in ("integer", "number") and "minimum" in field:
        return field["minimum"]
    return EXAMPLES.get(field.get("type", "string"), {})
