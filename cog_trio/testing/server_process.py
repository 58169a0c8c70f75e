"""One real server process on a free port, with a real worker, for the length of a block.

``open_server`` starts ``python -m cog_trio serve``, learns the bound address from the server's own log (the JSON
field ``urls``), waits for READY and gives a ``Server`` with a client. On the way out the server is stopped by SIGTERM,
must leave with exit code 0, and must leave nothing: no file in its temporary folder and no process that it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import trio
from trio_websocket import WebSocketConnection

from cog_trio.testing.helper_tasks import need_real_time, open_helpers
from cog_trio.testing.processes import MARK, POLL, ended_with_us, kill_marked, marked, nothing_left
from cog_trio.testing.stream_clients import Events, open_events, open_socket

START: Final = 30.0  # seconds until a server must listen, and until its model must be ready
STOP: Final = 20.0  # seconds until a server without work must be gone
SOON: Final = 10.0  # seconds in which anything that is promised "at once" must happen on a busy machine
REPLY: Final = 60.0  # seconds that the client waits for an answer
SHOWN: Final = 20  # last lines of the log in an error
ENDS: Final = ("succeeded", "failed", "canceled")
LOST: Final = ("SETUP_FAILED", "DEFUNCT")  # health of a server that has just started and will not be READY

Entry = dict[str, Any]


@dataclass
class Server:
    """One running server, seen from outside."""

    process: trio.Process
    url: str
    client: httpx.AsyncClient  # of this server: paths are enough; takes any certificate
    mark: str  # what all of its processes carry in their environment
    temporary: Path  # its TMPDIR
    log: list[Entry] = field(default_factory=list)  # its lines as objects; ``{"raw": text}`` if one is none
    expected: int | None = 0  # exit code at the end; None: the test kills it, and any end is right

    async def predict(self, input: Any = None, **fields: Any) -> httpx.Response:
        """Create a prediction and wait for its end; ``fields`` stand beside ``input``, like ``id`` or ``webhook``."""
        return await self.client.post("/predictions", json={"input": {} if input is None else input, **fields})

    async def start(self, id: str, input: Any = None, **fields: Any) -> None:
        """Create a prediction that goes on by itself.

        Raises:
          AssertionError: if it is not accepted.
        """
        reply = await self.client.put(
            f"/predictions/{id}",
            json={"input": {} if input is None else input, **fields},
            headers={"prefer": "respond-async"},
        )
        if reply.status_code != 202:
            raise AssertionError(f"{id} was answered {reply.status_code}, not 202: {reply.text}")

    async def cancel(self, id: str) -> int:
        """Ask for the end of a prediction; the status of the answer."""
        return (await self.client.post(f"/predictions/{id}/cancel")).status_code

    async def look(self, id: str) -> Entry:
        """The state of a prediction, running or finished.

        Raises:
          AssertionError: if it is not known.
        """
        reply = await self.client.get(f"/predictions/{id}")
        if reply.status_code != 200:
            raise AssertionError(f"{id} was answered {reply.status_code}: {reply.text}")
        return _object(reply)

    async def health(self) -> Entry:
        """What ``GET /health-check`` shows."""
        return _object(await self.client.get("/health-check"))

    async def until(self, status: str, seconds: float = SOON) -> Entry:
        """Wait until health has this status.

        Raises:
          AssertionError: if it has another one after so long, or the server has ended.
        """
        return await self._until_health(status, seconds, ())

    async def until_logs(self, id: str, text: str, seconds: float = SOON) -> Entry:
        """Wait until a prediction has printed this; its state then.

        Raises:
          AssertionError: if it has not after so long.
        """
        return await self._until(id, lambda seen: text in seen["logs"], f"{text!r} in the logs", seconds)

    async def finished(self, id: str, seconds: float = SOON) -> Entry:
        """Wait until a prediction has ended; its state then.

        Raises:
          AssertionError: if it has not after so long.
        """
        return await self._until(id, lambda seen: seen["status"] in ENDS, "an end", seconds)

    def events(
        self, id: str, input: Any = None, *, after: str = "", method: str = "PUT"
    ) -> AbstractAsyncContextManager[Events]:
        """Follow a prediction by server-sent events: ``async with server.events("a", {...}) as events:``.

        ``PUT`` creates it, or joins it while it runs; ``GET`` only attaches. ``after`` is the id of the last event
        that was seen. Leaving the block cuts the connection.
        """
        return open_events(self.url, id, input, after=after, method=method)

    def socket(self) -> AbstractAsyncContextManager[WebSocketConnection]:
        """A WebSocket for predictions: ``async with server.socket() as socket:``."""
        return open_socket(self.url)

    def processes(self) -> list[int]:
        """The numbers of the server and of all that it started, as long as they live; empty without ``/proc``."""
        return marked(self.mark)

    async def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = STOP) -> int:
        """Send a signal and wait for the end; the exit code.

        Raises:
          trio.TooSlowError: if it has not ended after so long.
        """
        self.process.send_signal(number)
        return await self.ended(seconds)

    async def ended(self, seconds: float = STOP) -> int:
        """Wait for the end of the server; the exit code.

        Raises:
          trio.TooSlowError: if it has not ended after so long.
        """
        with trio.fail_after(seconds):
            return await self.process.wait()

    async def _until_health(self, status: str, seconds: float, hopeless: Collection[str]) -> Entry:
        seen: Entry = {}
        with trio.move_on_after(seconds):
            while (seen := await self._health_or_end())["status"] != status:
                if seen["status"] in hopeless:
                    break
                await trio.sleep(POLL)
            else:
                return seen
        raise AssertionError(f"health is {_told(seen)}, not {status}; log:\n{format_log(self.log[-SHOWN:])}")

    async def _health_or_end(self) -> Entry:
        try:
            return await self.health()
        except httpx.TransportError as error:
            if self.process.poll() is None:
                raise
            raise AssertionError(
                f"the server has ended with {self.process.returncode}; log:\n{format_log(self.log[-SHOWN:])}"
            ) from error

    async def _until(self, id: str, true: Callable[[Entry], bool], what: str, seconds: float) -> Entry:
        seen: Entry = {}
        with trio.move_on_after(seconds):
            while not true(seen := await self.look(id)):
                await trio.sleep(POLL)
            return seen
        raise AssertionError(f"{id}: {seen} instead of {what}")


@asynccontextmanager
async def open_server(
    model: str | Path,
    *flags: str,
    status: str | None = "READY",
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    cwd: Path | None = None,
    temporary: Path | None = None,
    timeout: float = START,
    log: list[Entry] | None = None,
) -> AsyncIterator[Server]:
    """Serve ``model`` (a file, ``file.py:Name``, or a folder with a cog.yaml) until the block is left.

    ``flags`` are those of ``cog-trio serve``. ``status`` is the health to wait for, None: none. ``env`` goes over our
    environment, of which nothing that configures a server is passed on. ``command`` replaces ``-m cog_trio serve
    MODEL --port 0``. ``temporary`` is the server's TMPDIR, by default a folder of its own. ``timeout`` is seconds
    until it must listen, and then until it must have that status. ``log`` is the list that takes its lines.

    Raises:
      AssertionError: if it does not start, leaves with another exit code than ``server.expected``, or leaves files or
        processes behind. What the block raises passes through unchanged; then nothing is checked.

    Cancellation: the server and all that it started are killed.
    """
    need_real_time("a served model")
    log = [] if log is None else log
    mark = uuid.uuid4().hex
    with ExitStack() as stack:
        if temporary is None:
            # no prefix of ours: a server that starts meanwhile sweeps what looks like a dead one's folder
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="test-of-cog-trio-")))
        temporary.mkdir(exist_ok=True)
        arguments = command or ("-m", "cog_trio", "serve", str(model), "--port", "0", "--log-format", "json")
        process = await trio.lowlevel.open_process(
            [sys.executable, *arguments, *flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**_clean(os.environ), "TMPDIR": str(temporary), MARK: mark, **(env or {})},
            cwd=cwd,
        )
        try:
            stack.enter_context(ended_with_us(process.pid))
            async with open_helpers() as nursery:
                url = await nursery.start(_read_log, process, log, timeout)
                async with _client(url) as client:
                    server = Server(process, url, client, mark, temporary, log)
                    if status is not None:
                        await server._until_health(status, timeout, LOST if status == "READY" else ())
                    yield server
                if server.expected is not None:
                    await _left_well(server)
            await nothing_left(mark)
        finally:
            with trio.fail_after(STOP, shield=True):
                if process.returncode is None:
                    process.kill()
                kill_marked(mark)
                await process.wait()


def _client(url: str) -> httpx.AsyncClient:
    """A client of a server on this machine, whose certificate, if it has one, nobody has to know."""
    return httpx.AsyncClient(base_url=url, timeout=REPLY, trust_env=False, verify=False)


async def _left_well(server: Server) -> None:
    if server.process.poll() is None:
        server.process.terminate()
    code = await server.ended()
    if code != server.expected:
        raise AssertionError(
            f"the server left with exit code {code}, not {server.expected}; log:\n{format_log(server.log[-SHOWN:])}"
        )
    if left := sorted(path.name for path in server.temporary.iterdir()):
        raise AssertionError(f"the server left files in its temporary folder: {left}")


def format_log(log: Sequence[Entry]) -> str:
    """Lines of a server's log for people: time of day, level, text, and what else they hold."""
    return "\n".join(_line(dict(entry)) for entry in log)


