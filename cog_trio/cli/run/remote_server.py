"""Another server, as ``run --url`` sees it: its addresses, its document, and its refusals in words for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import trio

from cog_trio.cli.run.display import fault_line
from cog_trio.net.http_client import error_reason

if TYPE_CHECKING:
    import httpx

SCHEMES: Final = {"ws": "http", "wss": "https"}
STARTING: Final = "STARTING"
POLL: Final = 0.5  # seconds between two looks at a server that sets up its model
NONSENSE: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
ENDS: Final = ("succeeded", "failed", "canceled")


class ServerRefused(Exception):
    """The server does not do it; ``faults`` of the inputs, if these are why."""

    def __init__(self, text: str, faults: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.faults = faults


class ServerGone(Exception):
    """The connection failed; the text says how."""


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Take apart what a server says; nothing of it is sure, and nothing else may be done in the block.

    Raises:
      ServerRefused: it is not what it should be.
    """
    try:
        yield
    except NONSENSE as error:
        raise ServerRefused(f"the server answers what can't be understood: {what} is not as it should be") from error


class RemoteServer:
    """One server, with a client for it."""

    def __init__(self, url: str, client: httpx.AsyncClient, token: str | None, cafile: str | None) -> None:
        self.url = url
        parts = urlsplit(url)
        self.socket = parts.scheme in SCHEMES
        self.base = urlunsplit(parts._replace(scheme=SCHEMES.get(parts.scheme, parts.scheme)))
        self.client = client
        self.cafile = cafile
        self.headers = {} if token is None else {"authorization": f"Bearer {token}"}

    async def wait_set_up(self, on_wait: Callable[[], None]) -> None:
        """Wait while the server sets up its model; ``on_wait`` is called once, if there is something to wait for.

        A server that does not say how it is counts as set up: the next request tells what is wrong.
        """
        import httpx

        told = False
        while True:
            try:
                response = await self.client.get(f"{self.base}/health-check", headers=self.headers)
            except (httpx.HTTPError, httpx.InvalidURL):
                return
            if response.status_code != 200 or _object(response.content).get("status") != STARTING:
                return
            if not told:
                on_wait()
                told = True
            await trio.sleep(POLL)

    async def document(self) -> Mapping[str, Any]:
        """What it says about its model.

        Raises:
          ServerRefused, ServerGone: with the text for the user.
        """
        import httpx

        try:
            response = await self.client.get(f"{self.base}/openapi.json", headers=self.headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerGone(f"{self.url} can't be reached: {error_reason(error)}") from error
        if response.status_code == 404:
            raise ServerRefused(
                f"{self.url} has no openapi.json: it is not a server of cog-trio or Cog, or a route of one"
            )
        if response.status_code != 200:
            raise refusal(response.status_code, response.content)
        document = _object(response.content)
        if not isinstance(document.get("paths"), dict):
            raise ServerRefused(f"{self.url}/openapi.json is not a document of a model")
        return document


def finished(value: object) -> Mapping[str, Any]:
    """A prediction at its end.

    Raises:
      ValueError: it is none.
    """
    if not isinstance(value, dict) or value.get("status") not in ENDS:
        raise ValueError("no prediction that has ended")
    return value


def refusal(status: int, body: bytes) -> ServerRefused:
    """An answer that is not a prediction, in words."""
    told = _object(body)
    detail = told.get("detail")
    if status == 422 and isinstance(detail, list):
        faults = [fault_line(_place(fault), str(fault.get("msg"))) for fault in detail if isinstance(fault, dict)]
        if faults:
            return ServerRefused("", faults)
    text = told.get("error") or (detail if isinstance(detail, str) else None) or _said(detail)
    if status == 401:
        return ServerRefused("the server wants a token: give it by --auth-token or COG_TRIO_AUTH_TOKEN")
    if status == 413:
        return ServerRefused(
            f"the inputs are larger than the server takes: give large files as URLs ({text or status})"
        )
    if status < 300:
        return ServerRefused(
            f"the server answered {status}, but not with what was asked for: is it a server of cog-trio or Cog?"
        )
    return ServerRefused(f"the server refuses ({status}): {text}" if text else f"the server answered {status}")


def _object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty one if it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _place(fault: Mapping[str, Any]) -> Sequence[Any]:
    place = fault.get("loc")
    return place if isinstance(place, list) else ()


def _said(detail: object) -> str | None:
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        return str(detail[0].get("msg"))
    return None
