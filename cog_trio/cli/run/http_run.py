"""A run on another server over HTTP: one request that waits for it, or reads its events, and what goes on beside.

The run has an id of ours, so that it can be cancelled and looked at. Where the server streams, events come by
server-sent events; everywhere else a request waits for the end, and the state is read now and then beside it, for
what the model prints and yields meanwhile. A server that can't be asked for the state (Cog's own) is asked once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import httpx
import trio

from cog_trio.cli.options import NAME
from cog_trio.cli.run.display import Display, plain
from cog_trio.cli.run.output_writer import BadOutput
from cog_trio.cli.run.remote_server import RemoteServer, ServerGone, ServerRefused, finished, refusal, understood
from cog_trio.client.events import BadStream, ServerSentEvents
from cog_trio.net.http_client import error_reason, open_body

if TYPE_CHECKING:
    from cog_trio.cli.run.console import Console
    from cog_trio.cli.run.session import StopRequest
    from cog_trio.cli.run.upload_body import UploadBody

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
POLL: Final = 0.5  # seconds between two requests for the state
SILENCE: Final = 60.0  # seconds without a byte of a stream, which has a comment every 15 s: it is dead
PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 4.0)  # seconds before each try to resume a stream that broke
MAX_STATE: Final = 8 * 2**20  # bytes of a state that is read now and then; a larger one echoes large inputs
CANCEL: Final = 10.0  # seconds for a cancel to be taken
WAITS: Final = httpx.Timeout(10.0, read=None, write=None, pool=None)
STREAMS: Final = httpx.Timeout(10.0, read=SILENCE, write=None, pool=None)


class HttpRun:
    """One run."""

    def __init__(
        self, server: RemoteServer, family: str, display: Display, console: Console, stop: StopRequest
    ) -> None:
        self._server = server
        self._display = display
        self._console = console
        self._stop = stop
        self._url = f"{server.base}/{family}/run-{secrets.token_hex(8)}"
        self._cancel = trio.Event()
        self._logs = 0  # characters that were shown
        self._last_id = ""  # of the last event that was shown; empty: of a server that names none

    async def stream(self, body: UploadBody) -> Mapping[str, Any]:
        """Run it and show its events; gives it at its end.

        Raises:
          ServerRefused, ServerGone: with the text for the user.
          BadOutput: a file of the output can't be written.
        """
        return await self._beside(self._stream, body)

    async def wait(self, body: UploadBody) -> Mapping[str, Any]:
        """Run it and wait; gives it at its end. Raises: as ``stream``."""
        return await self._beside(self._wait, body)

    async def _beside(self, send: Any, body: UploadBody) -> Mapping[str, Any]:
        """Ask, and cancel when we are told to; one error leaves the nursery as itself."""
        outcome: Mapping[str, Any] | Exception
        async with trio.open_nursery() as nursery:
            self._stop.gently = self._cancel.set
            nursery.start_soon(self._cancel_when_told)
            try:
                self._console.measure = body.progress
                outcome = await send(body, nursery)
            except (ServerRefused, ServerGone, BadOutput) as error:
                outcome = error
            except httpx.HTTPError as error:
                outcome = ServerGone(f"{self._server.url} went away: {error_reason(error)}")
            nursery.cancel_scope.cancel()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _cancel_when_told(self) -> None:
        await self._cancel.wait()
        with trio.move_on_after(CANCEL):
            try:
                reply = await self._server.client.post(f"{self._url}/cancel", headers=self._server.headers)
            except httpx.HTTPError:
                reply = None  # the connection of the run has the word
            if reply is not None and reply.status_code == 200:
                return
        self._stop.scope.cancel()  # the end of our request is a cancel too

    # Waiting.

    async def _wait(self, body: UploadBody, nursery: trio.Nursery) -> Mapping[str, Any]:
        nursery.start_soon(self._poll_state)
        headers = {**self._server.headers, "content-type": JSON, "content-length": str(body.size)}
        client = self._server.client
        async with client.stream("PUT", self._url, content=body, headers=headers, timeout=WAITS) as reply:
            content = await self._receive(reply)
        if reply.status_code != 200:
            raise refusal(reply.status_code, content)
        with understood("the prediction"):
            prediction = finished(json.loads(content))
        self._show_logs(prediction)
        return prediction

    async def _poll_state(self) -> None:
        """Show what is there so far, now and then."""
        while True:
            await trio.sleep(POLL)
            try:
                async with self._server.client.stream("GET", self._url, headers=self._server.headers) as reply:
                    if int(reply.headers.get("content-length", "0")) > MAX_STATE:
                        return
                    await reply.aread()
            except (httpx.HTTPError, ValueError):
                continue  # the request that waits has the word
            if reply.status_code == 405:
                return
            if reply.status_code != 200:
                continue
            try:
                prediction = json.loads(reply.content)
            except (ValueError, RecursionError):
                continue  # as above
            if not isinstance(prediction, dict):
                continue
            if prediction.get("status") != "starting":
                self._console.phase("Running")
            self._show_logs(prediction)
            output = prediction.get("output")
            if isinstance(output, list):
                try:
                    await self._display.items(0, output)
                except BadOutput:
                    return  # the end tries it once more, and says so

    def _show_logs(self, prediction: Mapping[str, Any]) -> None:
        logs = prediction.get("logs")
        if not isinstance(logs, str):
            return
        self._display.log(logs[self._logs :])
        self._logs = len(logs)

    async def _receive(self, reply: httpx.Response) -> bytes:
        """The body of a reply; the moving line shows how much of it has come."""
        length = reply.headers.get("content-length", "")
        total = int(length) if length.isdecimal() else None
        pieces: list[bytes] = []
        size = 0
        self._console.measure = lambda: (size, total) if size else None
        self._console.measured = "Receiving the output"
        async for piece in reply.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
        self._console.measure = lambda: None
        return b"".join(pieces)

    # Events.

    async def _stream(self, body: UploadBody, nursery: trio.Nursery) -> Mapping[str, Any]:
        prediction: Mapping[str, Any] | None = None
        try:
            headers = {"content-type": JSON, "content-length": str(body.size)}
            prediction = await self._read_stream("PUT", headers, body)
            why = "the stream ended before the run did"
        except httpx.TransportError as error:
            if not self._last_id:
                raise
            why = error_reason(error)
        if prediction is None and self._last_id:
            self._console.say(f"{NAME}: the stream of {plain(self._server.url)} broke ({plain(why)}): resuming it")
            prediction = await self._resume()
        if prediction is None:
            raise ServerGone(f"{self._server.url} went away: {why}")
        return prediction

    async def _resume(self) -> Mapping[str, Any] | None:
        """Go on behind the last event that was shown; None if that can't be had in some tries.

        Raises:
          ServerRefused, ServerGone: with the text for the user.
        """
        for pause in PAUSES:
            await trio.sleep(pause)
            prediction = None
            with suppress(httpx.TransportError):
                prediction = await self._read_stream("GET", {"last-event-id": self._last_id})
            if prediction is not None and prediction["status"] == "canceled" and not self._cancel.is_set():
                raise ServerGone(f"{self._server.url} cancelled the run when its stream broke (see its --stream-grace)")
            if prediction is not None:
                return prediction
        return None

    async def _read_stream(
        self, method: str, headers: dict[str, str], body: UploadBody | None = None
    ) -> Mapping[str, Any] | None:
        """Show the events of one request; the run, if it is over, None if the stream ends before that.

        Raises:
          ServerRefused: the server answers something else.
          httpx.TransportError: the connection broke.
        """
        headers = {**self._server.headers, **headers, "accept": EVENTS}
        client = self._server.client
        async with client.stream(method, self._url, content=body, headers=headers, timeout=STREAMS) as reply:
            if reply.status_code != 200 or not reply.headers.get("content-type", "").startswith(EVENTS):
                raise refusal(reply.status_code, await reply.aread())
            async with open_body(reply) as pieces, aclosing(events(pieces, self._note_id)) as stream:
                async for event, data in stream:
                    if (prediction := await show_event(event, data, self._display, self._console)) is not None:
                        return prediction
        return None

    def _note_id(self, id: str) -> None:
        self._last_id = id


async def show_event(event: str, data: Any, display: Display, console: Console) -> Mapping[str, Any] | None:
    """Show one event, of whichever stream; gives the run when it is over."""
    index, chunk, text, lost = 0, None, "", 0
    with understood(f"the event {event}"):
        if event == "completed":
            return finished(data)
        if event == "log":
            text = str(data["data"])
        elif event == "output":
            index, chunk = int(data["index"]), data["chunk"]
        elif event == "error":
            lost = int(data.get("skipped") or 0)
    if event == "start":
        console.phase("Running")
    elif event == "output":
        await display.items(index, [chunk])
    elif text:
        display.log(text)
    elif lost:
        console.say(f"{lost} events were lost on the way")
    await console.room()
    return None


async def events(
    pieces: AsyncIterator[bytes], on_id: Callable[[str], None] = lambda id: None
) -> AsyncGenerator[tuple[str, Any], None]:
    """Server-sent events out of a body in pieces: name and decoded data. ``on_id`` is called with the id of an event
    when whoever reads comes back for the next one.

    Raises:
      ServerRefused: one of them can't be read.
    """
    found = ServerSentEvents()
    async for piece in pieces:
        try:
            for name, id, data in found.feed(piece):
                with understood(f"the event {name}"):
                    decoded = json.loads(data)
                yield name, decoded
                if id:
                    on_id(id)
        except BadStream as bad:
            raise ServerRefused(str(bad)) from bad