def _line(entry: Entry) -> str:
    if "raw" in entry:
        return str(entry["raw"])
    clock = str(entry.pop("timestamp", ""))[11:23]
    level, message = str(entry.pop("level", "")).lower(), entry.pop("message", "")
    trace, _ = entry.pop("exception", ""), entry.pop("target", "")
    line = f"{clock} {level:7} {message}" + "".join(f" {name}={value}" for name, value in entry.items())
    return f"{line}\n{trace}" if trace else line


def _told(health: Entry) -> str:
    """Health in an error: the status, and what setup printed."""
    logs = (health.get("setup") or {}).get("logs", "")
    return f"{health.get('status')} ({logs.strip()})" if logs.strip() else str(health.get("status"))


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what configures a server."""
    ours = ("COG_", "LOG_FORMAT", "RUST_LOG", "PORT", "KUBERNETES_")
    return {name: value for name, value in environ.items() if not name.startswith(ours)}


async def _read_log(
    process: trio.Process, log: list[Entry], timeout: float, *, task_status: trio.TaskStatus[str]
) -> None:
    """Keep every line that the server logs, to its end; started with the address that it has bound."""
    assert process.stderr is not None
    rest, started = b"", False
    with trio.move_on_after(timeout) as limit:
        async for chunk in process.stderr:
            *lines, rest = (rest + chunk).split(b"\n")
            log.extend(map(_parsed, lines))
            if not started and (url := next((entry["urls"][0] for entry in log if "urls" in entry), None)):
                started, limit.deadline = True, float("inf")
                task_status.started(url)
    if not started:
        if not limit.cancelled_caught:  # its stderr is closed, so it is about to end
            with trio.move_on_after(SOON):
                await process.wait()
        said = f"does not listen after {timeout:g} s" if process.poll() is None else f"ended with {process.returncode}"
        raise AssertionError(f"the server {said}; log:\n{format_log(log[-SHOWN:])}")


def _parsed(line: bytes) -> Entry:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"raw": line.decode(errors="replace")}


def _object(reply: httpx.Response) -> Entry:
    value = reply.json()
    if reply.status_code != 200 or not isinstance(value, dict):
        raise AssertionError(f"{reply.request.url} was answered {reply.status_code}: {reply.text}")
    return value
