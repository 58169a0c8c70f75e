"""A run on another server over a WebSocket: one socket, one run, its events as they come.

Every model is served so, also one that offers no server-sent events. The socket's end is the run's, so a dead client
leaves nothing behind.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, WebSocketConnection, open_websocket_url

from cog_trio.cli.run.display import Display
from cog_trio.cli.run.http_run import show_event
from cog_trio.cli.run.remote_server import RemoteServer, ServerGone, ServerRefused, refusal, understood
from cog_trio.cli.run.session import encode
from cog_trio.client.events import LARGEST
from cog_trio.net.http_client import error_reason, tls_context

if TYPE_CHECKING:
    from cog_trio.cli.run.console import Console
    from cog_trio.cli.run.session import StopRequest

CONNECT: Final = 10.0  # seconds
CLOSE: Final = 2.0  # seconds
NO_SOCKET: Final = (404, 405, 426)  # what servers say that have none


async def converse(
    server: RemoteServer, values: Mapping[str, Any], display: Display, console: Console, stop: StopRequest
) -> Mapping[str, Any]:
    """Run it and show its events; gives it at its end.

    Raises:
      ServerRefused, ServerGone: with the text for the user.
    """
    url = f"{server.url}/predictions/ws"
    trust = None
    if url.startswith("wss:"):
        trust = await trio.to_thread.run_sync(tls_context, server.cafile)
    try:
        async with open_websocket_url(
            url,
            trust,
            extra_headers=[(name.encode(), value.encode()) for name, value in server.headers.items()],
            max_message_size=LARGEST,
            connect_timeout=CONNECT,
            disconnect_timeout=CLOSE,
        ) as socket:
            return await _WebSocketRun(socket, display, console, stop).run(values)
    except ConnectionRejected as rejected:
        if rejected.status_code in NO_SOCKET:
            raise ServerRefused(f"{server.url} takes no WebSocket: name it by http or https") from rejected
        raise refusal(rejected.status_code, rejected.body or b"") from rejected
    except HandshakeError as error:
        raise ServerGone(f"{server.url} can't be reached: {error_reason(error)}") from error
    except ConnectionClosed as closed:
        why = closed.reason
        told = (
            "the connection was lost" if why is None else f"it closed the socket ({why.code} {why.reason or why.name})"
        )
        raise ServerGone(f"{server.url} went away: {told}") from closed
    except (OSError, ssl.SSLError) as error:
        raise ServerGone(f"{server.url} can't be reached: {error}") from error


class _WebSocketRun:
    def __init__(self, socket: WebSocketConnection, display: Display, console: Console, stop: StopRequest) -> None:
        self._socket = socket
        self._display = display
        self._console = console
        self._stop = stop
        self._cancel = trio.Event()

    async def run(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        outcome: Mapping[str, Any] | Exception
        async with trio.open_nursery() as nursery:
            self._stop.gently = self._cancel.set
            try:
                await self._socket.send_message((await trio.to_thread.run_sync(encode, {"input": values})).decode())
                outcome = await self._hear(nursery)
            except Exception as error:  # noqa: BLE001 (raised again below, outside of the nursery)
                outcome = error
            nursery.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _hear(self, nursery: trio.Nursery) -> Mapping[str, Any]:
        id: str | None = None
        while True:
            text = await self._socket.get_message()
            with understood("a message"):
                message = json.loads(text)
                event, data = str(message["event"]), message["data"]
                if message["seq"] is None:
                    raise refusal(int(data.get("status", 500)), json.dumps(data).encode())
                told = str(message["id"])
            if id is None:
                id = told
                nursery.start_soon(self._cancel_when_told, id)
            if (prediction := await show_event(event, data, self._display, self._console)) is not None:
                return prediction

    async def _cancel_when_told(self, id: str) -> None:
        await self._cancel.wait()
        try:
            await self._socket.send_message(json.dumps({"cancel": id}))
        except ConnectionClosed:
            return  # whoever hears it says so
