"""Servers side by side, a client that does not decode, and the turn-taking of rounds."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

MODELS: Final = Path(__file__).parent.parent / "models"
START: Final = 60.0  # seconds until READY
PATIENCE: Final = 60.0  # seconds without a byte
TRIES: Final = 300  # the reference's slot comes back late: each refusal is asked again after 10 ms
NAMES: Final = ("cog-trio", "coglet")
MODULES: Final = {"cog-trio": "cog_trio.server.http", "coglet": "cog.server.http"}

Values = dict[str, list[float]]  # by side, one for each round


@dataclass(frozen=True)
class Plan:
    """How much is measured, and with which interpreters."""

    pythons: dict[str, str]
    rounds: int
    scale: float = 1.0  # below 1.0: fewer requests in a round

    def count(self, full: int) -> int:
        return max(1, int(full * self.scale))


def request(input: dict[str, object], accept: str = "application/json") -> bytes:
    """Return a whole prediction request, made before the clock runs."""
    body = json.dumps({"input": input}).encode()
    head = f"POST /predictions HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {accept}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


HEALTH: Final = b"GET /health-check HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


class Connection:
    """One kept connection. Raises OSError if it breaks or stays silent for PATIENCE."""

    def __init__(self, port: int, patience: float = PATIENCE) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), patience)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, data: bytes) -> tuple[int, bytes]:
        """Return status and body, framing included when it is chunked."""
        self.socket.sendall(data)
        return self.reply()

    def reply(self) -> tuple[int, bytes]:
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._receive()
        head, _, rest = head.partition(b"\r\n\r\n")
        status, parts, size = int(head.split(b" ", 2)[1]), [rest], len(rest)
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                wanted = int(line.partition(b":")[2])
                while size < wanted:
                    parts.append(self._receive())
                    size += len(parts[-1])
                return status, b"".join(parts)
        tail = rest[-5:]
        while tail != b"0\r\n\r\n":
            parts.append(self._receive())
            tail = (tail + parts[-1])[-5:]
        return status, b"".join(parts)

    def _receive(self) -> bytes:
        data = self.socket.recv(2**20)
        if not data:
            raise ConnectionError("the server has closed the connection")
        return data


@dataclass
class Side:
    """One of the two servers."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    connection: Connection
    ready: float  # seconds from exec to READY
    refused: int = 0

    def ask(self, data: bytes) -> tuple[float, bytes]:
        """Return the seconds and the body of one accepted prediction; refusals are counted and asked again."""
        for _ in range(TRIES):
            began = time.perf_counter()
            status, body = self.connection.ask(data)
            taken = time.perf_counter() - began
            if status == 200:
                return taken, body
            self.refused += 1
            time.sleep(0.01)
        raise RuntimeError(f"{self.name}: {status} {body[:300]!r}")


@contextmanager
def started(name: str, python: str, model: str, **environ: str) -> Iterator[Side]:
    """Start a server on a free port and wait for READY; its whole process group and its folder are gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"  # coglet starts what `python` is there
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        settings = {"PATH": path, "PORT": str(port), "COG_PREDICT_TYPE_STUB": model, "TMPDIR": folder}
        began = time.perf_counter()
        process = subprocess.Popen(
            [python, "-m", MODULES[name], "--host", "127.0.0.1"],
            cwd=MODELS,
            env={**kept, "COG_LOG_LEVEL": "warning", **settings, **environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        reader = threading.Thread(target=_drain, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            while not _is_ready(port):
                if process.poll() is not None or time.perf_counter() - began > START:
                    raise RuntimeError(f"{name} did not start: exit code {process.poll()}")
                time.sleep(0.005)
            ready = time.perf_counter() - began
            connection = Connection(port)
            with connection.socket:
                yield Side(name, process, port, connection, ready)
        finally:
            _end(process)
            reader.join(5)
            process.stderr.close()


def _drain(pipe: IO[bytes]) -> None:
    while os.read(pipe.fileno(), 2**16):
        pass


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_ready(port: int) -> bool:
    try:
        connection = Connection(port, 1)
        with connection.socket:
            return b'"READY"' in connection.ask(HEALTH)[1]
    except OSError:
        return False


@contextmanager
def both(plan: Plan, model: str, **environ: str) -> Iterator[list[Side]]:
    """Start the servers of the plan on the same model at the same time."""
    with ExitStack() as stack:
        yield [stack.enter_context(started(name, python, model, **environ)) for name, python in plan.pythons.items()]


def in_turn(plan: Plan, sides: list[Side], measure: Callable[[Side], float]) -> Values:
    """Measure round by round, each side first in every other one; a round before that warms up and is dropped."""
    values: Values = {side.name: [] for side in sides}
    for number in range(plan.rounds + 1):
        for side in sides if number % 2 else reversed(sides):
            value = measure(side)
            if number:
                values[side.name].append(value)
    return values


def throughput(side: Side, data: bytes, connections: int, count: int) -> float:
    """Return accepted predictions a second with so many connections, each of which asks again at once."""
    done = sent = 0
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        began = time.perf_counter()
        for _ in range(connections):
            connection = Connection(side.port)
            stack.enter_context(connection.socket)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.socket.sendall(data)
            sent += 1
        while done < count:
            events = selector.select(PATIENCE)
            if not events:
                raise TimeoutError(f"{side.name}: no reply for {PATIENCE} s")
            for key, _ in events:
                status, _ = key.data.reply()
                if status == 200:
                    done += 1
                else:
                    side.refused += 1
                key.data.socket.sendall(data)
        taken = time.perf_counter() - began
        for key in list(selector.get_map().values()):  # what is still under way must not reach the next round
            key.data.reply()
    return done / taken
