"""More clients than the server can serve, clients that only hold on, and models that take all there is."""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import psutil
import pytest
import trio
from trio_websocket import open_websocket_url

from cog_trio.testing import ServeModel, Server
from scenarios.faults.clients import GONE, Connection, connect, kept, request
from scenarios.faults.usage import MIB, memory, own_share, processor

CROWD: Final = 2_000
SLOW: Final = 500
TRIES: Final = 4  # the machine has other work, too: what the server can is seen in the best of them
LOOKS: Final = 8  # the same, of 0.3 s each
LOOK: Final = request("GET", "/health-check")
LONG: Final = "COG_TRIO_SOAK" in os.environ  # `make soak`: the figures that the documents promise
SENDERS: Final = 4
LIVE: Final = request("GET", "/livez")


@pytest.fixture(autouse=True)
def descriptors() -> None:
    """As many as the machine allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def p99(times: list[float]) -> float:
    return sorted(times)[math.ceil(len(times) * 0.99) - 1]


def cpu(server: Server) -> float:
    """Seconds of processor that the server has used."""
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user + times.system


async def health_times(server: Server, seconds: float) -> list[float]:
    """How long health took to answer, asked again and again."""
    times: list[float] = []
    async with kept(server) as connection:
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            before = trio.current_time()
            status, body = await connection.ask(LOOK)
            times.append(trio.current_time() - before)
            assert status == 200
            assert json.loads(body)["status"] in ("READY", "BUSY")
            await trio.sleep(0.005)
    return times


async def slowest(server: Server, seconds: float) -> float:
    """How long health takes at p99, less the share of the time in which others had the processor."""
    before = processor(server.process.pid)
    took = p99(await health_times(server, seconds))
    ran, waited = (now - then for now, then in zip(processor(server.process.pid), before, strict=True))
    print(f"health p99: {1000 * took:.1f} ms; {100 * ran / (ran + waited):.0f} % of the processor that was wanted")
    return took * ran / (ran + waited)


async def best_of(look: Callable[[], Any], limit: float) -> float:
    """The best of a few tries; no further ones when it is good enough."""
    best = math.inf
    for _ in range(TRIES):
        best = min(best, await look())
        if best < limit:
            break
    return best


@pytest.mark.timeout(120)
async def test_2000_connections_against_one_busy_slot(serve_model: ServeModel) -> None:
    """Given one slot that is taken, when 2,000 clients ask at once, then each has its answer within 2 s, and memory
    grows by less than 100 MB."""
    body = request("POST", "/predictions", {"input": {"how": "sleep", "seconds": 60}})
    with trio.fail_after(100):
        async with serve_model("stuck.py", "--no-access-log") as server:
            await server.start("long", {"how": "sleep", "seconds": 60})
            before = peak = memory(server.process.pid)

            async def crowd() -> float:
                nonlocal peak
                times: list[float] = []
                connections: list[Connection] = []
                try:
                    for _ in range(CROWD):
                        connections.append(Connection(await connect(server)))

                    async def ask(connection: Connection) -> None:
                        began = trio.current_time()
                        status, _ = await connection.ask(body)
                        times.append(trio.current_time() - began)
                        assert status == 409

                    busy = cpu(server)
                    async with trio.open_nursery() as nursery:
                        for connection in connections:
                            nursery.start_soon(ask, connection)
                    busy = cpu(server) - busy
                    peak = max(peak, memory(server.process.pid))
                finally:
                    for connection in connections:
                        await trio.aclose_forcefully(connection.stream)
                assert len(times) == CROWD
                print(f"{CROWD} answers: the last after {max(times):.2f} s, {busy:.2f} s of processor")
                return min(max(times), busy)  # what other work on the machine took is not the server's

            assert await best_of(crowd, 2.0) < 2.0
            print(f"memory grew by {(peak - before) / MIB:.1f} MiB")
            assert peak - before < 100 * MIB
            assert await server.cancel("long") == 200
            await server.until("READY")


@asynccontextmanager
async def slowloris(server: Server, count: int) -> AsyncIterator[list[int]]:
    """Clients that send the head of a request byte by byte, for ever."""
    over = [0]

    async def hold() -> None:
        try:
            async with await connect(server) as stream:
                await stream.send_all(b"POST /predictions HTTP/1.1\r\nhost: localhost\r\n")
                while True:
                    await stream.send_all(b"x")
                    with trio.move_on_after(0.5):
                        await stream.receive_some()
                        return
        except GONE:
            pass
        finally:
            over[0] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(hold)
        yield over
        nursery.cancel_scope.cancel()


@pytest.mark.timeout(120)
async def test_slowloris_does_not_slow_health(serve_model: ServeModel) -> None:
    """Given 500 clients that send their requests byte by byte, then health p99 is under 100 ms and predictions run;
    and when the time for a head is over, they are all put out."""
    with trio.fail_after(100):
        async with serve_model("echo.py", "--header-timeout", "6") as server, slowloris(server, SLOW) as over:

            async def look() -> float:
                took = p99(await health_times(server, 0.8))
                print(f"health p99 beside {SLOW} slow clients: {1000 * took:.1f} ms")
                return took

            assert await best_of(look, 0.1) < 0.1
            assert (await server.predict({"text": "a"})).json()["output"] == "a"
            with trio.fail_after(30):
                while over[0] < SLOW:
                    await trio.sleep(0.1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("model", "input"),
    [("tokens.py", {"count": 10_000_000, "size": 20}), ("holds_gil.py", {"millions": 1_000_000})],
    ids=["yields", "holds the GIL"],
)
async def test_health_answers_whatever_the_model_does(
    serve_model: ServeModel, model: str, input: dict[str, Any]
) -> None:
    """Given a run that yields as fast as it can, or holds the interpreter, then health p99 is under 20 ms."""
    with trio.fail_after(100):
        async with serve_model(model) as server:
            server.expected = None
            await server.start("it", input)
            await server.until("BUSY")

            figures = []
            for _ in range(LOOKS):
                figures.append(await slowest(server, 0.3))
                assert (await server.health())["status"] == "BUSY"
            assert min(figures) < 0.02, figures
            assert sorted(figures)[LOOKS // 2] < 0.1, figures
            os.kill(server.process.pid, 9)


def numbers(size: int, last: str = "1") -> bytes:
    """About ``size`` bytes of a create with a list of numbers, or of a list whose last element is something else."""
    return b'{"input":{"numbers":[' + b"1," * (size // 2) + last.encode() + b"]}}"


BODIES: Final[dict[str, Callable[[int], tuple[bytes, int]]]] = {
    "the same number twice": lambda size: (b'{"input":%b,"x":%b}' % (b"1" * (size // 2), b"1" * (size // 3)), 400),
    "the same text twice": lambda size: (b'{"input":"%b","x":"%b"}' % (b"1" * (size // 2), b"1" * (size // 3)), 422),
    "names in the input": lambda size: (b'{"input":{"note":[%b]}}' % (b'{"id":1},' * (size // 9))[:-1], 422),
    "many members": lambda size: (b'{"input":{},%b}' % (b'"\\u0078":1,' * (size // 11))[:-1], 422),
    "a long list": lambda size: (numbers(size), 200),
    "a wrong element at the end": lambda size: (numbers(size, '"x"'), 422),
    "nothing but wrong elements": lambda size: (b'{"input":{"numbers":[%b]}}' % (b'"x",' * (size // 4))[:-1], 422),
    "wrong events": lambda size: (b'{"webhook_events_filter":[%b]}' % (b'"no",' * (size // 5))[:-1], 422),
    "a wrong context": lambda size: (b'{"context":{%b}}' % b",".join(b'"%d":1' % n for n in range(size // 12)), 422),
    "deep": lambda size: (b'{"input":{"note":%b}}' % (b"[" * (size // 2) + b"]" * (size // 2)), 400),
    "beyond all range": lambda size: (b'{"input":{"numbers":[%b1e999]}}' % (b"1," * (size // 2)), 400),
}


async def gaps_while(server: Server, *senders: Callable[[], Awaitable[None]]) -> list[float]:
    """Seconds that /livez takes, asked all the time until all senders have ended."""
    gaps: list[float] = []

    async def watch() -> None:
        async with kept(server) as connection:
            while True:
                before = trio.current_time()
                answered, _ = await connection.ask(LIVE)
                gaps.append(trio.current_time() - before)
                assert answered == 200
                await trio.sleep(0.002)

    async with trio.open_nursery() as watchers:
        watchers.start_soon(watch)
        async with trio.open_nursery() as nursery:
            for sender in senders:
                nursery.start_soon(sender)
        watchers.cancel_scope.cancel()
    return gaps


async def send_again(server: Server, body: bytes, status: int, rounds: int) -> None:
    """Send a body again and again; the answer is bounded."""
    raw = request("POST", "/predictions", body)
    async with kept(server) as connection:
        for _ in range(rounds):
            answered, text = await connection.ask(raw)
            assert answered in (status, 409), text[:300]
            assert len(text) < 2 * MIB


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", BODIES)
async def test_bodies_of_any_kind_do_not_hold_up_liveness(serve_model: ServeModel, kind: str) -> None:
    """Given a server of a model, when four clients send it one large body after the other, good or bad, then /livez
    goes on answering and memory stays flat."""
    sizes = (MIB, 20_000_000) if LONG else (MIB // 4,)
    with trio.fail_after(500):
        async with serve_model("number_lists.py", "--no-access-log", "--retain", "1") as server:
            for size in sizes:
                body, status = BODIES[kind](size)
                once = [partial(send_again, server, body, status, 1)] * SENDERS
                await gaps_while(server, *once)  # what is needed once, the allocator's share too, is there then
                clients = [partial(send_again, server, body, status, 5 if LONG else 1)] * SENDERS
                held = memory(server.process.pid)
                best = longest = math.inf
                for _ in range(TRIES):
                    before = processor(server.process.pid)
                    gaps = await gaps_while(server, *clients)
                    share = own_share(server.process.pid, before)
                    best, longest = min(best, p99(gaps) * share), min(longest, max(gaps) * share)
                    print(f"{kind}, {len(body)} bytes: p99 {1000 * best:.0f} ms, longest {1000 * longest:.0f} ms")
                    if best < 0.05 and longest < 0.5:
                        break
                grown = memory(server.process.pid) - held
                print(f"{kind}: memory grew by {grown / MIB:.1f} MiB")
                assert longest < (0.5 if LONG else 5.0)  # once it was 2.8 s for 240 KB, and hours for 20 MB
                if LONG:
                    assert best < 0.05 or size > MIB
                    # What one decoded body of 2 million small objects takes is 500 MiB. A third of it may stay with the
                    # allocator, since other objects were made between them; the next body takes the same place.
                    assert grown < max(32 * MIB, 10 * size)
            assert (await server.predict({"numbers": [1, 2]})).json()["output"] == 2


@pytest.mark.timeout(300)
async def test_large_messages_of_a_websocket_do_not_hold_up_liveness(serve_model: ServeModel) -> None:
    """Given a WebSocket, when a large message comes that is refused in the end, then /livez goes on answering."""
    message = numbers(20_000_000 if LONG else MIB, '"x"').decode()
    with trio.fail_after(200):
        async with serve_model("number_lists.py") as server:
            url = server.url.replace("http", "ws") + "/predictions/ws"
            before = processor(server.process.pid)
            async with open_websocket_url(url) as socket:

                async def talk() -> None:
                    await socket.send_message(message)
                    event = json.loads(await socket.get_message())
                    assert (event["event"], event["data"]["status"]) == ("error", 422)

                gaps = await gaps_while(server, talk)
            longest = max(gaps) * own_share(server.process.pid, before)
            print(f"a WebSocket's {len(message)} bytes: longest {1000 * longest:.0f} ms")
            assert longest < (0.5 if LONG else 5.0)
