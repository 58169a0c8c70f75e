"""What a client says and in which order, written once for both faces.

It is written as coroutines over an ``Http``. The asynchronous one really waits; of the blocking one no ``await`` ever
suspends, so ``sync_client.py`` runs the same coroutines to their end without an event loop.

A prediction that is waited for, or followed, is tied to its request: the server cancels it when the connection goes.
So whatever ends a call early (a timeout, a cancelled task, Ctrl-C) ends the prediction too.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urljoin, urlsplit

from cog_trio.client.errors import (
    ModelError,
    RequestRefused,
    RunCanceled,
    RunTimedOut,
    ServerNotReady,
    ServerUnreachable,
    json_object,
    refused,
)
from cog_trio.client.events import (
    ClientEvent,
    CompletedEvent,
    LogEvent,
    OutputEvent,
    ServerSentEvents,
    StartEvent,
    event_of,
)
from cog_trio.client.json_body import JsonBody
from cog_trio.client.output_files import decode_data_url, file_name, file_places, replace_files
from cog_trio.client.remote_prediction import PredictionPage, RemotePrediction

EVENTS: Final = "text/event-stream"
PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 4.0)  # seconds before each new try of what may be tried again
SETUP_POLL: Final = 0.5  # seconds between two looks at a model that is being set up
WAIT: Final = 30  # seconds that one request waits for the end of a prediction
SILENCE: Final = 60.0  # seconds without a byte of a stream, which has a comment every 15 s: it is dead
PASSING: Final = (429, 502, 504)  # statuses of a proxy that may be otherwise a moment later


class HttpAnswer(NamedTuple):
    """An answer, or its beginning."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class Http(Protocol):
    """How requests are sent. Paths are sent as they are; times are in seconds."""

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: JsonBody | None = None,
        *,
        silence: float | None = None,
    ) -> AbstractAsyncContextManager[HttpAnswer]:
        """Send a request; its answer is read in the block.

        Args:
          silence: how long may pass without a byte of the answer; None: for ever.

        Raises:
          NotSent: the server could not be reached, so it knows nothing of the request.
          ServerUnreachable: the connection broke.
        """

    def limit(self, seconds: float | None) -> AbstractContextManager[None]:
        """Cut what is done in the block after so long.

        Raises:
          TimeoutError: it was cut.
        """

    def now(self) -> float:
        """A clock that only goes forward."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def write(self, path: Path, pieces: AsyncIterator[bytes]) -> None:
        """Write a file."""

    async def make_body(self, members: Mapping[str, Any]) -> JsonBody:
        """A body; files are looked at."""


class NotSent(ServerUnreachable):
    """The server could not be reached, so it knows nothing of the request."""


class ServerApi:
    """One server, spoken to. See ``AsyncClient`` for what each call does and raises."""

    def __init__(self, http: Http, url: str, token: str | None, retries: int) -> None:
        self.url = url.rstrip("/")
        self._http = http
        self._origin = urlsplit(self.url)[:2]
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._pauses = PAUSES[:retries]

    # Running.

    async def run(
        self,
        input: Mapping[str, Any] | None,
        *,
        training: bool,
        id: str | None,
        timeout: float | None,
        output_folder: Path | None,
    ) -> Any:
        with self._cut_after(timeout):
            prediction = await self._create(_members(input), id, training, {})
        return await self._output(prediction, training, output_folder)

    @contextmanager
    def _cut_after(self, timeout: float | None) -> Iterator[None]:
        try:
            with self._http.limit(timeout):
                yield
        except TimeoutError:
            raise RunTimedOut(f"the prediction did not end within {timeout:g} s, and was cancelled") from None

    async def create(
        self,
        input: Mapping[str, Any] | None,
        *,
        training: bool,
        id: str | None,
        webhook: str | None,
        webhook_events_filter: list[str] | None,
    ) -> RemotePrediction:
        members = _members(input)
        if webhook is not None:
            members["webhook"] = webhook
        if webhook_events_filter is not None:
            members["webhook_events_filter"] = webhook_events_filter
        return await self._create(members, id, training, {"prefer": "respond-async"})

    async def _create(
        self, members: Mapping[str, Any], id: str | None, training: bool, headers: Mapping[str, str]
    ) -> RemotePrediction:
        """Create it by a request that may be sent again: one that is there already is joined, by its id."""
        body = await self._http.make_body(members)
        url = self._one(id or _new_id(), training)
        status, content = await self._ask_again("PUT", url, {**headers, "content-type": "application/json"}, body)
        if status not in (200, 202):
            raise refused(status, content)
        return _prediction(status, content)

    async def stream(
        self, input: Mapping[str, Any] | None, *, id: str | None, timeout: float | None
    ) -> AsyncGenerator[ClientEvent, None]:
        end = None if timeout is None else self._http.now() + timeout
        async with aclosing(self._stream(_members(input), id or _new_id())) as events:
            while True:
                with self._cut_after(None if end is None else max(0.0, end - self._http.now())):
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return
                yield event

    async def _stream(self, members: Mapping[str, Any], id: str) -> AsyncGenerator[ClientEvent, None]:
        body = await self._http.make_body(members)
        url, last = self._one(id, False), ""
        request: tuple[str, dict[str, str], JsonBody | None]
        request = ("PUT", {"content-type": "application/json"}, body)
        pauses = iter(self._pauses)
        while True:
            method, headers, content = request
            broke: ServerUnreachable
            try:
                async with self._http.ask(
                    method, url, {**self._headers, **headers, "accept": EVENTS}, content, silence=SILENCE
                ) as answer:
                    if answer.status == 406 and method == "PUT":  # a model, or a server, that does not stream
                        break
                    if answer.status != 200 or not answer.headers.get("content-type", "").startswith(EVENTS):
                        told = await _whole(answer)
                        if answer.status not in PASSING:
                            raise refused(answer.status, told)
                        broke = ServerUnreachable(f"a proxy answered {answer.status}")
                    else:
                        found = ServerSentEvents()
                        async for piece in answer.pieces:
                            for name, number, data in found.feed(piece):
                                if (event := event_of(name, data)) is not None:
                                    yield event
                                    if isinstance(event, CompletedEvent):
                                        return
                                last = number or last
                        broke = ServerUnreachable("the stream ended before the prediction did")
            except ServerUnreachable as error:
                broke = error
                if not last and not isinstance(error, NotSent):
                    raise
            if (pause := next(pauses, None)) is None:
                raise broke
            await self._http.sleep(pause)
            if last:
                request = ("GET", {"last-event-id": last}, None)
        async for event in self._as_events(await self._create(members, id, False, {})):
            yield event

    async def _as_events(self, prediction: RemotePrediction) -> AsyncGenerator[ClientEvent, None]:
        """What a stream would have told of a prediction that has ended."""
        yield StartEvent(prediction.id or "")
        if prediction.logs:
            yield LogEvent(prediction.logs, "stdout")
        items = prediction.output if isinstance(prediction.output, list) else [prediction.output]
        for index, item in enumerate(items if prediction.output is not None else ()):
            yield OutputEvent(item, index)
        yield CompletedEvent(prediction)

    # Looking.

    async def get(self, id: str, *, training: bool) -> RemotePrediction:
        return _prediction(*await self._expect(200, "GET", self._one(id, training)))

    async def list(self, *, training: bool, status: str | None, cursor: str | None) -> PredictionPage:
        first = f"{self._family(training)}{'' if status is None else f'?status={quote(status)}'}"
        url = first if cursor is None else urljoin(first, cursor)
        if urlsplit(url)[:2] != self._origin:
            raise ValueError(f"{url} is not of this server")
        _, content = await self._expect(200, "GET", url)
        told = json_object(content)
        try:
            results = tuple(map(RemotePrediction.of, told["results"]))
        except (LookupError, TypeError, ValueError):
            raise RequestRefused(200, "the server answers with what is not a list of predictions") from None
        return PredictionPage(results, told.get("next"), told.get("previous"))

    async def cancel(self, id: str, *, training: bool) -> None:
        await self._expect(200, "POST", f"{self._one(id, training)}/cancel")

    async def wait(self, id: str, *, training: bool, timeout: float | None) -> RemotePrediction:
        try:
            with self._http.limit(timeout):
                while True:
                    headers = {"prefer": f"wait={WAIT}"}
                    _, content = await self._expect(200, "GET", self._one(id, training), headers)
                    prediction = _prediction(200, content)
                    if prediction.ended:
                        return prediction
        except TimeoutError:
            raise RunTimedOut(f"the prediction {id} did not end within {timeout:g} s; it goes on") from None

    async def wait_ready(self, timeout: float | None) -> None:
        """Wait until the model is set up."""
        last = "there is no answer"
        try:
            with self._http.limit(timeout):
                while True:
                    try:
                        _, content = await self._expect(200, "GET", f"{self.url}/health-check")
                        last = str(json_object(content).get("status"))
                        if last in ("READY", "BUSY", "UNHEALTHY"):
                            return
                        if last != "STARTING":
                            raise ServerNotReady(503, f"the server is {last}")
                    except ServerUnreachable as error:
                        last = str(error)
                    await self._http.sleep(SETUP_POLL)
        except TimeoutError:
            raise RunTimedOut(f"the server was not ready within {timeout:g} s: {last}") from None

    # Files.

    async def read(self, url: str) -> bytes:
        if url[:5].lower() == "data:":
            return decode_data_url(url)
        async with self._fetch(url) as answer:
            return await _whole(answer)

    async def save(self, url: str, path: Path) -> Path:
        if url[:5].lower() == "data:":
            await self._http.write(path, _one_piece(decode_data_url(url)))
            return path
        async with self._fetch(url) as answer:
            await self._http.write(path, answer.pieces)
        return path

    @asynccontextmanager
    async def _fetch(self, url: str) -> AsyncGenerator[HttpAnswer, None]:
        """A file of an output; the token goes to our own server alone."""
        headers = self._headers if urlsplit(url)[:2] == self._origin else {}
        async with self._http.ask("GET", url, headers, silence=SILENCE) as answer:
            if answer.status != 200:
                raise refused(answer.status, await _whole(answer))
            yield answer

    async def _output(self, prediction: RemotePrediction, training: bool, folder: Path | None) -> Any:
        if prediction.status == "failed":
            raise ModelError(prediction)
        if prediction.status != "succeeded":
            raise RunCanceled(prediction)
        if folder is None:
            return prediction.output
        _, content = await self._expect(200, "GET", f"{self.url}/openapi.json")
        places = file_places(json_object(content), "TrainingOutput" if training else "Output", prediction.output)
        saved: dict[str, Path] = {}
        for number, url in enumerate(dict.fromkeys(places)):
            saved[url] = await self.save(url, folder / file_name(url, number))
        return replace_files(prediction.output, saved)

    # Requests.

    async def _expect(
        self, wanted: int, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        status, content = await self._ask_again(method, url, headers or {}, None)
        if status != wanted:
            raise refused(status, content)
        return status, content

    async def _ask_again(
        self, method: str, url: str, headers: Mapping[str, str], body: JsonBody | None
    ) -> tuple[int, bytes]:
        """Ask, and once more where that can do no harm: nothing was started, or it is known by its id."""
        pauses = iter(self._pauses)
        while True:
            error: Exception
            try:
                async with self._http.ask(method, url, {**self._headers, **headers}, body) as answer:
                    content = await _whole(answer)
                    if answer.status not in PASSING:
                        return answer.status, content
                    error = refused(answer.status, content)
            except NotSent as gone:
                error = gone
            if (pause := next(pauses, None)) is None:
                raise error
            await self._http.sleep(pause)

    def _family(self, training: bool) -> str:
        return f"{self.url}/{'trainings' if training else 'predictions'}"

    def _one(self, id: str, training: bool) -> str:
        return f"{self._family(training)}/{quote(id, safe='')}"


def _members(input: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"input": {} if input is None else input}


def _new_id() -> str:
    return f"run-{secrets.token_hex(8)}"


def _prediction(status: int, content: bytes) -> RemotePrediction:
    try:
        return RemotePrediction.of(json_object(content))
    except ValueError:
        raise refused(status, content) from None


async def _whole(answer: HttpAnswer) -> bytes:
    return b"".join([piece async for piece in answer.pieces])


async def _one_piece(content: bytes) -> AsyncIterator[bytes]:
    yield content
