"""The files of the playground as they are served: plain HTML, CSS and ES modules, each read at its first request.

They are open to all, since they hold nothing of the model or of a prediction; what the page then asks for needs the
token like any other request. The policy lets the page load nothing but these files and talk to nobody but this server;
pictures, sounds and films may come from where an output says. No inline script or style is allowed, so nothing that a
model writes can become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cog_trio.transport.http.api.router import Headers, HttpRequest, Resource, Text

FOLDER: Final = Path(__file__).parent
PAGE: Final = "index.html"
TYPES: Final[Mapping[str, bytes]] = {
    PAGE: b"text/html; charset=utf-8",
    "style.css": b"text/css; charset=utf-8",
    **dict.fromkeys(("app.js", "api.js", "form.js", "output.js", "snippets.js"), b"text/javascript; charset=utf-8"),
}
MEDIA: Final = "'self' data: blob: http: https:"
POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src {MEDIA}; media-src {MEDIA}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def playground_routes() -> Mapping[bytes, Resource]:
    """The routes of the page and of its files, by their paths."""
    return {
        b"/docs" if name == PAGE else f"/docs/{name}".encode(): Resource(GET=_Asset(name, kind).respond, open=True)
        for name, kind in TYPES.items()
    }


class _Asset:
    """One file."""

    def __init__(self, name: str, kind: bytes) -> None:
        self._name = name
        self._headers: Headers = (
            (b"content-type", kind),
            (b"content-security-policy", POLICY.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
        )
        self._body: bytes | None = None

    async def respond(self, request: HttpRequest) -> Text:
        if self._body is None:
            self._body = (FOLDER / self._name).read_bytes()  # a few KB, once
        return Text(self._body, 200, self._headers)
