"""The rig of the scenarios: one real server process on a free port, with a real worker.

``open_server`` starts ``python -m cog_trio serve``, learns the bound address from the server's own log line (the
JSON field ``urls``), and gives a ``Server`` with a client. On the way out the server is stopped by SIGTERM, must
leave with 0, and must leave nothing: no process that it started and no temporary file. Processes are found by a
mark in their environment, so children that changed their session or lost their parent are found too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import trio

MODELS: Final = Path(__file__).parent / "models"
EXAMPLES: Final = Path(__file__).parent.parent / "docs" / "examples"
MARK: Final = "COG_TRIO_SCENARIO"
START: Final = 30.0  # seconds until a server must listen, and until its model must be ready
STOP: Final = 20.0  # seconds until a server without work must be gone
GONE: Final = 5.0  # seconds until what a dead server left must be gone; 1 s is promised, the rest is for slow machines
SOON: Final = 10.0  # seconds in which anything that is promised "at once" must happen on a busy machine
POLL: Final = 0.02  # seconds between two looks


@dataclass
class Server:
    """One running server, seen from outside."""

    process: trio.Process
    url: str
    client: httpx.AsyncClient
    mark: str
    temporary: Path
    log: list[dict[str, Any]] = field(default_factory=list)
    expected: int | None = 0  # exit code; None: the story kills it

    async def predict(self, input: Any = None, **fields: Any) -> httpx.Response:
        """A sync prediction."""
        return await self.client.post("/predictions", json={"input": {} if input is None else input, **fields})

    async def start(self, id: str, input: Any = None) -> None:
        """An async prediction: accepted, and going on by itself."""
        reply = await self.client.put(
            f"/predictions/{id}", json={"input": {} if input is None else input}, headers={"prefer": "respond-async"}
        )
        assert reply.status_code == 202, reply.text

    async def cancel(self, id: str) -> int:
        return (await self.client.post(f"/predictions/{id}/cancel")).status_code

    async def look(self, id: str) -> dict[str, Any]:
        """The state of a prediction, running or finished."""
        reply = await self.client.get(f"/predictions/{id}")
        assert reply.status_code == 200, (id, reply.status_code, reply.text)
        return _object(reply)

    async def health(self) -> dict[str, Any]:
        reply = await self.client.get("/health-check")
        assert reply.status_code == 200
        return _object(reply)

    async def until(self, status: str, seconds: float = SOON) -> dict[str, Any]:
        """Wait until health has this status."""
        seen: dict[str, Any] = {}
        with trio.move_on_after(seconds):
            while (seen := await self.health())["status"] != status:
                await trio.sleep(POLL)
            return seen
        raise AssertionError(f"health is {seen}, not {status}; log: {self.log[-20:]}")

    async def until_logs(self, id: str, text: str) -> dict[str, Any]:
        """Wait until a prediction has printed this."""
        return await self._until(id, lambda seen: text in seen["logs"], f"{text!r} in the logs")

    async def finished(self, id: str) -> dict[str, Any]:
        """Wait until a prediction has ended."""
        return await self._until(id, lambda seen: seen["status"] in ("succeeded", "failed", "canceled"), "an end")

    def children(self) -> list[psutil.Process]:
        """The server's direct children: its worker, while there is one."""
        return [child for child in psutil.Process(self.process.pid).children() if child.status() != "zombie"]

    def worker(self) -> psutil.Process:
        """The worker process."""
        (worker,) = self.children()
        return worker

    async def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = STOP) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return await self.ended(seconds)

    async def ended(self, seconds: float = STOP) -> int:
        """Wait for the end of the server; the exit code."""
        with trio.fail_after(seconds):
            return await self.process.wait()

    async def _until(self, id: str, true: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        with trio.move_on_after(SOON):
            while not true(seen := await self.look(id)):
                await trio.sleep(POLL)
            return seen
        raise AssertionError(f"{id}: {seen} instead of {what}")


@asynccontextmanager
async def open_server(
    model: str | Path,
    temporary: Path,
    *flags: str,
    status: str | None = "READY",
    env: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    cwd: Path | None = None,
) -> AsyncIterator[Server]:
    """Serve ``model`` (a path, or a file's name in scenarios/models) until the block is left.

    ``status`` is the health to wait for, None: none. ``command`` replaces ``-m cog_trio serve MODEL --port 0``.
    """
    path = MODELS / model if isinstance(model, str) else model
    mark = uuid.uuid4().hex
    temporary.mkdir(exist_ok=True)
    arguments = command or ("-m", "cog_trio", "serve", str(path), "--port", "0", "--log-format", "json")
    process = await trio.lowlevel.open_process(
        [sys.executable, *arguments, *flags],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**_clean(os.environ), "TMPDIR": str(temporary), MARK: mark, **(env or {})},
        cwd=cwd,
    )
    log: list[dict[str, Any]] = []
    try:
        async with trio.open_nursery() as nursery:
            listening = trio.Event()
            nursery.start_soon(_read_log, process, log, listening)
            with trio.move_on_after(START):
                await listening.wait()
            url = next((entry["urls"][0] for entry in log if "urls" in entry), None)
            assert url is not None, f"the server does not listen: {log}"
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
                server = Server(process, url, client, mark, temporary, log)
                if status is not None:
                    await server.until(status, START)
                yield server
            if server.expected is not None:
                if process.returncode is None:
                    process.terminate()
                code = await server.ended()
                assert code == server.expected, (code, log[-20:])
                assert sorted(path.name for path in temporary.iterdir()) == []
            nursery.cancel_scope.cancel()
        await nothing_left(mark)
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            for left in marked(mark):
                left.kill()
            with trio.fail_after(STOP):
                await process.wait()


async def nothing_left(mark: str, seconds: float = GONE) -> None:
    """Wait until no process of a server is left."""
    left: list[psutil.Process] = []
    with trio.move_on_after(seconds):
        while left := marked(mark):
            await trio.sleep(POLL)
        return
    raise AssertionError(f"still there: {[(process.pid, process.cmdline()) for process in left]}")


def marked(mark: str) -> list[psutil.Process]:
    """All living processes that were started, directly or not, by the server with this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what configures a server."""
    ours = ("COG_", "LOG_FORMAT", "RUST_LOG", "PORT", "KUBERNETES_")
    return {name: value for name, value in environ.items() if not name.startswith(ours)}


async def _read_log(process: trio.Process, log: list[dict[str, Any]], listening: trio.Event) -> None:
    """Keep every line that the server logs, to its end; ``listening`` when it has said its address or has ended."""
    assert process.stderr is not None
    rest = b""
    async for chunk in process.stderr:
        *lines, rest = (rest + chunk).split(b"\n")
        log.extend(map(_parsed, lines))
        if any("urls" in entry for entry in log):
            listening.set()
    listening.set()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"raw": line.decode(errors="replace")}


def _object(reply: httpx.Response) -> dict[str, Any]:
    value = reply.json()
    assert isinstance(value, dict)
    return value
